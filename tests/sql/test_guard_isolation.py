"""G2 and G3 on an SQL server, at every isolation level: two or three connections, stepped statement by statement.

No step is timed: one that has to wait runs in a thread, and the next is taken when the server says that it waits.
"""

from collections.abc import Callable
from typing import Any

import pytest

import fencelock
from fencelock import StaleTokenError
from tests.sql.dialect import run
from tests.sql.guarded import Guarded, Step, write
from tests.support.guards import RESOURCE, HandmadeLease, sequencer

pytestmark = pytest.mark.server_wide


def seal(guarded: Guarded, token: int) -> Callable[[], None]:
    return lambda: guarded.guard().seal(HandmadeLease(token))


# --- G3: a seal and a transaction that has presented exclude each other ---------------------------
def test_g3_a_seal_waits_for_a_transaction_that_has_presented(guarded: Guarded, level: str) -> None:
    lease = guarded.sealed(5)
    with guarded.guard_at(level).transaction(lease) as own:
        assert guarded.sql.level_of(own) == level
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
        with guarded.guard_at(level).transaction(next_lease) as native:
            return run(native, "SELECT value FROM reports")

    with guarded.client(level) as old:
        run(old, "START TRANSACTION")
        guarded.present(old, lease.sequencer.token)
        taking_over = Step(take_over)
        guarded.wait_for_anybody()
        write(old, "committed last")
        run(old, guarded.sql.commit_presented)
    assert taking_over.end() == [("committed last",)]


def test_g3_a_transaction_that_presents_during_a_seal_waits_and_is_refused(guarded: Guarded, level: str) -> None:
    lease = guarded.sealed(5)
    with guarded.client() as sealing, guarded.client(level) as old:
        guarded.sql.seal_in_steps(sealing, 6)
        run(old, "START TRANSACTION")
        by_hand = Step(lambda: guarded.present(old, 5))
        guarded.wait_for_lock(old)
        run(sealing, "COMMIT")
        with pytest.raises(guarded.sql.client_error) as caught:
            by_hand.end()
    assert guarded.sql.code_of(caught.value) == guarded.sql.overtaken(level)
    with pytest.raises(StaleTokenError), guarded.guard_at(level).transaction(lease):
        raise AssertionError("not reached")


def test_g3_a_guarded_block_that_begins_during_a_seal_is_stale_at_every_level(guarded: Guarded, level: str) -> None:
    lease = guarded.sealed(5)

    def enter() -> None:
        with guarded.guard_at(level).transaction(lease):
            raise AssertionError("not reached")

    with guarded.client() as sealing:
        guarded.sql.seal_in_steps(sealing, 6)
        entering = Step(enter)
        guarded.wait_for_anybody()
        run(sealing, "COMMIT")
    with pytest.raises(StaleTokenError) as caught:
        entering.end()
    assert (caught.value.token, caught.value.mark) == (5, 6)


def test_g1_a_seal_that_waits_for_a_newer_one_is_stale(guarded: Guarded) -> None:
    """It decides by the mark that it holds, not by the one that it saw before it waited."""
    guarded.sealed(5)
    with guarded.client() as sealing:
        guarded.sql.seal_in_steps(sealing, 7)
        waiting = Step(seal(guarded, 6))
        guarded.wait_for_anybody()
        run(sealing, "COMMIT")
    with pytest.raises(StaleTokenError) as caught:
        waiting.end()
    assert (caught.value.token, caught.value.mark) == (6, 7)


def test_g3_a_seal_that_is_rolled_back_lets_the_holder_go_on(guarded: Guarded, level: str) -> None:
    lease = guarded.sealed(5)

    def enter() -> None:
        with guarded.guard_at(level).transaction(lease) as native:
            write(native, "still the holder")

    with guarded.client() as sealing:
        guarded.sql.seal_in_steps(sealing, 6)
        entering = Step(enter)
        guarded.wait_for_anybody()
        run(sealing, "ROLLBACK")
    entering.end()
    assert (guarded.guard().mark().token, guarded.value()) == (5, "still the holder")


