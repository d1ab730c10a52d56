"""Attacks on a service that enforces tokens by itself, whatever language it is written in.

Promise: each check says one thing that the service has to do, and fails if it does not. Never: a check that needs luck;
what has to happen at a certain moment is held there by the proxy between the first process and the database.
"""

import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any

import pymysql
import pytest

from fencelock import ImplausibleTokenError, SealLostError, StaleTokenError, WrongLockError
from tests.languages.services import Reply
from tests.languages.stage import Client, Database, Stage
from tests.sql.dialect import run
from tests.sql.mysql.dialect import SHOWN_ANEW_S
from tests.sql.postgres.fix_postgres import Database as PostgresDatabase
from tests.support.guards import RESOURCE, sequencer
from tests.support.helpers import wait_until

NOT_THE_SEAL = "0123456789abcdef"


def seal_request(requests: list[list[str]]) -> int:
    """Return which request's reply tells that the seal is committed, counted from 1."""
    begins = [any(text.startswith(("BEGIN", "START")) for text in statements) for statements in requests]
    return begins.index(True)


def check_problem(reply: Reply, status: int, kind: str) -> dict[str, str]:
    """Check that a reply is this problem, and return its members."""
    assert reply.status == status, f"{reply.status} {reply.body}"
    assert reply.headers["Content-Type"] == "application/problem+json"
    assert reply.headers["Cache-Control"] == "no-store"
    members = json.loads(reply.body)
    assert isinstance(members, dict)
    assert members["status"] == status
    assert str(members["type"]).endswith(kind), members
    return members


# --- the checks -------------------------------------------------------------------------------------------------------


def admits_the_holder(stage: Stage) -> None:
    client = stage.client()
    client.put(stage.first, "tables and chairs: Sitzmöbel")
    assert client.get(stage.second) == "tables and chairs: Sitzmöbel"
    client.put(stage.first, "chairs")
    assert client.ask(stage.second, "GET").headers["Cache-Control"] == "no-store"
    assert stage.written() == "chairs"


def asks_for_a_token(stage: Stage) -> None:
    check_problem(stage.second.ask("PUT", "nobody's"), 428, "token-required")


def refuses_what_is_no_token(stage: Stage) -> None:
    good = f'"{stage.client().sequencer}"'
    others = [
        '""',
        "43",
        '"fl2."',
        f"{good}, {good}",
        good[1:-1],
        f"{good};a=1",
        f'"{good[1:-1]}x"',
        '"' + 2000 * "f" + '"',
    ]
    for fields in [[good, good], *([other] for other in others)]:
        check_problem(stage.second.ask("PUT", "forged", {"Fencing-Token": fields}), 400, "malformed-token")
    check_problem(
        stage.second.ask("PUT", "forged", {"Fencing-Token": [good], "Fencing-Sealed": ["1"]}), 400, "malformed-token"
    )


def refuses_a_token_that_the_database_does_not_take_for_one(stage: Stage) -> None:
    parts = str(stage.client().sequencer).split(".")
    parts[5] = str(2**63)
    reply = stage.second.ask("PUT", "forged", {"Fencing-Token": [f'"{".".join(parts)}"']})
    check_problem(reply, 400, "malformed-token")


def refuses_an_implausible_token(stage: Stage) -> None:
    check_problem(Client(sequencer(2**63 - 1)).ask(stage.second, "PUT", "forged"), 400, "implausible-token")


def refuses_another_lock(stage: Stage) -> None:
    members = check_problem(stage.client(lock="other").ask(stage.second, "PUT", "other's"), 403, "wrong-lock")
    assert members["resource"] == RESOURCE


def refuses_a_stale_token(stage: Stage) -> None:
    old, new = stage.client(), stage.client()
    old.get(stage.first)
    new.put(stage.second, "new")
    for method in ("GET", "PUT"):
        members = check_problem(old.ask(stage.first, method, "old"), 412, "stale-token")
        assert members["token"] == str(old.sequencer.token)
        assert members["mark"] == str(new.sequencer.token)
        assert members["resource"] == RESOURCE
    old.seals.clear()
    check_problem(old.ask(stage.first, "PUT", "old"), 412, "stale-token")
    assert stage.written() == "new"


