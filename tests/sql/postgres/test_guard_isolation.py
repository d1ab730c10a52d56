"""G2 and G3 on PostgreSQL, at every isolation level: two or three connections, stepped statement by statement.

No step is timed: one that has to wait runs in a thread, and the next is taken once the server says that it waits.
"""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.errors import SerializationFailure

import fencelock
from fencelock import Guard, GuardError, SourceUnavailableError, StaleTokenError
from fencelock.stores.postgres.guard import block as guard_block
from fencelock.stores.postgres.guard import codec as guard_codec
from tests.guards import LOCK, RESOURCE, HandmadeLease, sequencer
from tests.sql.postgres.guarded import Guarded, Step

LEVELS = ["read committed", "repeatable read", "serializable"]
LOOKS_BACK = LEVELS[1:]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Any:
    return request.param


def guard_at(guarded: Guarded, level: str, *resources: str) -> Guard:
    """Return a guard whose transactions have this level by the URL's own options."""
    escaped = level.replace(" ", "\\ ")
    return guarded.guard(*resources, options=f"-c default_transaction_isolation={escaped}")


def write(native: psycopg.Connection, value: str, key: int = 1) -> None:
    native.execute("UPDATE reports SET value = %s WHERE id = %s", (value, key))


def seal(guarded: Guarded, token: int) -> Callable[[], None]:
    return lambda: guarded.guard().seal(HandmadeLease(token))


# --- G3: a seal and a transaction that has presented exclude each other ---------------------------
def test_g3_a_seal_waits_for_a_transaction_that_has_presented(guarded: Guarded, level: str) -> None:
    lease = guarded.sealed(5)
    with guard_at(guarded, level).transaction(lease) as own:
        assert own.execute("SHOW transaction_isolation").fetchone() == (level,)
        sealing = Step(seal(guarded, 6))
        guarded.wait_for_anybody()
        write(own, "in time")
        assert guarded.guard().mark().token == 5
    sealing.end()
    assert (guarded.guard().mark().token, guarded.value()) == (6, "in time")


def test_g2_the_next_holder_reads_what_the_last_one_committed(guarded: Guarded, level: str) -> None:
    """The seal comes before the snapshot, so at no level is a write lost that was committed before it."""
    lease, next_lease = guarded.sealed(5), HandmadeLease(6)

    def take_over() -> Any:
        with guard_at(guarded, level).transaction(next_lease) as native:
            return native.execute("SELECT value FROM reports").fetchone()

    with guarded.client(level) as old:
        old.execute("BEGIN")
        guarded.present(old, lease.sequencer.token)
        taking_over = Step(take_over)
        guarded.wait_for_anybody()
        write(old, "committed last")
        old.execute("COMMIT")
    assert taking_over.end() == ("committed last",)


def test_g3_a_transaction_that_presents_during_a_seal_waits_and_is_refused(guarded: Guarded, level: str) -> None:
    lease = guarded.sealed(5)
    with guarded.client() as sealing, guarded.client(level) as old:
        sealing.execute("BEGIN")
        sealing.execute("SELECT fencelock.seal(%s, %s)", (str(sequencer(6)), RESOURCE))
        by_hand = Step(lambda: guarded.present(old, 5))
        guarded.wait_for_lock(old)
        sealing.execute("COMMIT")
        with pytest.raises(psycopg.Error) as caught:
            by_hand.end()
    assert caught.value.sqlstate == ("FL002" if level == LEVELS[0] else "40001")
    with pytest.raises(StaleTokenError), guard_at(guarded, level).transaction(lease):
        raise AssertionError("not reached")


