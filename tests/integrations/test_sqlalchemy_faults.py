"""SQLAlchemy over a server: the number of round trips of a block, and the error when one of them is lost."""

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from fencelock import BlockLostError, FencelockError, GuardError, OutcomeUnknownError, SourceUnavailableError
from fencelock.integrations.sqlalchemy import fenced
from tests.integrations.alchemy import TARGETS, Stack, write
from tests.integrations.databases import GuardedDatabase, open_guarded
from tests.integrations.proxies import proxy_before
from tests.support.guards import HandmadeLease
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide


MAX_LOST = 40
"""More requests than a block has."""
PING = text("SELECT 1")


MORE_TRIPS = 2
"""The first statement presents the lease, the last one asks whether the transaction is still the same."""
NUMBER = {"postgres": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}
"""By which the server knows a session."""
SESSION = {
    "postgres": "SELECT 1 FROM pg_stat_activity WHERE pid = {}",
    "mysql": "SELECT 1 FROM information_schema.processlist WHERE id = {}",
}
"""Has a row until the server has ended that session."""
only_postgres = pytest.mark.parametrize("guarded", ["postgres"], indirect=True)


@pytest.fixture(params=["postgres", "mysql"])
def guarded(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[GuardedDatabase]:
    with open_guarded(request.param, tmp_path, request.getfixturevalue) as place:
        yield place


@pytest.fixture
def proxy(guarded: GuardedDatabase) -> Iterator[Any]:
    with proxy_before(guarded) as the_proxy:
        yield the_proxy


def behind(proxy: Any, guarded: GuardedDatabase) -> GuardedDatabase:
    """Return the same database by way of the proxy, for engines."""
    first, second = guarded.engines
    return dataclasses.replace(guarded, engines=(proxy.url(first), proxy.url(second)))


def trips(proxy: Any, act: Callable[[], Any]) -> int:
    before = len(proxy.requests)
    act()
    return len(proxy.requests) - before


@pytest.mark.parametrize("target", TARGETS)
def test_a_block_takes_two_trips_more_than_a_transaction(guarded: GuardedDatabase, proxy: Any, target: str) -> None:
    stack = Stack(target, behind(proxy, guarded))
    lease = HandmadeLease(5)
    guard = guarded.guard()
    stack.fenced(lease, write("first"), guard=guard)

    def alone() -> None:
        stack.run(lambda it: (it.execute(PING), it.commit()))

    alone()
    usual = trips(proxy, alone)
    assert trips(proxy, lambda: stack.fenced(lease, lambda it: it.execute(PING), guard=guard)) == usual + MORE_TRIPS
    stack.close()


@pytest.mark.parametrize("target", ["session", "async connection"])
@pytest.mark.parametrize("lose", ["drop_request", "drop_reply"])
def test_one_loss_is_reported_correctly_and_the_next_block_works(
    guarded: GuardedDatabase, proxy: Any, target: str, lose: str
) -> None:
    stack = Stack(target, behind(proxy, guarded))
    lease, guard = HandmadeLease(5), guarded.guard()
    for nth in range(1, MAX_LOST):
        stack.fenced(lease, write("before"), guard=guard)
        fault = getattr(proxy, lose)(nth)
        error: Exception | None = None
        try:
            stack.fenced(lease, write("done"), guard=guard)
        except Exception as caught:
            error = caught
        if error is None:
            assert guarded.value() == "done", f"the loss of {nth} was told as done"
        elif not isinstance(error, OutcomeUnknownError):
            assert guarded.value() == "before", f"the loss of {nth} was told as not done: {error}"
        assert lease.open_transactions == 0
        if not fault.has_happened:
            assert nth > 2
            stack.close()
            return
        stack.free()
    raise AssertionError(f"a block has more than {MAX_LOST} requests")


def test_an_unconfirmed_commit_is_reported_as_unknown(guarded: GuardedDatabase, proxy: Any) -> None:
    stack = Stack("session", behind(proxy, guarded))
    lease = HandmadeLease(5)

    def last_reply_lost(session: Any) -> None:
        write("done")(session)
        proxy.drop_reply(MORE_TRIPS)

    with pytest.raises(OutcomeUnknownError, match="at COMMIT") as caught:
        stack.fenced(lease, last_reply_lost, guard=guarded.guard())
    assert not caught.value.definite
    assert guarded.value() == "done"
    stack.fenced(lease, write("next"), guard=guarded.guard())
    assert guarded.value() == "next"
    stack.close()


@pytest.mark.parametrize("target", TARGETS)
def test_g3_a_block_that_is_idle_for_longer_than_its_lease_is_ended(guarded: GuardedDatabase, target: str) -> None:
    stack = Stack(target, guarded)
    lease = HandmadeLease(5)
    guarded.guard().seal(lease)
    lease.remaining = lambda: 1.0

    def idle(it: Any) -> None:
        write("frozen")(it)
        number = it.execute(text(NUMBER[guarded.kind])).scalar_one()
        wait_until(lambda: not guarded.rows(SESSION[guarded.kind].format(number)))
        it.execute(PING)

    with pytest.raises(BlockLostError, match="idle for longer than it may"):
        stack.fenced(lease, idle)
    assert guarded.value() == "first"
    lease.remaining = lambda: 30.0
    stack.fenced(lease, write("next"))
    assert guarded.value() == "next"
    stack.close()


def test_a_block_that_finds_no_database_is_definite(guarded: GuardedDatabase) -> None:
    """The tenure has sealed before, so that the guard's own client is not asked."""
    lease, guard = HandmadeLease(5), guarded.guard()
    guard.seal(lease)
    engine = create_engine(make_url(guarded.engines[0]).set(port=1))
    with Session(engine) as session, pytest.raises(SourceUnavailableError, match="the block has not begun"):
        fenced(session, lease, guard=guard).__enter__()
    assert lease.open_transactions == 0


@only_postgres
def test_a_database_without_the_guards_schema_is_reported(guarded: GuardedDatabase) -> None:
    guarded.rows("DROP SCHEMA fencelock CASCADE")
    stack = Stack("session", guarded)
    with pytest.raises(FencelockError, match="fencelock install --guard"):
        stack.fenced(HandmadeLease(5), write("new"))
    stack.close()


@only_postgres
def test_a_trigger_that_commit_defers_may_write_to_protected_tables(guarded: GuardedDatabase) -> None:
    guarded.rows("""
        CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN UPDATE reports SET value = 'at commit'; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER later AFTER UPDATE ON plain DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION later();
    """)
    stack = Stack("session", guarded)
    stack.fenced(HandmadeLease(5), write("new", "plain"))
    assert guarded.value() == "at commit"
    stack.close()


@only_postgres
def test_an_observed_block_that_lost_its_transaction_fails(guarded: GuardedDatabase) -> None:
    """In observe mode a stale lease presents nothing, so there is no presented resource to confirm."""
    guarded.guard().protect("reports", mode="observe")
    guarded.guard().seal(HandmadeLease(6))
    stack = Stack("connection", guarded)
    stack.fenced(HandmadeLease(5), write("observed"))

    def swallow(connection: Any) -> None:
        write("lost")(connection)
        with pytest.raises(DBAPIError):
            connection.execute(text("SELECT 1 / 0"))

    with pytest.raises(GuardError, match="its error was caught"):
        stack.fenced(HandmadeLease(5), swallow)
    assert guarded.value() == "observed"
    stack.close()


def test_the_proof_is_in_no_log(guarded: GuardedDatabase, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    stack = Stack("session", guarded, echo="debug")
    lease = HandmadeLease(5, claim="a-claim-that-nobody-may-see")
    stack.fenced(lease, write("new"))
    assert "UPDATE reports" in caplog.text
    assert lease.sequencer.proof not in caplog.text
    stack.close()