def refuses_a_token_of_two_leases(stage: Stage) -> None:
    client = stage.client()
    client.put(stage.second, "mine")
    other = Client(sequencer(client.sequencer.token, claim="another"))
    check_problem(other.ask(stage.second, "PUT", "other's"), 409, "token-collision")


def raises_no_mark_that_was_sealed_before(stage: Stage) -> None:
    base, old, new = stage.client(), stage.client(), stage.client()
    new.get(stage.first)
    stage.guard.lower(base.sequencer.token, reason="as a failover does that loses the seal")
    old.put(stage.first, "old")
    members = check_problem(new.ask(stage.second, "PUT", "new"), 409, "seal-lost")
    assert (members["token"], members["mark"]) == (str(new.sequencer.token), str(old.sequencer.token))
    assert stage.written() == "old", "an acknowledged write was lost"


def tells_of_its_seal_in_a_refusal_of_its_own(stage: Stage) -> None:
    """The refusal says what the report is, so that the client has read it."""
    stage.client().put(stage.second, "final: chairs")
    client = stage.client()
    reply = client.ask(stage.second, "PUT", "draft: tables")
    assert check_problem(reply, 409, "about:blank")["detail"] == "the report is final"
    assert client.seals, "the client was not told of a seal"
    assert stage.written() == "final: chairs"


def answers_other_errors_of_the_database_as_its_own(stage: Stage) -> None:
    client = stage.client()
    check_problem(client.ask(stage.second, "PUT", "forbidden"), 500, "about:blank")
    client.put(stage.second, "permitted")


def seals_nothing_after_others(stage: Stage) -> None:
    client = stage.client()
    client.seals = [f'"{NOT_THE_SEAL}"']
    check_problem(client.ask(stage.second, "PUT", "late"), 409, "guard-refused")


def says_that_the_database_is_away(stage: Stage) -> None:
    client = stage.client()
    client.put(stage.first, "before")
    stage.proxy.refuse()
    stage.proxy.cut()
    try:
        reply = client.ask(stage.first, "PUT", "meanwhile")
        if reply.status == 200:
            raise AssertionError("a write without a database was acknowledged")
        check_problem(reply, 503, "unavailable")
        assert int(reply.headers["Retry-After"]) > 0
    finally:
        stage.proxy.accept()
    client.put(stage.first, "after")


def says_that_it_does_not_know_the_outcome(stage: Stage) -> None:
    number = len(stage.requests_of_a_put())
    fault = stage.proxy.drop_reply(number)
    client = stage.client()
    check_problem(client.ask(stage.first, "PUT", "committed"), 504, "outcome-unknown")
    fault.wait()
    assert stage.written() == "committed"


def loses_nothing_when_frozen_anywhere(stage: Stage) -> None:
    requests = stage.requests_of_a_put()
    with closing(stage.database.connect()) as watching:
        for number in range(seal_request(requests), len(requests)):
            overtake_at(stage, number, lambda: end_holders(stage.database, watching))


def has_its_frozen_transaction_ended(stage: Stage) -> None:
    """It takes as long as the page says that a transaction may be idle: it is none of the CHECKS."""
    overtake_at(stage, len(stage.requests_of_a_put()) - 1, lambda: False)


def overtake_at(stage: Stage, number: int, end_the_frozen: Callable[[], bool]) -> None:
    """Freeze the first process before it has seen the reply to a request, and have a successor write meanwhile."""
    with frozen_at(stage, number) as (old, reply):
        new = stage.client()
        with ThreadPoolExecutor(1) as successor:
            work = successor.submit(new.read_and_put, stage.second, "new")
            wait_until(lambda: work.done() or end_the_frozen())
            work.result()
    assert reply.result().status in {412, 503, 504}, f"{reply.result().status} after request {number}"
    assert stage.written() == "new", f"an acknowledged write was lost to a process frozen after request {number}"
    check_problem(old.ask(stage.first, "PUT", "old"), 412, "stale-token")