def test_g3_a_guarded_block_that_begins_during_a_seal_is_stale_at_every_level(guarded: Guarded, level: str) -> None:
    lease = guarded.sealed(5)

    def enter() -> None:
        with guard_at(guarded, level).transaction(lease):
            raise AssertionError("not reached")

    with guarded.client() as sealing:
        sealing.execute("BEGIN")
        sealing.execute("SELECT fencelock.seal(%s, %s)", (str(sequencer(6)), RESOURCE))
        entering = Step(enter)
        guarded.wait_for_anybody()
        sealing.execute("COMMIT")
    with pytest.raises(StaleTokenError) as caught:
        entering.end()
    assert (caught.value.token, caught.value.mark) == (5, 6)


def test_g3_a_seal_that_is_rolled_back_lets_the_holder_go_on(guarded: Guarded, level: str) -> None:
    lease = guarded.sealed(5)

    def enter() -> None:
        with guard_at(guarded, level).transaction(lease) as native:
            write(native, "still the holder")

    with guarded.client() as sealing:
        sealing.execute("BEGIN")
        sealing.execute("SELECT fencelock.seal(%s, %s)", (str(sequencer(6)), RESOURCE))
        entering = Step(enter)
        guarded.wait_for_anybody()
        sealing.execute("ROLLBACK")
    entering.end()
    assert (guarded.guard().mark().token, guarded.value()) == (5, "still the holder")


def test_h7_newcomers_do_not_overtake_a_waiting_seal(guarded: Guarded, level: str) -> None:
    """Row locks would let them: an old holder's overlapping transactions could keep its successor out for ever."""
    guarded.sealed(5)
    with guarded.client(level) as first, guarded.client(level) as second:
        first.execute("BEGIN")
        guarded.present(first, 5)
        sealing = Step(seal(guarded, 6))
        guarded.wait_for_anybody()
        newcomer = Step(lambda: guarded.present(second, 5))
        guarded.wait_for_lock(second)
        write(first, "in time")
        first.execute("COMMIT")
        sealing.end()
        with pytest.raises(psycopg.Error) as caught:
            newcomer.end()
    assert caught.value.sqlstate in ("FL002", "40001")
    assert (guarded.guard().mark().token, guarded.value()) == (6, "in time")


def test_g3_transactions_of_one_holder_do_not_wait_for_each_other(guarded: Guarded, level: str) -> None:
    lease, guard = guarded.sealed(5), guard_at(guarded, level)
    with guarded.database.connect() as native:
        native.execute("BEGIN")
        guarded.present(native, 5)
        native.execute("INSERT INTO reports SELECT number, '' FROM generate_series(2, 4) AS number")
        native.execute("COMMIT")
    others = [guard_at(guarded, level).transaction(lease) for _ in range(3)]
    with guard.transaction(lease) as own:
        for key, other in enumerate(others, start=2):
            entering = Step(other.__enter__)
            native = entering.end()
            native.execute("SET LOCAL lock_timeout = '1ms'")
            write(native, "together", key)
        write(own, "together")
        for other in others:
            # Each ends while the others are open.
            other.__exit__(None, None, None)
    assert guarded.database.value("SELECT count(*) FROM reports WHERE value = 'together'") == 4


def test_g3_another_process_of_the_same_holder_does_not_wait_for_the_first(guarded: Guarded) -> None:
    """It seals what is sealed by its own lease: nothing to write, so nobody to wait for."""
    with guarded.guard().transaction(HandmadeLease(5)) as own, guarded.client() as by_hand:
        Step(lambda: guarded.guard().seal(HandmadeLease(5))).end()
        by_hand.execute("SET lock_timeout = '1ms'")
        by_hand.execute("SELECT fencelock.seal(%s, %s)", (str(sequencer(5)), RESOURCE))
        by_hand.execute("BEGIN")
        Step(lambda: guarded.guard().seal(HandmadeLease(5), connection=by_hand)).end()
        by_hand.execute("ROLLBACK")
        write(own, "mine")


# --- G2: a snapshot from before the raise ---------------------------------------------------------
def look(native: psycopg.Connection) -> None:
    """Begin, and have the transaction's snapshot taken."""
    native.execute("BEGIN")
    native.execute("SELECT * FROM reports").fetchall()


