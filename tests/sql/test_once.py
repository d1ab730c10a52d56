"""The rule G14 on an SQL server, at every isolation level: of two real sessions, one does the work of a key."""

from typing import Any

import pytest

import fencelock
from fencelock import AlreadyDoneError, GuardError, Once, StaleTokenError
from fencelock.messages import from_headers, to_headers
from fencelock.stores.registry import guard_store
from tests.sql.dialect import run
from tests.sql.guarded import BriefLease, Guarded, Step, write
from tests.sql.marks import one_version
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, sequencer
from tests.support.once import NIGHT, OnceJobs

pytestmark = pytest.mark.server_wide


class TestOnceJobs(OnceJobs):
    @pytest.fixture
    def once_url(self, database: Any) -> str:
        guard_store(database.url()).install()
        return str(database.url())


def table_of(guarded: Guarded) -> str:
    return f"{guarded.sql.call.split()[-1]}effect"


def kept(guarded: Guarded) -> list[tuple[int, str | None]]:
    """Return the token and the result of each key."""
    rows = guarded.database.rows(f"SELECT token, result FROM {table_of(guarded)}")
    return [(int(token), result.decode() if isinstance(result, bytes) else result) for token, result in rows]


def work(guarded: Guarded, level: str, lease: Any, value: str) -> None:
    """Do the work of the key at an isolation level."""
    once = Once(NIGHT)
    with guarded.guard_at(level).transaction(lease, once=once) as native:
        write(native, value)
        once.result = value


@pytest.mark.parametrize("is_committed", [True, False])
def test_g14_of_two_blocks_of_one_lease_the_second_waits_for_the_first(
    guarded: Guarded, level: str, is_committed: bool
) -> None:
    """It begins if the first is rolled back, and is told if it is committed: its body does not run."""
    lease = guarded.sealed(5)
    block = guarded.guard_at(level).transaction(lease, once=NIGHT)
    write(block.__enter__(), "by the first")
    second = Step(work, guarded, level, HandmadeLease(5), "by the second")
    guarded.wait_for_anybody()
    if is_committed:
        block.__exit__(None, None, None)
        with pytest.raises(AlreadyDoneError):
            second.end()
        assert (guarded.value(), kept(guarded)) == ("by the first", [(5, "")])
    else:
        block.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        second.end()
        assert (guarded.value(), kept(guarded)) == ("by the second", [(5, "by the second")])


@one_version
def test_a_key_costs_one_more_round_trip_and_its_result_none(guarded: Guarded, proxy: Any) -> None:
    guard = fencelock.guard(proxy.url(guarded.database.url()), resource=RESOURCE, lock=LOCK)
    lease, trips = HandmadeLease(5), []
    for number in range(6):  # The first ones seal, and prepare what each block sends.
        once = Once(f"night {number}") if number % 2 else None
        before = proxy.counts
        with guard.transaction(lease, once=once):
            if once is not None:
                once.result = "done"
        trips.append((proxy.counts - before)["round trips"])
    assert trips[4:] == [2, 3], trips


@pytest.mark.parametrize("is_committed", [True, False])
def test_g14_a_successor_waits_for_the_block_and_is_told(guarded: Guarded, level: str, is_committed: bool) -> None:
    lease = guarded.sealed(5)
    block = guarded.guard_at(level).transaction(lease, once=NIGHT)
    write(block.__enter__(), "by the first")
    second = Step(work, guarded, level, HandmadeLease(6), "by the successor")
    guarded.wait_for_anybody()
    if is_committed:
        block.__exit__(None, None, None)
        with pytest.raises(AlreadyDoneError):
            second.end()
        assert guarded.value() == "by the first"
    else:
        block.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        second.end()
        assert guarded.value() == "by the successor"
    assert [token for token, _ in kept(guarded)] == [5 if is_committed else 6]


