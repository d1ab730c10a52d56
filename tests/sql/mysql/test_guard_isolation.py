"""G2 and G3 on MySQL, at every isolation level: two or three connections, stepped statement by statement.

No step is timed: one that has to wait runs in a thread, and the next is taken once the server says that it waits.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pymysql
import pytest

import fencelock
from fencelock import GuardError, StaleTokenError
from fencelock.stores.mysql.guard import block as guard_block
from tests.guards import LOCK, RESOURCE, HandmadeLease, sequencer
from tests.sql.mysql.fix_mysql import Database
from tests.sql.mysql.guarded import DEADLOCK, ENDED, UNFENCED, Guarded, code_of, run
from tests.sql.postgres.guarded import Step

pytestmark = pytest.mark.server_wide

LOOKS_BACK = "repeatable read"
"""The level at which InnoDB shows the database as it was: at the third it locks what it reads instead."""


def write(native: Any, value: str, key: int = 1) -> None:
    run(native, "UPDATE reports SET value = %s WHERE id = %s", value, key)


def seal(guarded: Guarded, token: int) -> Callable[[], None]:
    return lambda: guarded.guard().seal(HandmadeLease(token))


def hold_alone(native: pymysql.Connection, token: int) -> None:
    """Do what a seal does, and stop before its commit."""
    run(native, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    run(native, "START TRANSACTION")
    run(
        native,
        "UPDATE fencelock_mark SET token = %s, claim = %s WHERE resource = %s",
        token,
        f"claim-{token}",
        RESOURCE,
    )


# --- G3: a seal and a transaction that has presented exclude each other ---------------------------
def test_g3_a_seal_waits_for_a_transaction_that_has_presented(guarded: Guarded, level: str) -> None:
    lease = guarded.sealed(5)
    with guarded.guard().transaction(lease) as own:
        assert run(own, "SELECT @@tx_isolation") == [(level.replace(" ", "-").upper(),)]
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
        with guarded.guard().transaction(next_lease) as native:
            return run(native, "SELECT value FROM reports")

    with guarded.client(level) as old:
        run(old, "START TRANSACTION")
        guarded.present(old, lease.sequencer.token)
        taking_over = Step(take_over)
        guarded.wait_for_anybody()
        write(old, "committed last")
        run(old, "CALL fencelock_commit()")
    assert taking_over.end() == [("committed last",)]


def test_g3_a_transaction_that_presents_during_a_seal_waits_and_is_refused(guarded: Guarded, level: str) -> None:
    guarded.sealed(5)
    with guarded.client() as sealing, guarded.client(level) as old:
        hold_alone(sealing, 6)
        run(old, "START TRANSACTION")
        by_hand = Step(lambda: guarded.present(old, 5))
        guarded.wait_for_lock(old)
        run(sealing, "COMMIT")
        with pytest.raises(pymysql.Error) as caught:
            by_hand.end()
    assert code_of(caught.value) == "FL002"


def test_g3_a_guarded_block_that_begins_during_a_seal_is_stale_at_every_level(guarded: Guarded, level: str) -> None:
    lease = guarded.sealed(5)

    def enter() -> None:
        with guarded.guard().transaction(lease):
            raise AssertionError("not reached")

    with guarded.client() as sealing:
        hold_alone(sealing, 6)
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
        hold_alone(sealing, 7)
        waiting = Step(seal(guarded, 6))
        guarded.wait_for_anybody()
        run(sealing, "COMMIT")
    with pytest.raises(StaleTokenError) as caught:
        waiting.end()
    assert (caught.value.token, caught.value.mark) == (6, 7)


def test_g3_a_seal_that_is_rolled_back_lets_the_holder_go_on(guarded: Guarded, level: str) -> None:
    lease = guarded.sealed(5)

    def enter() -> None:
        with guarded.guard().transaction(lease) as native:
            write(native, "still the holder")

    with guarded.client() as sealing:
        hold_alone(sealing, 6)
        entering = Step(enter)
        guarded.wait_for_anybody()
        run(sealing, "ROLLBACK")
    entering.end()
    assert (guarded.guard().mark().token, guarded.value()) == (5, "still the holder")


def test_h7_newcomers_do_not_overtake_a_waiting_seal(guarded: Guarded, level: str) -> None:
    """Or an old holder's overlapping transactions could keep its successor out for ever."""
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
        run(first, "CALL fencelock_commit()")
        sealing.end()
        with pytest.raises(pymysql.Error) as caught:
            newcomer.end()
    assert code_of(caught.value) == "FL002"
    assert (guarded.guard().mark().token, guarded.value()) == (6, "in time")


