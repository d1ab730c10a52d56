"""Holders, workers and requests that come too late, at a service on real uvicorn and gunicorn.

In each case a holder was told that its write is there, and the next holder writes what it computed from what it read:
nothing that was acknowledged may be lost. The same service behind a gate that compares the token first does lose it.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.http.attacked_servers import SERVERS, HTTPService
from tests.http.http_proxy import send_again
from tests.http.stage import COMPARED, FENCED, OK, Stage, thaw
from tests.support.helpers import is_stopped, wait_until

pytestmark = pytest.mark.process
STALE, UNKNOWN, SEAL_LOST, PLAYED_BACK = "StaleTokenError", "OutcomeUnknownError", "SealLostError", "played back"
SECOND_REQUEST = 2
"""A write: the first request of each holder is a read."""


@pytest.fixture(scope="module", params=SERVERS)
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HTTPService]:
    """Yield the service on each kind of server."""
    with HTTPService(request.param, tmp_path_factory.mktemp(request.param)) as made:
        yield made


@pytest.fixture
def stage(service: HTTPService) -> Iterator[Stage]:
    """Yield a case of the service's fenced handler."""
    with Stage(service, FENCED) as made:
        yield made


# --- a frozen worker --------------------------------------------------------------------------------------------------
def freeze_between_check_and_write(stage: Stage) -> tuple[str, list[str]]:
    """Have a worker stand still behind all checks in front of the handler; return what A was told, and what is left."""
    old = stage.holder()
    writing = stage.begin(old, *old.get(), "A", stand="checked")
    frozen = stage.frozen()
    new = stage.holder()
    seen = new.get()
    thaw(frozen)
    told = writing.result()
    assert new.put(*seen, "B") == OK
    return told, stage.names()


def test_a_worker_frozen_between_the_check_and_the_write_is_refused_when_it_thaws(stage: Stage) -> None:
    assert freeze_between_check_and_write(stage) == (STALE, ["B"])


def test_a_gate_that_compares_and_then_runs_the_handler_loses_what_it_has_acknowledged(service: HTTPService) -> None:
    with Stage(service, COMPARED) as stage:
        assert freeze_between_check_and_write(stage) == (OK, ["B"])


def test_a_worker_frozen_inside_its_transaction_holds_the_next_holder_up_and_loses_nothing(stage: Stage) -> None:
    """The limit of one file with one write lock."""
    old = stage.holder()
    writing = stage.begin(old, *old.get(), "A", stand="written")
    frozen = stage.frozen()
    new = stage.holder()
    reading = stage.begin_reading(new)
    thaw(frozen)
    assert writing.result() == OK
    assert new.put(*reading.result(), "B") == OK
    assert stage.names() == ["A", "B"]


def test_a_worker_frozen_between_its_commit_and_its_reply_has_written_what_the_next_holder_reads(stage: Stage) -> None:
    old = stage.holder()
    writing = stage.begin(old, *old.get(), "A", stand="committed")
    frozen = stage.frozen()
    new = stage.holder()
    assert new.put(*new.get(), "B") == OK
    thaw(frozen)
    assert writing.result() == OK
    assert stage.names() == ["A", "B"]


# --- a frozen holder --------------------------------------------------------------------------------------------------
def test_a_holder_frozen_between_its_get_and_its_put_is_refused_when_it_thaws(stage: Stage) -> None:
    old = stage.process(
        """
        names = get()
        say(names)
        hear()
        say(put(*names, "A"))
        """
    )
    assert old.hear() == []
    old.freeze()
    new = stage.take_over()
    seen = new.get()
    old.thaw()
    old.say()
    assert old.hear() == STALE
    assert new.put(*seen, "B") == OK
    assert stage.names() == ["B"]


@pytest.mark.parametrize(
    ("point", "told", "left"), [("checked", STALE, ["B"]), ("committed", OK, ["A", "B"])], ids=["refused", "written"]
)
def test_a_holder_frozen_between_its_put_and_the_reply_is_told_the_truth_when_it_thaws(
    stage: Stage, point: str, told: str, left: list[str]
) -> None:
    """It and the worker that serves it stand still, and both thaw behind the next holder's write."""
    old = stage.process(f"""say(put(*get(), "A", stand="{point}"))""")
    worker = stage.frozen()
    old.freeze()
    new = stage.take_over()
    assert new.put(*new.get(), "B") == OK
    thaw(worker)
    wait_until(lambda: not is_stopped(worker))
    old.thaw()
    assert old.hear() == told
    assert stage.names() == left


