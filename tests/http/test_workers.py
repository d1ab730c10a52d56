"""The rules of sealing across the wire: a service has many workers, and none remembers a tenure.

Two applications are two workers: each has a guard and a middleware of its own, and shares only the database.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import fencelock
from fencelock import GuardError, SealLostError, StaleTokenError
from fencelock._remote.seals import MAX_SEAL_IDS
from fencelock.http import FencingMiddleware, WSGIFencingMiddleware
from tests.http.frameworks import Report, bare_asgi, bare_wsgi
from tests.http.wire import Reply, Service, over_asgi, over_wsgi
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, make_file, plain, url_of, value_in

Workers = Callable[[], Service]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a database that a copy of the file restores."""
    return make_file(tmp_path / "app.db", journal="delete")


@pytest.fixture(params=["asgi", "wsgi"])
def worker(request: pytest.FixtureRequest, file: Path) -> Workers:
    """Return what starts one more worker of a service."""
    return lambda: start_worker(request.param, Report(file))


def start_worker(kind: str, report: Report, **options: Any) -> Service:
    """Return a worker with a memory of its own."""
    if kind == "asgi":
        return over_asgi(FencingMiddleware(bare_asgi(report), **options))
    return over_wsgi(WSGIFencingMiddleware(bare_wsgi(report), **options))


class Restored:
    """A database that was copied, and is put back once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._copy = Path(shutil.copy(file, f"{file}.copy"))

    def put_back(self) -> None:
        os.replace(self._copy, self._file)


def lose_a_seal(file: Path, worker: Workers) -> tuple[HandmadeLease, Reply]:
    """A failover: B seals and reads at one worker, its seal is lost, and A's late write is accepted.

    Returns B's lease, and what B was answered.
    """
    a, b = HandmadeLease(42), HandmadeLease(43)
    assert worker().call("PUT", "/report/1", a).status == 200
    before = Restored(file)
    read = worker().call("GET", "/report", b)
    assert read.body == b"1"
    before.put_back()
    assert worker().call("PUT", "/report/2", a).status == 200
    return b, read


def test_g9_a_lost_seal_is_noticed_by_a_worker_that_never_saw_it(file: Path, worker: Workers) -> None:
    b, read = lose_a_seal(file, worker)
    for method, path in (("PUT", "/report/11"), ("GET", "/report"), ("GET", "/gone")):
        reply = worker().call(method, path, b, read.seals)
        assert (reply.status, reply.kind, reply.marks) == (409, "seal-lost", ())
        assert isinstance(reply.problem, SealLostError)
    assert value_in(file) == 2, "what A was told is written is there"


def test_g9_without_the_clients_memory_an_acknowledged_write_is_lost(file: Path, worker: Workers) -> None:
    """The negative control: what `Fencing-Sealed` is for."""
    b, read = lose_a_seal(file, worker)
    reply = worker().call("PUT", f"/report/{int(read.body) + 10}", b)
    assert reply.status == 200
    assert value_in(file) == 11, "computed without A's 2, which is gone"


def test_g9_the_seal_route_raises_no_mark_a_second_time(file: Path) -> None:
    def worker() -> Service:
        report = Report(file)
        return start_worker("asgi", report, guards=[report.guard])

    b, read = lose_a_seal(file, worker)
    assert worker().call("POST", "/.well-known/fencing/seal", b, read.seals).kind == "seal-lost"


def test_g9_seals_that_stand_are_presented_and_not_raised(file: Path, worker: Workers) -> None:
    b = HandmadeLease(43)
    read = worker().call("GET", "/report", b)
    assert worker().call("PUT", "/report/7", b, read.seals).marks == read.marks
    assert worker().call("GET", "/report", b, read.seals).body == b"7"


def test_g1_a_closed_tenure_is_stale_at_every_worker(file: Path, worker: Workers) -> None:
    """G10: the holder closes in its own process, which has the claim."""
    b = HandmadeLease(43)
    read = worker().call("GET", "/report", b)
    Report(file).guard.close(b)
    for sealed in ((), read.seals):
        reply = worker().call("PUT", "/report/7", b, sealed)
        assert reply.kind == "stale-token"
        assert isinstance(reply.problem, StaleTokenError)


# --- a service that passes its sequencer on ---------------------------------------------------------------------------
class Front(Report):
    """A service that reads and writes another one's report, for the holder who has asked it."""

    def __init__(self, path: Path, behind: Callable[[], Any], *, independent: bool = False) -> None:
        super().__init__(path, independent=independent)
        self._behind = behind

    def answer(self, method: str, path: str, fields: Any) -> tuple[int, str]:
        if path == "/own":
            return super().answer(method, "/report", fields)
        inner = httpx2.Client(transport=self._behind(), base_url="https://behind.example")
        with fencelock.http.client(fencelock.http.sequencer(), inner) as client:
            answer = client.request(method, path)
            return answer.status_code, answer.text