@pytest.mark.parametrize("token", [5, 6])
def test_g2_a_snapshot_older_than_the_raise_is_refused(guarded: Guarded, level: str, token: int) -> None:
    """By the old holder's token, and by the new one's: it would not see what the old holder has committed meanwhile."""
    guarded.sealed(5)
    with guarded.client(level) as native:
        look(native)
        guarded.sealed(6)
        if level == LEVELS[0] and token == 6:
            guarded.present(native, token)
            return
        with pytest.raises(psycopg.Error) as caught:
            guarded.present(native, token)
    assert caught.value.sqlstate == ("FL002" if level == LEVELS[0] else "40001")


@pytest.mark.parametrize("old", LOOKS_BACK)
def test_g2_a_check_on_an_old_snapshot_says_what_to_do(guarded: Guarded, old: str) -> None:
    guarded.sealed(5)
    with guarded.client(old) as native:
        look(native)
        lease = guarded.sealed(6)
        with pytest.raises(GuardError, match=r"as it was before a mark was raised.*begin it anew"):
            guarded.guard().check(lease, connection=native)
        native.execute("ROLLBACK")
        look(native)
        guarded.guard().check(lease, connection=native)


@pytest.mark.parametrize("old", LOOKS_BACK)
def test_g2_a_first_mark_that_is_younger_than_the_snapshot_is_noticed(guarded: Guarded, old: str) -> None:
    with guarded.client(old) as native:
        look(native)
        lease = HandmadeLease(5)
        with guarded.client(old) as other:
            look(other)
            with pytest.raises(GuardError, match=r"call guard\.seal\(lease\) before you begin"):
                guarded.guard("new").check(lease, connection=other)
        guarded.guard("new").seal(lease)
        with pytest.raises(GuardError, match=r"as it was before a mark was raised"):
            guarded.guard("new").check(lease, connection=native)
    assert [mark.lock for mark in guarded.guard("new").marks().values()] == [LOCK]


@pytest.mark.parametrize("old", LOOKS_BACK)
def test_g2_a_mark_is_not_raised_in_a_transaction_that_looks_back(guarded: Guarded, old: str) -> None:
    with guarded.client(old) as native:
        native.execute("BEGIN")
        with pytest.raises(GuardError, match="before you begin it"):
            guarded.guard().seal(HandmadeLease(5), connection=native)
        native.execute("ROLLBACK")
        native.execute("BEGIN")
        with pytest.raises(psycopg.Error, match="a mark is raised at READ COMMITTED") as caught:
            native.execute("SELECT fencelock.seal(%s, %s)", (str(sequencer(5)), RESOURCE))
        assert caught.value.sqlstate == "FL006"
    assert guarded.guard().mark().token == 0