def test_g14_many_racers_commit_the_work_once(guarded: Guarded, level: str) -> None:
    """Some with one lease and some with the next; the first of all fails while others wait."""
    lease = guarded.sealed(5)
    block = guarded.guard_at(level).transaction(lease, once=NIGHT)
    run(block.__enter__(), "INSERT INTO reports VALUES (99, 'undone')")

    def racer(number: int, token: int) -> None:
        with guarded.guard_at(level).transaction(HandmadeLease(token), once=NIGHT) as native:
            run(native, "INSERT INTO reports VALUES (%s, 'done')", number)

    racers = [Step(racer, number, 5 + number % 2) for number in range(10, 16)]
    guarded.wait_for_anybody()
    block.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    told = 0
    for one in racers:
        try:
            one.end()
        except (AlreadyDoneError, StaleTokenError):  # Stale: before the next lease has done it.
            told += 1
    assert told == len(racers) - 1
    assert len(guarded.database.rows("SELECT id FROM reports WHERE id > 1")) == 1


def test_g14_a_block_that_commits_by_itself_leaves_the_key_in_doubt(guarded: Guarded) -> None:
    """What it had written until then is committed with the key, and the rest was never done."""
    sql, lease = guarded.sql, guarded.sealed(5)
    if sql.name == "mysql":
        pytest.skip("the guard's connection refuses COMMIT, and a transaction that presents is its own there")
    block = guarded.guard().transaction(lease, once=NIGHT)
    native = block.__enter__()
    write(native, "half")
    run(native, "COMMIT")
    with pytest.raises(GuardError, match="ended inside its block"):
        block.__exit__(None, None, None)
    assert kept(guarded) == [(5, None)]
    with pytest.raises(fencelock.EffectInDoubtError), guarded.guard().transaction(lease, once=NIGHT):
        raise AssertionError("not reached")


@pytest.mark.parametrize("is_committed", [True, False])
def test_g14_in_the_callers_own_transaction(guarded: Guarded, level: str, is_committed: bool) -> None:
    """The key is committed with it, or rolled back with it; another transaction is told."""
    lease, once = guarded.sealed(5), Once(NIGHT)
    with guarded.client(level) as native:
        run(native, "START TRANSACTION")
        with guarded.guard().check(lease, connection=native, once=once):
            write(native, "mine")
            once.result = "mine"
        run(native, "COMMIT" if is_committed else "ROLLBACK")
        if not is_committed:
            assert (guarded.value(), kept(guarded)) == ("first", [])
            return
        assert (guarded.value(), kept(guarded)) == ("mine", [(5, "mine")])
        guarded.sealed(6)
        for token in (5, 6):
            run(native, "START TRANSACTION")
            with pytest.raises(AlreadyDoneError):
                guarded.guard().check(HandmadeLease(token), connection=native, once=NIGHT).__enter__()
            run(native, "ROLLBACK")
            guarded.sql.after_error(native)


def test_g14_a_key_of_one_resource_and_the_token_of_another_in_one_transaction(guarded: Guarded, level: str) -> None:
    """As docs/how-to/fence-message-handlers.md has a delivery's lease and the producer's sequencer."""
    delivery = fencelock.guard(guarded.database.url(), resource="task/7", lock="task/7")

    def book(native: Any, lease: HandmadeLease, planner: Any) -> None:
        delivery.seal(lease)
        run(native, "START TRANSACTION")
        with (
            delivery.check(lease, connection=native, once="message"),
            guarded.guard().check(from_headers(to_headers(planner)), connection=native),
        ):
            write(native, "booked")
        run(native, "COMMIT")

    def refused(native: Any, lease: HandmadeLease, planner: Any) -> type[Exception]:
        with pytest.raises(GuardError) as raised:
            book(native, lease, planner)
        run(native, "ROLLBACK")
        guarded.sql.after_error(native)
        return raised.type

    stale, planner = sequencer(5), sequencer(6)
    guarded.sealed(6)
    with guarded.client(level) as native:
        assert refused(native, HandmadeLease(11, lock="task/7"), stale) is StaleTokenError
        assert (guarded.value(), kept(guarded)) == ("first", [])
        book(native, HandmadeLease(12, lock="task/7"), planner)
        assert guarded.value() == "booked"
        assert refused(native, HandmadeLease(13, lock="task/7"), stale) is AlreadyDoneError