@pytest.fixture(params=[1, 2], ids=["behind", "behind two"])
def front(request: pytest.FixtureRequest, file: Path, tmp_path: Path) -> Workers:
    """Return what starts one more worker of a service in front of others, the last of which has the report."""

    def behind(hops: int) -> Any:
        report = Report(file) if hops == 0 else Front(fronts[hops - 1], lambda: behind(hops - 1))
        return httpx2.WSGITransport(WSGIFencingMiddleware(bare_wsgi(report), lock=LOCK))

    fronts = [make_file(tmp_path / f"front{number}.db") for number in range(request.param)]
    return lambda: start_worker("wsgi", Front(fronts[-1], lambda: behind(request.param - 1)))


def test_g9_a_seal_that_a_service_behind_has_lost_is_not_made_again(file: Path, front: Workers) -> None:
    """The client remembers the seals of both, since no worker does."""
    b, read = lose_a_seal(file, front)
    reply = front().call("PUT", "/report/11", b, read.seals)
    assert isinstance(reply.error, SealLostError)
    assert value_in(file) == 2, "what A was told is written is there"


def test_g9_seals_of_a_service_behind_that_stand_are_presented(file: Path, front: Workers) -> None:
    b = HandmadeLease(43)
    read = front().call("GET", "/report", b)
    assert front().call("PUT", "/report/7", b, read.seals).seals == read.seals
    assert front().call("GET", "/report", b, read.seals).body == b"7"


def test_g2_a_service_behind_is_not_sealed_after_the_one_in_front_was_read(file: Path, front: Workers) -> None:
    b = HandmadeLease(43)
    own = front().call("GET", "/own", b)
    late = front().call("PUT", "/report/7", b, own.seals)
    assert isinstance(late.error, GuardError)
    assert "would be sealed after" in str(late.error)


# --- G2: seal before the first read -----------------------------------------------------------------------------------
@pytest.fixture
def two(file: Path) -> tuple[Report, Report]:
    """Return two resources of one lock, in one database."""
    return Report(file), Report(file, resource="stock")


def test_g2_a_resource_that_comes_after_a_read_is_refused(two: tuple[Report, Report]) -> None:
    reports, stock = (start_worker("asgi", report) for report in two)
    b = HandmadeLease(43)
    read = reports.call("GET", "/report", b)
    reply = stock.call("GET", "/report", b, read.seals)
    assert (reply.status, reply.kind) == (409, "guard-refused")
    assert isinstance(reply.problem, GuardError)
    assert two[1].guard.mark().token == 0


def test_g2_the_seal_route_seals_all_resources_before_any_is_read(two: tuple[Report, Report], file: Path) -> None:
    unrelated = fencelock.guard(url_of(file), resource="unrelated", lock="another")
    b = HandmadeLease(43)
    sealer = start_worker("wsgi", two[0], guards=[two[0].guard, two[1].guard, unrelated])
    sealed = sealer.call("POST", "/.well-known/fencing/seal", b)
    assert (sealed.status, len(set(sealed.seals))) == (204, 2)
    assert unrelated.mark().token == 0
    for report in two:
        reply = start_worker("wsgi", report).call("GET", "/report", b, sealed.seals)
        assert (reply.status, len(reply.marks)) == (200, 1)
        assert reply.seals[0] in sealed.seals


def test_g2_an_independent_resource_may_come_later(file: Path) -> None:
    b = HandmadeLease(43)
    read = start_worker("asgi", Report(file)).call("GET", "/report", b)
    later = start_worker("asgi", Report(file, resource="stock", independent=True))
    reply = later.call("PUT", "/report/7", b, read.seals)
    assert (reply.status, len(reply.marks)) == (200, 1)


def test_g2_one_guard_of_several_resources_tells_a_seal_for_each(file: Path) -> None:
    report = Report(file)
    report.guard = fencelock.guard(url_of(file), resources=[RESOURCE, "stock"], lock=LOCK)
    reply = start_worker("asgi", report).call("GET", "/report", HandmadeLease(43))
    assert len(set(reply.seals)) == 2