def test_g3_transactions_of_one_holder_do_not_wait_for_each_other(guarded: Guarded, level: str) -> None:
    lease, guard = guarded.sealed(5), guarded.guard()
    with guard.transaction(lease) as own:
        run(own, "INSERT INTO reports VALUES (2, ''), (3, ''), (4, '')")
    others = [guarded.guard().transaction(lease) for _ in range(3)]
    with guard.transaction(lease) as own:
        for key, other in enumerate(others, start=2):
            native = Step(other.__enter__).end()
            run(native, "SET SESSION innodb_lock_wait_timeout = 1")
            write(native, "together", key)
        write(own, "together")
        for other in others:
            # Each ends while the others are open.
            other.__exit__(None, None, None)
    assert guarded.database.value("SELECT COUNT(*) FROM reports WHERE value = 'together'") == 4


def test_g3_another_process_of_the_same_holder_does_not_wait_for_the_first(guarded: Guarded) -> None:
    """It seals what is sealed by its own lease: nothing to write, so nobody to wait for."""
    with guarded.guard().transaction(HandmadeLease(5)) as own, guarded.client() as by_hand:
        Step(lambda: guarded.guard().seal(HandmadeLease(5))).end()
        run(by_hand, "START TRANSACTION")
        Step(lambda: guarded.guard().seal(HandmadeLease(5), connection=by_hand)).end()
        run(by_hand, "ROLLBACK")
        write(own, "mine")


# --- G2: a snapshot from before the raise ---------------------------------------------------------
def look(native: pymysql.Connection) -> None:
    """Begin, and have the transaction's snapshot taken."""
    run(native, "START TRANSACTION")
    run(native, "SELECT * FROM reports")


SERVER_SAYS_SO = ("DO 1", "/*M!101108 SET SESSION innodb_snapshot_isolation = 1 */")
"""As MariaDB has it by default, before 11.6 and since: the server itself refuses to lock a row that is younger."""


@pytest.mark.parametrize("token", [5, 6])
def test_g2_a_snapshot_older_than_the_raise_is_refused(guarded: Guarded, level: str, token: int) -> None:
    """By the old holder's token, and by the new one's: it would not see what the old holder has committed meanwhile."""
    guarded.sealed(5)
    with guarded.client(level) as native:
        look(native)
        guarded.sealed(6)
        if level != LOOKS_BACK and token == 6:
            # One level reads anew, and the other has locked what it has read.
            guarded.present(native, token)
            return
        with pytest.raises(pymysql.Error) as caught:
            guarded.present(native, token)
    assert code_of(caught.value) == ("FL002" if token == 5 else "FL008")


@pytest.mark.parametrize("says_so", SERVER_SAYS_SO)
def test_g2_a_check_on_an_old_snapshot_says_what_to_do(guarded: Guarded, says_so: str) -> None:
    guarded.sealed(5)
    with guarded.client(LOOKS_BACK, init_command=says_so) as native:
        look(native)
        lease = guarded.sealed(6)
        with pytest.raises(GuardError, match=r"as it was before the mark was raised.*begin it anew"):
            guarded.guard().check(lease, connection=native)
        run(native, "ROLLBACK")
        look(native)
        guarded.guard().check(lease, connection=native)