def test_g14_two_callers_transactions_at_once_do_not_both_begin(guarded: Guarded, level: str) -> None:
    """The second is told, or refused because it looks at an old state: then it begins again, and is told."""
    lease = guarded.sealed(5)

    def own(native: Any) -> None:
        run(native, "START TRANSACTION")
        try:
            with guarded.guard().check(HandmadeLease(5), connection=native, once=NIGHT):
                raise AssertionError("not reached")
        finally:
            run(native, "ROLLBACK")
            guarded.sql.after_error(native)

    with guarded.client(level) as first, guarded.client(level) as second:
        run(first, "START TRANSACTION")
        admission = guarded.guard().check(lease, connection=first, once=NIGHT)
        admission.__enter__()
        waiting = Step(own, second)
        guarded.wait_for_lock(second)
        admission.__exit__(None, None, None)
        run(first, "COMMIT")
        with pytest.raises(GuardError):
            waiting.end()
        with pytest.raises(AlreadyDoneError):
            own(second)


def test_g14_what_is_done_is_not_deleted_by_hand(guarded: Guarded) -> None:
    """Not while its token is the mark, nor before its result is recorded."""
    sql, database, lease = guarded.sql, guarded.database, guarded.sealed(5)
    work(guarded, "read committed", lease, "done")
    with guarded.guard().transaction(lease) as native:
        run(native, f"{sql.call}begin_effect('reports', 'in doubt', 'me', '')")
    guarded.sealed(6)
    with database.connect() as native:
        with pytest.raises(sql.client_error, match="is not recorded"):
            run(native, f"DELETE FROM {table_of(guarded)} WHERE result IS NULL")
        sql.after_error(native)
        run(native, f"DELETE FROM {table_of(guarded)} WHERE result IS NOT NULL")
    with guarded.guard().transaction(HandmadeLease(6), once=NIGHT):
        pass
    with database.connect() as native, pytest.raises(sql.client_error, match="under the token that is the mark"):
        run(native, f"DELETE FROM {table_of(guarded)} WHERE result IS NOT NULL")


@pytest.mark.parametrize("token", [5, 6], ids=["its own token is the mark", "a newer holder"])
@pytest.mark.parametrize(
    ("holder", "result"),
    [("", None), ("me", None), ("", "x")],
    ids=["forgotten", "begun anew", "forgotten with a result"],
)
def test_g14_what_is_done_is_not_taken_back_by_who_presents_the_mark(
    guarded: Guarded, holder: str, result: str | None, token: int
) -> None:
    """Its key would be done once more."""
    sql = guarded.sql
    work(guarded, "read committed", guarded.sealed(5), "done")
    guarded.sealed(token)
    with guarded.client() as native:
        run(native, "START TRANSACTION")
        guarded.present(native, token)
        with pytest.raises(sql.client_error) as caught:
            run(native, f"{sql.call}write_effect('reports', '{NIGHT}', %s, %s, '')", holder, result)
        assert sql.code_of(caught.value) == "FL009"
        sql.after_error(native)
    assert kept(guarded) == [(5, "done")]


def test_g14_what_another_transaction_of_the_lease_has_just_done_is_not_begun_anew(guarded: Guarded) -> None:
    """Both have presented the same mark; the second one reads the key before the first one's result is committed."""
    sql = guarded.sql
    guarded.sealed(5)
    begin, end = (f"{sql.call}write_effect('reports', '{NIGHT}', 'me', {result}, '')" for result in ("NULL", "'done'"))
    with guarded.client() as one, guarded.client() as other:
        for native in one, other:
            run(native, "START TRANSACTION")
            guarded.present(native, 5)
        run(one, end)
        second = Step(run, other, begin)
        guarded.wait_for_lock(other)
        run(one, "COMMIT")
        with pytest.raises(sql.client_error) as caught:
            second.end()
        assert sql.code_of(caught.value) == "FL009"
        sql.after_error(other)
    assert kept(guarded) == [(5, "done")]


def test_g14_a_frozen_holders_transaction_ends_and_its_successor_does_the_work(guarded: Guarded) -> None:
    """The server ends it; it writes neither work nor key, and is told at its next try."""
    block = guarded.guard().transaction(BriefLease(5), once=NIGHT)
    native = block.__enter__()
    write(native, "by the frozen one")
    guarded.wait_for_end(native)
    Step(work, guarded, "read committed", HandmadeLease(6), "by the successor").end()
    with pytest.raises(GuardError):
        block.__exit__(None, None, None)
    with pytest.raises(AlreadyDoneError) as caught, guarded.guard().transaction(HandmadeLease(5), once=NIGHT):
        raise AssertionError("not reached")
    assert (guarded.value(), caught.value.result) == ("by the successor", "by the successor")