def test_more_resources_than_a_client_could_repeat_are_not_sealed(file: Path) -> None:
    names = [[f"r{number}" for number in range(first, first + 64)] for first in range(0, MAX_SEAL_IDS, 64)]
    guards = [fencelock.guard(url_of(file), resources=some, lock=LOCK) for some in (*names, ["one more"])]
    worker = start_worker("wsgi", Report(file), guards=guards)
    sealed = worker.call("POST", "/.well-known/fencing/seal", HandmadeLease(43))
    assert sealed.kind == "guard-refused"
    assert len(set(sealed.seals)) == MAX_SEAL_IDS
    assert guards[-1].mark().token == 0
    assert len(sealed.field("fencing-mark") or "") + 17 * MAX_SEAL_IDS < 8_000, "with tokens of 19 digits, too"
    again = start_worker("asgi", Report(file), guards=guards[:-1])
    reply = again.call("POST", "/.well-known/fencing/seal", HandmadeLease(43), sealed.seals)
    assert (reply.status, reply.marks) == (204, sealed.marks)


# --- G14: a retried request -------------------------------------------------------------------------------------------
def test_g14_a_retry_is_played_back_by_another_worker_also_to_a_stale_holder(file: Path, worker: Workers) -> None:
    a, b = HandmadeLease(42), HandmadeLease(43)
    first = worker().call("POST", "/report/5", a, key="k-1")
    assert worker().call("POST", "/report/5", b, key="k-2").status == 201
    again = worker().call("POST", "/report/5", a, first.seals, key="k-1")
    assert (again.status, again.body, again.field("fencing-replayed")) == (200, first.body, "?1")
    assert again.marks == (), "no guard has admitted it now"
    assert worker().call("POST", "/report/6", a, first.seals, key="k-3").kind == "stale-token"
    assert value_in(file) == 10


def test_a_write_that_arrives_twice_without_a_key_is_written_twice(file: Path, worker: Workers) -> None:
    """The limit that the page names: a duplicate behind a later write of the same tenure undoes that write."""
    b = HandmadeLease(43)
    sealed = worker().call("PUT", "/report/1", b).seals
    worker().call("PUT", "/report/2", b, sealed)
    assert worker().call("PUT", "/report/1", b, sealed).status == 200
    assert value_in(file) == 1


# --- other ways to use a guard ----------------------------------------------------------------------------------------
def test_observe_mode_lets_a_stale_request_pass_and_names_no_mark(file: Path, worker: Workers) -> None:
    """G6: nothing admitted it, so that the client cannot take it for fenced."""
    report = Report(file)
    report.guard.protect(RESOURCE, mode="observe")
    assert len(worker().call("PUT", "/report/1", HandmadeLease(43)).marks) == 1
    reply = worker().call("PUT", "/report/2", HandmadeLease(42))
    assert (reply.status, reply.marks) == (200, ())
    assert value_in(file) == 2


def test_a_handlers_own_transaction_is_fenced_and_tells_its_mark(file: Path) -> None:
    class OwnTransaction(Report):
        def answer(self, method: str, path: str, fields: Any) -> tuple[int, str]:
            del method, path, fields
            carried = fencelock.http.sequencer()
            self.guard.seal(carried)
            with plain(self.path) as connection:
                connection.execute("PRAGMA foreign_keys = ON")
                connection.execute("BEGIN IMMEDIATE")
                with self.guard.check(carried, connection=connection):
                    connection.execute(f"UPDATE {RESOURCE} SET value = value + 1 WHERE id = 1")
                connection.execute("COMMIT")
            return 200, "ok"

    report = OwnTransaction(file)
    report.guard.protect(RESOURCE)
    first = start_worker("asgi", report).call("PUT", "/", HandmadeLease(43))
    assert (first.status, len(first.marks)) == (200, 1)
    assert start_worker("wsgi", report).call("PUT", "/", HandmadeLease(43), first.seals).marks == first.marks
    assert start_worker("asgi", report).call("PUT", "/", HandmadeLease(42)).kind == "stale-token"
    assert value_in(file) == 2


def test_an_adapter_takes_the_requests_sequencer(file: Path) -> None:
    from sqlalchemy import create_engine, text

    from fencelock.integrations.sqlalchemy import fenced

    engine = create_engine(url_of(file))

    class WithSQLAlchemy(Report):
        def answer(self, method: str, path: str, fields: Any) -> tuple[int, str]:
            del method, path, fields
            with engine.connect() as connection, fenced(connection, fencelock.http.sequencer(), guard=self.guard):
                connection.execute(text(f"UPDATE {RESOURCE} SET value = value + 1 WHERE id = 1"))
            return 200, "ok"

    report = WithSQLAlchemy(file)
    report.guard.protect(RESOURCE)
    first = start_worker("asgi", report).call("PUT", "/", HandmadeLease(43))
    assert (first.status, len(first.marks)) == (200, 1)
    assert start_worker("asgi", report).call("PUT", "/", HandmadeLease(43), first.seals).status == 200
    assert start_worker("wsgi", report).call("PUT", "/", HandmadeLease(42)).kind == "stale-token"
    assert value_in(file) == 2
    engine.dispose()