def test_g2_a_first_mark_that_is_younger_than_the_snapshot_is_noticed(guarded: Guarded) -> None:
    lease = HandmadeLease(5)
    with guarded.client(LOOKS_BACK) as native:
        look(native)
        guarded.guard("new").seal(lease)
        with pytest.raises(GuardError, match=r"as it was before the mark was raised"):
            guarded.guard("new").check(lease, connection=native)


def test_g2_a_mark_is_raised_in_no_transaction_of_the_callers(guarded: Guarded, level: str) -> None:
    """Whether it has a snapshot already, which the last holder's writes are not in, cannot be seen from inside."""
    with guarded.client(level) as native:
        run(native, "START TRANSACTION")
        with pytest.raises(GuardError, match="before you begin it"):
            guarded.guard().seal(HandmadeLease(5), connection=native)
        write_one = "INSERT INTO fencelock_protection (table_name, resource) VALUES ('none', 'none')"
        run(native, write_one)
        with pytest.raises(pymysql.Error, match="inside a transaction") as caught:
            run(native, "CALL fencelock_seal(%s, %s)", str(sequencer(5)), RESOURCE)
        assert code_of(caught.value) == "FL006"
        run(native, "ROLLBACK")
    assert guarded.guard().mark().token == 0
    assert not guarded.database.rows("SELECT * FROM fencelock_protection WHERE table_name = 'none'")


def test_g3_an_xa_transaction_presents_nothing(guarded: Guarded, level: str) -> None:
    """XA PREPARE gives the share of the mark back at some levels, and a server that was restarted has it at none."""
    lease = guarded.sealed(5)
    with guarded.client(level) as native:
        run(native, "XA START 'one', 'two', 3")
        with pytest.raises(pymysql.Error, match="in an XA transaction") as caught:
            guarded.present(native, 5)
        assert code_of(caught.value) == "FL006"
        with pytest.raises(GuardError, match="in an XA transaction"):
            guarded.guard().check(lease, connection=native)
        with pytest.raises(pymysql.Error, match=UNFENCED):
            write(native, "prepared")
        run(native, "XA END 'one', 'two', 3")
        run(native, "XA ROLLBACK 'one', 'two', 3")
        # From then on the session is as any other.
        run(native, "START TRANSACTION")
        guarded.present(native, 5)
        write(native, "mine")
        run(native, "CALL fencelock_commit()")
    assert guarded.value() == "mine"


def test_g2_a_holder_may_check_and_seal_again_in_its_own_transaction(guarded: Guarded, level: str) -> None:
    lease, guard = guarded.sealed(5), guarded.guard()
    with guarded.client(level) as native:
        run(native, "START TRANSACTION")
        guard.seal(lease, connection=native)
        with guard.check(lease, connection=native):
            write(native, "mine")
        run(native, "COMMIT")
    assert guarded.value() == "mine"


def test_g9_a_seal_that_was_seen_committed_is_not_made_again(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), guarded.sealed(5)
    guard.lower(3, reason="as a restore does")
    with guarded.client() as native:
        run(native, "START TRANSACTION")
        with pytest.raises(fencelock.SealLostError):
            guard.seal(lease, connection=native)


# --- two first seals ------------------------------------------------------------------------------
@pytest.mark.parametrize(("first", "second"), [(5, 6), (6, 5)])
def test_g1_two_first_seals_of_a_resource_wait_for_each_other(guarded: Guarded, first: int, second: int) -> None:
    """There is no row yet that the second could wait for: the first one makes it."""
    with guarded.client() as sealing:
        run(sealing, "START TRANSACTION")
        run(sealing, "CALL fencelock_read_marks(%s, NULL, 'alone')", b"new".hex().upper())
        waiting = Step(lambda: guarded.guard("new").seal(HandmadeLease(second)))
        guarded.wait_for_anybody()
        proof = sequencer(first)
        values = (proof.lock, proof.token, proof.claim, proof.source_id, proof.history_id)
        run(sealing, "CALL fencelock_write_marks(%s, %s, %s, %s, %s, %s, 0)", b"new".hex().upper(), *values)
        run(sealing, "COMMIT")
        if second > first:
            waiting.end()
        else:
            with pytest.raises(StaleTokenError):
                waiting.end()
    assert guarded.guard("new").mark().token == 6


