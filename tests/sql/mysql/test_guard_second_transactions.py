"""G6 on MySQL: what a block writes after it has ended its transaction, and begun another, behind the client's watch.

The session goes on read-write there, and may end that transaction as well: nothing at the block's end would undo it. So
the database compares each row with the mark as it is now, and holds the mark until that transaction's end.
"""

from collections.abc import Callable
from typing import Any

import pymysql
import pytest

from fencelock import GuardError
from tests.sql.dialect import run
from tests.sql.guarded import Guarded, Step
from tests.sql.mysql.dialect import UNFENCED
from tests.support.guards import HandmadeLease

ROUTINES = (
    "CREATE PROCEDURE begins() START TRANSACTION READ WRITE",
    "CREATE PROCEDURE ends_and_chains() COMMIT AND CHAIN",
    "CREATE PROCEDURE ends_and_sets() BEGIN COMMIT; SET TRANSACTION READ WRITE; END",
    "CREATE PROCEDURE undoes_and_begins() BEGIN ROLLBACK; START TRANSACTION READ WRITE; END",
)
CHAINED = ["/**/COMMIT AND CHAIN"]
WAYS = {
    "begun in a routine": ["CALL begins()"],
    "begun behind a comment": ["/**/START TRANSACTION READ WRITE"],
    "begun after a rollback": ["CALL undoes_and_begins()"],
    "chained in a routine": ["CALL ends_and_chains()"],
    "chained behind a comment": CHAINED,
    "chained by completion_type": ["SET completion_type = 1", "/**/COMMIT"],
    "the next one set": ["CALL ends_and_sets()"],
    "the session set": ["SET SESSION TRANSACTION READ WRITE", "/**/COMMIT"],
}
STALE = "FL002 token 5 at mark 6 of resource reports"


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, guarded: Guarded) -> list[str]:
    """Return the statements by which a block has another transaction in the place of the guarded one."""
    for statement in ROUTINES:
        guarded.database.rows(statement)
    return WAYS[request.param]


def write(native: Any, value: str, key: int = 1) -> None:
    run(native, "UPDATE reports SET value = %s WHERE id = %s", value, key)


def go_on_behind(guarded: Guarded, way: list[str], work: Callable[[Any], None]) -> None:
    """Do something in the other transaction, and commit it; the end of the block has to tell."""

    def block() -> None:
        with guarded.guard().transaction(HandmadeLease(5)) as own:
            for statement in way:
                run(own, statement)
            work(own)
            run(own, "/**/COMMIT")

    with pytest.raises(GuardError, match="ended inside its block"):
        block()


def take_over(guarded: Guarded) -> None:
    """Have a newer holder seal and write, in another thread than the block's."""

    def newer() -> None:
        with guarded.guard().transaction(HandmadeLease(6)) as native:
            write(native, "the newer holder's")

    Step(newer).end()


def test_the_session_goes_on_read_write(guarded: Guarded, way: list[str]) -> None:
    """Or the tests below would show nothing but that it does not."""
    guarded.database.rows("CREATE TABLE free (id int)")
    go_on_behind(guarded, way, lambda own: run(own, "INSERT INTO free VALUES (1)"))
    assert guarded.database.rows("SELECT * FROM free") == [(1,)]


def test_g6_a_stale_write_there_is_refused_though_the_block_commits_it_itself(
    guarded: Guarded, level: str, way: list[str]
) -> None:
    """Also where the second transaction looks at the time before the raise: the mark is read as it is now."""

    def work(own: Any) -> None:
        run(own, "SELECT * FROM fencelock_protection")
        take_over(guarded)
        for statement in ("UPDATE reports SET value = 'stale'", "INSERT INTO reports VALUES (2, 'stale')"):
            with pytest.raises(pymysql.Error, match=STALE):
                run(own, statement)

    go_on_behind(guarded, way, work)
    assert guarded.database.rows("SELECT * FROM reports") == [(1, "the newer holder's")]


def test_g6_a_stale_write_there_is_refused_by_a_server_that_keeps_snapshots_apart(guarded: Guarded) -> None:
    """As MariaDB does by default since 11.6: it locks no row that is younger than the snapshot, and undoes it all."""

    def work(own: Any) -> None:
        run(own, "/*M!101108 SET SESSION innodb_snapshot_isolation = 1 */")
        run(own, "SELECT * FROM fencelock_protection")
        take_over(guarded)
        with pytest.raises(pymysql.Error, match="Record has changed"):
            run(own, "INSERT INTO reports VALUES (2, 'stale')")
        with pytest.raises(GuardError, match="ended inside its block"):
            write(own, "stale")

    go_on_behind(guarded, CHAINED, work)
    assert guarded.database.rows("SELECT * FROM reports") == [(1, "the newer holder's")]


def test_g6_what_is_admitted_there_holds_the_mark_until_that_transactions_end(guarded: Guarded, level: str) -> None:
    sealing: list[Step] = []

    def work(own: Any) -> None:
        write(own, "in time")
        sealing.append(Step(lambda: guarded.sealed(6)))
        guarded.wait_for_anybody()
        assert guarded.guard().mark().token == 5

    go_on_behind(guarded, CHAINED, work)
    sealing[0].end()
    assert (guarded.value(), guarded.guard().mark().token) == ("in time", 6)


def test_g10_a_closed_mark_admits_nothing_there(guarded: Guarded) -> None:
    def work(own: Any) -> None:
        Step(lambda: guarded.guard().close(HandmadeLease(5))).end()
        with pytest.raises(pymysql.Error, match="FL002 token 5 at mark 5 of resource reports"):
            write(own, "late")

    go_on_behind(guarded, CHAINED, work)
    assert guarded.value() == "first"


def test_observe_mode_counts_what_would_be_refused_there(guarded: Guarded) -> None:
    guarded.guard().protect("reports", mode="observe")
    counted = "SELECT COALESCE(SUM(times), 0) FROM fencelock_observation WHERE table_name = 'reports'"

    def work(own: Any) -> None:
        write(own, "in time")
        assert run(own, counted) == [(0,)]
        run(own, CHAINED[0])
        take_over(guarded)
        write(own, "stale")
        assert run(own, counted) == [(1,)]

    go_on_behind(guarded, CHAINED, work)


def test_g3_two_blocks_of_one_holder_write_while_a_seal_waits_for_both(guarded: Guarded, level: str) -> None:
    """Each has its share of the mark: none waits behind the seal for the one that it has."""
    lease = HandmadeLease(5)
    with guarded.guard().transaction(lease) as own:
        run(own, "INSERT INTO reports VALUES (2, 'second')")
    blocks = [guarded.guard().transaction(lease) for _ in range(2)]
    natives = [Step(block.__enter__).end() for block in blocks]
    sealing = Step(lambda: guarded.sealed(6))
    guarded.wait_for_anybody()
    for key, native in enumerate(natives, start=1):
        run(native, "SET SESSION innodb_lock_wait_timeout = 1")
        write(native, "in time", key)
    for block in blocks:
        block.__exit__(None, None, None)
    sealing.end()
    assert (guarded.value(1), guarded.value(2)) == ("in time", "in time")


def test_g6_a_session_that_has_presented_nothing_is_refused_without_waiting_for_the_mark(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.client() as sealing, guarded.client() as unfenced:
        run(sealing, "START TRANSACTION")
        run(sealing, "SELECT * FROM fencelock_mark FOR UPDATE")
        run(unfenced, "SET SESSION innodb_lock_wait_timeout = 1")
        with pytest.raises(pymysql.Error, match=UNFENCED):
            write(unfenced, "unfenced")
