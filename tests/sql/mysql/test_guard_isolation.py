"""What only MySQL has at its isolation levels: snapshots, XA, first seals, stray ends, deadlocks.

No step is timed: one that has to wait runs in a thread, and the next is taken when the server says that it waits.
"""

from contextlib import suppress
from typing import Any

import pymysql
import pytest

import fencelock
from fencelock import GuardError, StaleTokenError
from tests.sql.dialect import run
from tests.sql.guarded import Guarded, Step, write
from tests.sql.mysql.dialect import DEADLOCK, ENDED, UNFENCED, code_of
from tests.sql.mysql.fix_mysql import Database
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, sequencer

pytestmark = pytest.mark.server_wide

LOOKS_BACK = "repeatable read"
"""The level at which InnoDB shows the database as it was: at the third it locks what it reads instead."""


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
            # One level takes a new snapshot, and the other has locked what it has read.
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
        with pytest.raises(GuardError, match=r"as it was before the mark was raised.*start it again"):
            guarded.guard().check(lease, connection=native)
        run(native, "ROLLBACK")
        look(native)
        guarded.guard().check(lease, connection=native)


def test_g2_a_caller_that_goes_on_after_the_refusal_has_presented_nothing(guarded: Guarded) -> None:
    offer = "CALL fencelock_offer(%s, %s, 6, %s, %s, %s, NULL)"
    with guarded.client(LOOKS_BACK) as native:
        look(native)
        own = guarded.sealed(6).sequencer
        with pytest.raises(pymysql.Error) as caught:
            run(native, offer, RESOURCE.encode().hex().upper(), own.lock, own.proof, own.source_id, own.history_id)
        assert code_of(caught.value) == "FL008"
        with pytest.raises(pymysql.Error, match=UNFENCED):
            write(native, "on an old snapshot")
    assert guarded.value() == "first"


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
        write_one = "INSERT INTO fencelock_protection (table_name, resource, mode) VALUES ('none', 'none', 'enforce')"
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


# --- two first seals ------------------------------------------------------------------------------
@pytest.mark.parametrize(("first", "second"), [(5, 6), (6, 5)])
def test_g1_two_first_seals_of_a_resource_wait_for_each_other(guarded: Guarded, first: int, second: int) -> None:
    """There is no row yet that the second could wait for: the first one makes it."""
    with guarded.client() as sealing:
        run(sealing, "START TRANSACTION")
        run(sealing, "CALL fencelock_read_marks(%s, NULL, 'alone')", b"new".hex().upper())
        waiting = Step(lambda: guarded.guard("new").seal(HandmadeLease(second)))
        guarded.wait_for_anybody()
        run(sealing, "CALL fencelock_raise_marks(%s, %s)", b"new".hex().upper(), str(sequencer(first)))
        run(sealing, "COMMIT")
        if second > first:
            waiting.end()
        else:
            with pytest.raises(StaleTokenError):
                waiting.end()
    assert guarded.guard("new").mark().token == 6


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


def test_no_deadlock_between_a_protect_and_unfenced_writers_that_are_observed(database: Database) -> None:
    """Those read no mark, which protecting holds alone, so it has to wait only until they commit."""
    database.rows("CREATE TABLE reports (id int PRIMARY KEY, value varchar(64))")
    guard = fencelock.guard(database.url(), resource=RESOURCE, lock=LOCK)
    guard.protect("reports", mode="observe")
    with database.connect(autocommit=False) as native:
        run(native, "INSERT INTO reports VALUES (1, 'observed')")
        source = fencelock.SourceInfo("source", 1, "history", 7, 7)
        protecting = Step(lambda: guard.protect("reports", source=source))
        waiting = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE state LIKE 'Waiting for table metadata%'"
        while not database.value(waiting):
            assert not protecting.is_done()
        run(native, "INSERT INTO reports VALUES (2, 'observed')")
        native.commit()
        protecting.end()
    assert guard.mark().token == 7