# --- the network ------------------------------------------------------------------------------------------------------
def test_a_write_whose_reply_was_lost_is_unknown_and_played_back_when_it_is_asked_again(stage: Stage) -> None:
    proxy = stage.proxy()
    holder = stage.holder(proxy)
    lost = proxy.drop_reply(SECOND_REQUEST)
    assert holder.put(*holder.get(), "A", once="1") == UNKNOWN
    lost.wait()
    assert stage.names() == ["A"]
    assert holder.key is not None
    assert holder.put("A", once="1", **{"Idempotency-Key": holder.key}) == PLAYED_BACK
    assert (stage.names(), stage.writes()) == (["A"], 1)


def test_a_write_whose_reply_was_lost_is_what_the_next_holder_reads(stage: Stage) -> None:
    proxy = stage.proxy()
    old = stage.holder(proxy)
    proxy.drop_reply(SECOND_REQUEST)
    assert old.put(*old.get(), "A") == UNKNOWN
    new = stage.holder()
    assert new.put(*new.get(), "B") == OK
    assert old.put("A") == STALE
    assert stage.names() == ["A", "B"]


def test_a_write_that_was_held_up_behind_the_successors_is_refused(stage: Stage) -> None:
    proxy = stage.proxy()
    old = stage.holder(proxy)
    held = proxy.hold_request(SECOND_REQUEST)
    writing = stage.begin(old, *old.get(), "A")
    held.wait()
    new = stage.holder()
    assert new.put(*new.get(), "B") == OK
    held.release()
    assert writing.result() == STALE
    assert stage.names() == ["B"]


def write_twice(stage: Stage, **fields: str) -> tuple[int, list[str]]:
    """Have a holder write A and then B, and the network bring the first write again; return its status, and what is
    left.
    """
    proxy = stage.proxy()
    holder = stage.holder(proxy)
    assert holder.put(*holder.get(), "A", **fields) == OK
    assert holder.put("A", "B", **fields) == OK
    return send_again(stage.service.port, proxy.seen[SECOND_REQUEST - 1]), stage.names()


def test_a_duplicate_of_a_write_is_not_applied_again_if_its_handler_does_it_once(stage: Stage) -> None:
    assert write_twice(stage, once="1") == (204, ["A", "B"])
    assert stage.writes() == 2


def test_a_duplicate_behind_a_later_write_of_the_same_tenure_is_applied_again_without_once(stage: Stage) -> None:
    """What a token cannot tell apart: the page on HTTP says so, and names `once`."""
    assert write_twice(stage) == (200, ["A"])
    assert stage.writes() == 3


@pytest.mark.parametrize(("fields", "status"), [({}, 412), ({"once": "1"}, 204)], ids=["refused", "played back"])
def test_a_duplicate_behind_the_successors_write_changes_nothing(
    stage: Stage, fields: dict[str, str], status: int
) -> None:
    proxy = stage.proxy()
    old = stage.holder(proxy)
    assert old.put(*old.get(), "A", **fields) == OK
    new = stage.holder()
    assert new.put(*new.get(), "B") == OK
    assert send_again(stage.service.port, proxy.seen[SECOND_REQUEST - 1]) == status
    assert (stage.names(), stage.writes()) == (["A", "B"], 2)


# --- a failover that loses the seal -----------------------------------------------------------------------------------
def test_a_seal_that_a_failover_lost_is_noticed_at_the_other_worker(stage: Stage) -> None:
    old = stage.holder()
    before = old.get()
    with stage.failover():
        new = stage.holder()
        seen = new.get()
    assert old.put(*before, "A") == OK, "the mark is the stale holder's again"
    os.kill(new.worker, signal.SIGSTOP)
    wait_until(lambda: is_stopped(new.worker))
    assert new.put(*seen, "B") == SEAL_LOST
    assert stage.names() == ["A"]
    last = stage.holder()
    assert last.put(*last.get(), "C") == OK
    assert stage.names() == ["A", "C"]


def test_a_client_that_does_not_repeat_its_seals_loses_what_was_acknowledged(stage: Stage) -> None:
    """The negative control: the service has forgotten the seal, and nobody reminds it."""
    old = stage.holder()
    before = old.get()
    with stage.failover():
        new = stage.holder()
        seen = new.get()
    assert old.put(*before, "A") == OK
    forgetful = stage.plain_client(stage.service.port)
    answer = forgetful.put(stage.path, json=[*seen, "B"], headers={"Fencing-Token": f'"{new.proof}"'})
    assert (answer.status_code, stage.names()) == (200, ["B"])