def test_g3_resources_are_held_in_one_order(guarded: Guarded) -> None:
    """Two holders of two resources, named in opposite orders, wait for each other's end and in no circle."""
    guarded.guard("a", "b").seal(HandmadeLease(5))
    with guarded.guard("b", "a").transaction(HandmadeLease(5)):
        sealing = Step(lambda: guarded.guard("b", "a").seal(HandmadeLease(6)))
        guarded.wait_for_anybody()
    sealing.end()
    assert guarded.guard("a").mark().token == 6


# --- what was presented is of one transaction -------------------------------------------------------
STRAYS = ["COMMIT", "ROLLBACK", "CREATE TABLE by_ddl (id int)", "TRUNCATE free", "START TRANSACTION"]


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("mode", [0, 1])
def test_g6_after_a_stray_end_the_session_writes_nothing(guarded: Guarded, level: str, stray: str, mode: int) -> None:
    guarded.sealed(5)
    guarded.database.rows("CREATE TABLE free (id int)")
    with guarded.client(level) as native:
        run(native, f"SET autocommit = {mode}")
        run(native, "START TRANSACTION")
        guarded.present(native, 5)
        write(native, "admitted")
        with suppress(pymysql.OperationalError):
            # DDL has committed by the time at which the server refuses it.
            run(native, stray)
        for statement in ("UPDATE reports SET value = 'after'", "INSERT INTO free VALUES (1)"):
            with pytest.raises(pymysql.Error) as caught:
                run(native, statement)
            assert caught.value.args[0] == ENDED
        with pytest.raises(pymysql.Error) as caught:
            run(native, "CALL fencelock_commit()")
        assert code_of(caught.value) == "FL007"
        # From then on the session is as any other.
        run(native, "ROLLBACK")
        run(native, "INSERT INTO free VALUES (2)")
        run(native, "COMMIT")
        with pytest.raises(pymysql.Error, match=UNFENCED):
            write(native, "unfenced")
    assert guarded.value() == ("first" if stray == "ROLLBACK" else "admitted")


@pytest.mark.parametrize("gap", ["COMMIT AND CHAIN", "SET autocommit = 1"])
def test_g6_where_a_session_goes_on_read_write_each_row_is_compared_with_the_mark(guarded: Guarded, gap: str) -> None:
    guarded.sealed(5)
    with guarded.client() as native:
        run(native, "SET autocommit = 0")
        run(native, "START TRANSACTION")
        guarded.present(native, 5)
        run(native, gap)
        write(native, "still the holder")
        run(native, gap)
        guarded.sealed(6)
        # The second time autocommit is set, the session is read-only at last.
        with pytest.raises(pymysql.Error, match=r"FL002 token 5 at mark 6 of resource reports|READ ONLY"):
            write(native, "stale")
        with pytest.raises(pymysql.Error) as caught:
            run(native, "CALL fencelock_commit()")
        assert code_of(caught.value) == "FL007"
    assert guarded.value() == "still the holder"


def deadlocked(guarded: Guarded, first: Any, second: Any) -> Any:
    """Have two transactions wait in a circle, and return the one that the server has undone."""
    write(first, "before", 1)
    write(second, "before", 2)
    crossing = Step(lambda: write(first, "crossing", 2))
    guarded.wait_for_lock(first)
    victims = []
    for native, step in ((second, lambda: write(second, "crossing", 1)), (first, crossing.end)):
        try:
            step()
        except pymysql.OperationalError as error:
            victims += [native] * (error.args[0] == DEADLOCK)
    [victim] = victims
    return victim