@contextmanager
def frozen_at(stage: Stage, number: int) -> Iterator[tuple[Client, Future[Reply]]]:
    """Freeze the first process in a PUT, before it has seen the reply to one of its requests."""
    stage.client().get(stage.first)  # It connects.
    old, fault = stage.client(), stage.proxy.hold_reply(number)
    with ThreadPoolExecutor(1) as sender:
        reply = sender.submit(old.ask, stage.first, "PUT", "old")
        fault.wait()
        with stage.first.frozen():
            fault.release()
            yield old, reply


def end_holders(database: Database, watching: Any) -> bool:
    """End the sessions that make others wait, as the server does when they are idle for too long. Return False."""
    if isinstance(database, PostgresDatabase):
        waiting = "SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity WHERE datname = current_database()"
        run(watching, f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS blocking (pid)")
    else:
        time.sleep(SHOWN_ANEW_S)
        for (number,) in run(watching, BLOCKING):
            with suppress(pymysql.OperationalError):  # It has ended meanwhile.
                run(watching, f"KILL {number}")
    return False


BLOCKING = """
    SELECT DISTINCT trx_mysql_thread_id FROM information_schema.INNODB_LOCK_WAITS
    JOIN information_schema.INNODB_TRX ON trx_id = blocking_trx_id
"""


def speaks_to_the_client_in_python(stage: Stage) -> None:
    """Each refusal becomes the error that a guard in the client's own process raises, with its numbers."""
    old, new = stage.lease(), stage.lease()
    with stage.api(old) as api, stage.api(new) as successor:
        assert api.put("/report", content="old").status_code == 200
        assert api.get("/report").text == "old"
        assert successor.put("/report", content="new").text == "new"
        successor.put("/report", content="final")
        assert successor.put("/report", content="draft").status_code == 409, (
            "a refusal of the service's own is an answer"
        )
        with pytest.raises(StaleTokenError) as stale:
            api.put("/report", content="late")
        assert (stale.value.token, stale.value.mark, stale.value.resource) == (old.token, new.token, RESOURCE)
        stage.guard.lower(old.token, reason="as a failover does that loses the seal")
        with pytest.raises(SealLostError):
            successor.put("/report", content="void")
    for presented, error in [
        (stage.client(lock="other").sequencer, WrongLockError),
        (sequencer(2**63 - 1), ImplausibleTokenError),
    ]:
        with stage.api(presented) as api, pytest.raises(error):
            api.put("/report", content="refused")
    assert stage.written() == "final"


def shows_no_secret(stage: Stage) -> None:
    for log in (stage.first.log, stage.second.log):
        assert not [client for client in stage.clients if client.sequencer.proof in log]


Check = Callable[[Stage], None]
CHECKS: tuple[Check, ...] = (
    admits_the_holder,
    asks_for_a_token,
    refuses_what_is_no_token,
    refuses_a_token_that_the_database_does_not_take_for_one,
    refuses_an_implausible_token,
    refuses_another_lock,
    refuses_a_stale_token,
    refuses_a_token_of_two_leases,
    raises_no_mark_that_was_sealed_before,
    tells_of_its_seal_in_a_refusal_of_its_own,
    answers_other_errors_of_the_database_as_its_own,
    seals_nothing_after_others,
    says_that_the_database_is_away,
    says_that_it_does_not_know_the_outcome,
    loses_nothing_when_frozen_anywhere,
    speaks_to_the_client_in_python,
    shows_no_secret,
)


def attack(stage: Stage, checks: Iterable[Check] = CHECKS) -> dict[str, str]:
    """Run the checks; return the traceback of each that fails, by its name."""
    failed = {}
    for check in checks:
        try:
            check(stage)
        except (Exception, pytest.fail.Exception):
            failed[check.__name__] = traceback.format_exc() + stage.first.log
    return failed