def test_h7_newcomers_do_not_overtake_a_waiting_seal(guarded: Guarded, level: str) -> None:
    """Or an old holder's overlapping transactions could keep its successor waiting for ever."""
    guarded.sealed(5)
    with guarded.client(level) as first, guarded.client(level) as second:
        run(first, "START TRANSACTION")
        guarded.present(first, 5)
        sealing = Step(seal(guarded, 6))
        guarded.wait_for_anybody()
        run(second, "START TRANSACTION")
        newcomer = Step(lambda: guarded.present(second, 5))
        guarded.wait_for_lock(second)
        write(first, "in time")
        run(first, guarded.sql.commit_presented)
        sealing.end()
        with pytest.raises(guarded.sql.client_error) as caught:
            newcomer.end()
    assert guarded.sql.code_of(caught.value) in ("FL002", guarded.sql.overtaken(level))
    assert (guarded.guard().mark().token, guarded.value()) == (6, "in time")


def test_g3_transactions_of_one_holder_do_not_wait_for_each_other(guarded: Guarded, level: str) -> None:
    lease, guard = guarded.sealed(5), guarded.guard_at(level)
    with guard.transaction(lease) as own:
        run(own, "INSERT INTO reports VALUES (2, ''), (3, ''), (4, '')")
    others = [guarded.guard_at(level).transaction(lease) for _ in range(3)]
    with guard.transaction(lease) as own:
        for key, other in enumerate(others, start=2):
            native = Step(other.__enter__).end()
            run(native, guarded.sql.wait_briefly)
            write(native, "together", key)
        write(own, "together")
        for other in others:
            # Each ends while the others are open.
            other.__exit__(None, None, None)
    assert guarded.database.value("SELECT COUNT(*) FROM reports WHERE value = 'together'") == 4


def test_g3_another_process_of_the_same_holder_does_not_wait_for_the_first(guarded: Guarded) -> None:
    """It seals what is sealed by its own lease: it has nothing to write, and nobody to wait for."""
    with guarded.guard().transaction(HandmadeLease(5)) as own, guarded.client() as by_hand:
        Step(lambda: guarded.guard().seal(HandmadeLease(5))).end()
        if guarded.sql.name == "postgres":  # MySQL's routine holds the mark before it looks at it.
            run(by_hand, guarded.sql.wait_briefly)
            run(by_hand, f"{guarded.sql.call}seal(%s, %s)", str(sequencer(5)), RESOURCE)
        run(by_hand, "START TRANSACTION")
        Step(lambda: guarded.guard().seal(HandmadeLease(5), connection=by_hand)).end()
        run(by_hand, "ROLLBACK")
        write(own, "mine")


def test_g9_a_seal_that_was_seen_committed_is_not_made_again(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), guarded.sealed(5)
    guard.lower(3, reason="as a restore does")
    with guarded.client() as native:
        run(native, "START TRANSACTION")
        with pytest.raises(fencelock.SealLostError):
            guard.seal(lease, connection=native)


def test_g3_resources_are_held_in_one_order(guarded: Guarded) -> None:
    """Two holders of two resources, named in opposite orders, wait for each other's end and in no circle."""
    guarded.guard("a", "b").seal(HandmadeLease(5))
    with guarded.guard("b", "a").transaction(HandmadeLease(5)):
        sealing = Step(lambda: guarded.guard("b", "a").seal(HandmadeLease(6)))
        guarded.wait_for_anybody()
    sealing.end()
    assert guarded.guard("a").mark().token == 6


# --- round trips ----------------------------------------------------------------------------------
def test_a_guarded_transaction_costs_no_more_round_trips_than_an_unguarded_one(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[Any] = []
    connection_type = type(guarded.guard()._core.store.connect())
    exchanged = connection_type._exchange

    def counted(connection: Any, operation: Any) -> Any:
        trips.append(operation)
        return exchanged(connection, operation)

    monkeypatch.setattr(connection_type, "_exchange", counted)
    guard, lease = guarded.guard(), HandmadeLease(5)
    guard.seal(lease)
    assert len(trips) == 2
    trips.clear()
    with guard.transaction(lease) as native:
        assert len(trips) == 1
        write(native, "x")
    assert len(trips) == 2