def test_g6_a_guarded_block_writes_nothing_after_the_server_has_undone_it(guarded: Guarded) -> None:
    guarded.database.rows("CREATE TABLE free (id int)")
    guarded.database.rows("INSERT INTO free VALUES (1)")

    def work() -> None:
        with guarded.guard().transaction(HandmadeLease(5)) as own:
            run(own, SERVER_SAYS_SO[1])
            run(own, "SELECT * FROM free")
            guarded.database.rows("UPDATE free SET id = 2")
            with pytest.raises(pymysql.OperationalError):
                run(own, "UPDATE free SET id = 3")
            with pytest.raises(GuardError, match="ended inside its block"):
                write(own, "after")

    with pytest.raises(GuardError, match="ended inside its block"):
        work()
    assert guarded.value() == "first"


@pytest.mark.parametrize("mode", [0, 1])
def test_g6_after_a_deadlock_each_row_is_compared_with_the_mark(guarded: Guarded, mode: int) -> None:
    """The server goes on in another transaction as if nothing was, or in none."""
    with guarded.guard().transaction(HandmadeLease(5)) as own:
        run(own, "INSERT INTO reports VALUES (2, 'second')")
    with guarded.client() as first, guarded.client() as second:
        for native in (first, second):
            run(native, f"SET autocommit = {mode}")
            run(native, "START TRANSACTION")
            guarded.present(native, 5)
        victim = deadlocked(guarded, first, second)
        run(second if victim is first else first, "CALL fencelock_commit()")
        guarded.sealed(6)
        with pytest.raises(pymysql.Error, match="FL002 token 5 at mark 6 of resource reports"):
            write(victim, "stale")
        with pytest.raises(pymysql.Error) as caught:
            run(victim, "CALL fencelock_commit()")
        assert code_of(caught.value) == "FL007"


def test_g6_a_guarded_block_writes_nothing_after_a_deadlock(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    with guard.transaction(lease) as own:
        run(own, "INSERT INTO reports VALUES (2, 'second')")
    blocks = [guarded.guard().transaction(lease) for _ in range(2)]
    natives = [Step(block.__enter__).end() for block in blocks]
    victim = natives.index(deadlocked(guarded, *natives))
    with pytest.raises(GuardError, match="a deadlock"):
        write(natives[victim], "half of it")
    with pytest.raises(GuardError, match="a deadlock"):
        blocks[victim].__exit__(None, None, None)
    blocks[1 - victim].__exit__(None, None, None)
    assert {guarded.value(1), guarded.value(2)} == {"before", "crossing"}


# --- round trips ----------------------------------------------------------------------------------
def test_a_guarded_transaction_costs_no_round_trip_more_than_an_unguarded_one(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[Any] = []
    exchanged = guard_block.MySQLGuardConnection._exchange

    def counted(connection: Any, said: Any) -> Any:
        trips.append(said)
        return exchanged(connection, said)

    monkeypatch.setattr(guard_block.MySQLGuardConnection, "_exchange", counted)
    guard, lease = guarded.guard(), HandmadeLease(5)
    guard.seal(lease)
    assert len(trips) == 2
    trips.clear()
    with guard.transaction(lease) as native:
        assert len(trips) == 1
        write(native, "x")
    assert len(trips) == 2


def test_no_deadlock_between_a_protect_and_unfenced_writers_that_are_observed(mysql_database: Database) -> None:
    """Those read no mark, which protecting holds alone, so it has to wait only until they commit."""
    mysql_database.rows("CREATE TABLE reports (id int PRIMARY KEY, value varchar(64))")
    guard = fencelock.guard(mysql_database.url(), resource=RESOURCE, lock=LOCK)
    guard.protect("reports", mode="observe")
    with mysql_database.connect(autocommit=False) as native:
        run(native, "INSERT INTO reports VALUES (1, 'observed')")
        source = fencelock.SourceInfo("source", 1, "history", 7, 7)
        protecting = Step(lambda: guard.protect("reports", source=source))
        waiting = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE state LIKE 'Waiting for table metadata%'"
        while not mysql_database.value(waiting):
            assert not protecting.is_done()
        run(native, "INSERT INTO reports VALUES (2, 'observed')")
        native.commit()
        protecting.end()
    assert guard.mark().token == 7