# --- seals in the caller's own transaction --------------------------------------------------------
def test_g2_at_read_committed_the_callers_transaction_may_seal(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    with guarded.client() as native:
        native.execute("BEGIN")
        guard.seal(lease, connection=native)
        with guard.check(lease, connection=native):
            write(native, "mine")
        assert guard.mark().token == 0, "nobody else sees it yet"
        native.execute("COMMIT")
    assert (guard.mark().token, guarded.value()) == (5, "mine")


def test_g2_a_seal_that_the_caller_rolls_back_is_made_again(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    with guarded.client() as native:
        for end in ("ROLLBACK", "COMMIT"):
            native.execute("BEGIN")
            guard.seal(lease, connection=native)
            native.execute(end)
    assert guard.mark().token == 5
    with guard.transaction(lease) as own:
        write(own, "then as ever")


def test_g9_a_seal_that_was_seen_committed_is_not_made_again(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), guarded.sealed(5)
    guard.lower(3, reason="as a restore does")
    with guarded.client() as native:
        native.execute("BEGIN")
        with pytest.raises(fencelock.SealLostError):
            guard.seal(lease, connection=native)


def test_g4_a_seals_commit_is_flushed_whatever_the_session_wants(guarded: Guarded) -> None:
    with guarded.client() as native:
        native.execute("SET synchronous_commit = off")
        native.execute("BEGIN")
        native.execute("SELECT fencelock.seal(%s, %s)", (str(sequencer(5)), RESOURCE))
        assert native.execute("SHOW synchronous_commit").fetchone() == ("on",)
        native.execute("COMMIT")
        assert native.execute("SHOW synchronous_commit").fetchone() == ("off",)
        native.execute("BEGIN")
        native.execute("SET LOCAL synchronous_commit = remote_write")
        native.execute("SELECT fencelock.seal(%s, %s)", (str(sequencer(6)), RESOURCE))
        assert native.execute("SHOW synchronous_commit").fetchone() == ("remote_write",)


# --- conflicts that are the user's own ------------------------------------------------------------
def test_a_conflict_at_the_end_of_a_block_is_psycopgs_own_error(guarded: Guarded) -> None:
    lease = guarded.sealed(5)
    guard = guard_at(guarded, "serializable")
    with guarded.database.connect() as native, native.transaction():
        guarded.present(native, 5)
        native.execute("INSERT INTO reports VALUES (2, 'second')")

    def skew() -> None:
        with guard.transaction(lease) as own:
            own.execute("SELECT sum(length(value)) FROM reports").fetchall()
            with guarded.client("serializable") as other:
                other.execute("BEGIN")
                guarded.present(other, 5)
                other.execute("SELECT sum(length(value)) FROM reports").fetchall()
                write(other, "other")
                write(own, "own", 2)
                other.execute("COMMIT")

    with pytest.raises(SerializationFailure):
        skew()
    assert guarded.value() == "other"
    with guard.transaction(lease) as own:
        write(own, "again")


def test_g3_resources_are_held_in_one_order(guarded: Guarded) -> None:
    """Two holders of two resources, named in opposite orders, wait for each other's end and in no circle."""
    guarded.guard("a", "b").seal(HandmadeLease(5))
    with guarded.guard("b", "a").transaction(HandmadeLease(5)):
        sealing = Step(lambda: guarded.guard("b", "a").seal(HandmadeLease(6)))
        guarded.wait_for_anybody()
    sealing.end()
    assert guarded.guard("a").mark().token == 6


def test_g3_a_seal_that_gives_up_leaves_no_session_that_waits(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not see that a client has gone whose session waits; each attempt would leave one more."""
    monkeypatch.setattr(guard_codec, "WAITING_MS", 50)
    guarded.sealed(5)
    with guarded.client() as native, native.transaction():
        guarded.present(native, 5)
        for setting in ("0", "1min", "10ms"):
            guard = guarded.guard(options=f"-c lock_timeout={setting}")
            with pytest.raises(SourceUnavailableError, match="open transaction holds the lock") as caught:
                guard.seal(HandmadeLease(6))
            assert caught.value.definite
        assert guarded.database.rows("SELECT pid FROM pg_locks WHERE NOT granted") == []
    guarded.guard().seal(HandmadeLease(6))


# --- round trips ----------------------------------------------------------------------------------
def test_a_guarded_transaction_costs_no_round_trip_more_than_an_unguarded_one(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[int] = []
    exchanged = guard_block.PostgresGuardConnection._exchange

    def counted(connection: Any, statements: Any) -> Any:
        trips.append(len(statements))
        return exchanged(connection, statements)

    monkeypatch.setattr(guard_block.PostgresGuardConnection, "_exchange", counted)
    guard, lease = guarded.guard(), HandmadeLease(5)
    guard.seal(lease)
    assert len(trips) == 2
    trips.clear()
    with guard.transaction(lease) as native:
        assert len(trips) == 1
        write(native, "x")
    assert len(trips) == 2
