"""Protecting tables inside the caller's own transaction, as a migration does, on both SQL servers."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pg8000.dbapi
import psycopg
import psycopg2
import pytest

from fencelock import GuardError, UnsupportedError
from fencelock._api.guard import inspect_resources
from tests.sql.guarded import Guarded, Step, write
from tests.support.guards import HandmadeLease, HandmadeSource, fail

NEW = "CREATE TABLE orders (id int PRIMARY KEY, value varchar(200))"
REBUILD = (
    "CREATE TABLE rebuilt (id int PRIMARY KEY, value varchar(200))",
    "INSERT INTO rebuilt SELECT id, value FROM reports",
    "DROP TABLE reports",
    "ALTER TABLE rebuilt RENAME TO reports",
)


@pytest.fixture(params=["psycopg", "psycopg2", "pg8000"])
def own(request: pytest.FixtureRequest, guarded: Guarded) -> Iterator[Any]:
    """Yield the migration's own connection, of each driver."""
    if guarded.sql.name != "postgres":
        pytest.skip("its DDL commits")
    with connected(guarded, request.param) as connection:
        yield connection


@contextmanager
def connected(guarded: Guarded, driver: str) -> Iterator[Any]:
    url = guarded.database.url()
    if driver == "psycopg":
        made: Any = psycopg.connect(url)
    elif driver == "psycopg2":
        made = psycopg2.connect(url)
    else:
        known = psycopg.conninfo.conninfo_to_dict(url)
        made = pg8000.dbapi.connect(
            user=known["user"], host=known["host"], port=int(known["port"]), database=known["dbname"]
        )
    try:
        yield made
    finally:
        made.close()


def send(native: Any, *statements: str) -> None:
    """Run statements with any driver."""
    cursor = native.cursor()
    for statement in statements:
        cursor.execute(statement)
    cursor.close()


def modes(guarded: Guarded) -> dict[str, str]:
    """Return the protected tables and their modes."""
    found = inspect_resources(guarded.database.url()).protections
    return {one.table.rpartition(".")[2]: one.mode for one in found}


def audited(guarded: Guarded) -> list[str]:
    """Return what operators did."""
    return [action for (action,) in guarded.database.rows("SELECT action FROM fencelock.guard_audit ORDER BY id")]


def test_a_table_is_protected_in_the_transaction_that_creates_it(guarded: Guarded, own: Any) -> None:
    send(own, NEW)
    guarded.guard().protect("orders", connection=own)
    assert modes(guarded) == {"reports": "enforce"}, "not committed yet"
    own.commit()
    assert modes(guarded) == {"reports": "enforce", "orders": "enforce"}


def test_what_a_migration_protects_is_undone_with_it(guarded: Guarded, own: Any) -> None:
    send(own, NEW)
    guarded.guard().protect("orders", connection=own)
    own.rollback()
    assert modes(guarded) == {"reports": "enforce"}


def test_unprotecting_waits_for_the_migrations_commit(guarded: Guarded, own: Any) -> None:
    guarded.guard().unprotect("reports", reason="it goes", connection=own)
    send(own, "DROP TABLE reports")
    assert modes(guarded) == {"reports": "enforce"}
    own.commit()
    assert modes(guarded) == {}
    assert audited(guarded) == ["unprotect"]


def test_the_first_protection_of_a_database_may_be_a_migrations(unprotected: Guarded) -> None:
    if unprotected.sql.name != "postgres":
        pytest.skip("its DDL commits")
    with connected(unprotected, "psycopg") as own:
        unprotected.guard().protect("reports", connection=own)
        own.commit()
    assert modes(unprotected) == {"reports": "enforce"}


def test_enforcing_inside_a_migration_raises_the_mark_with_it(guarded: Guarded, own: Any) -> None:
    guarded.guard().protect("reports", mode="observe", connection=own)
    own.commit()
    with pytest.raises(GuardError, match="was only observed"):
        guarded.guard().protect("reports", connection=own)
    own.commit()
    assert modes(guarded) == {"reports": "observe"}, "all or nothing"
    guarded.guard().protect("reports", source=HandmadeSource(7), connection=own)
    assert guarded.guard().mark().token == 0
    own.commit()
    assert guarded.guard().mark().token == 7
    assert audited(guarded) == ["mode", "mode"]


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_rebuilt_table_is_protected_again_in_its_mode(guarded: Guarded, own: Any, mode: str) -> None:
    guarded.guard().protect("reports", mode=mode)
    with guarded.guard().rebuilding("reports", connection=own):
        send(own, *REBUILD)
    own.commit()
    assert modes(guarded) == {"reports": mode}
    with guarded.guard().transaction(HandmadeLease(5)) as native:
        write(native)


def test_a_renamed_table_can_be_rebuilt(guarded: Guarded, own: Any) -> None:
    send(own, "ALTER TABLE reports RENAME TO moved")
    with guarded.guard().rebuilding("moved", connection=own):
        send(own, *(statement.replace("reports", "moved") for statement in REBUILD))
    own.commit()
    assert modes(guarded) == {"moved": "enforce"}
    with guarded.guard().transaction(HandmadeLease(5)) as native:
        native.execute("UPDATE moved SET value = 'mine'")


def test_a_rebuild_that_fails_protects_nothing_and_leaves_the_transaction_to_its_owner(
    guarded: Guarded, own: Any
) -> None:
    with pytest.raises(ZeroDivisionError), guarded.guard().rebuilding("reports", connection=own):
        fail(send(own, *REBUILD))
    send(own, "SELECT 1")
    own.rollback()
    assert modes(guarded) == {"reports": "enforce"}


def test_a_rebuilt_table_that_is_not_protected_or_gone_is_an_error(guarded: Guarded, own: Any) -> None:
    send(own, NEW)
    with (
        pytest.raises(GuardError, match="'orders' is not protected by resource 'reports'"),
        guarded.guard().rebuilding("orders", connection=own),
    ):
        pass
    with (
        pytest.raises(GuardError, match="there is no table 'reports'"),
        guarded.guard().rebuilding("reports", connection=own),
    ):
        send(own, "DROP TABLE reports")


def test_a_rebuild_waits_for_guarded_blocks_before_it_locks_a_table(guarded: Guarded) -> None:
    """With the table locked first, the block would wait for the migration, and the migration for the block."""
    if guarded.sql.name != "postgres":
        pytest.skip("its DDL commits")

    def migrate(own: Any) -> None:
        with guarded.guard().rebuilding("reports", connection=own):
            send(own, "ALTER TABLE reports ADD COLUMN more int")
        own.commit()

    with connected(guarded, "psycopg") as own:
        with guarded.guard().transaction(HandmadeLease(5)) as native:
            migration = Step(migrate, own)
            guarded.wait_for_anybody()
            write(native)
        migration.end()
    assert guarded.value() == "mine"


DATA = "UPDATE reports SET value = 'migrated'"


def test_a_data_migration_presents_its_lease_in_its_own_transaction(guarded: Guarded, own: Any) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    guard.seal(lease)
    with guard.check(lease, connection=own):
        send(own, DATA)
    own.commit()
    assert guarded.value() == "migrated"


def test_a_migration_rebuilds_and_writes_in_one_transaction(guarded: Guarded, own: Any) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    guard.seal(lease)
    with guard.rebuilding("reports", connection=own):
        send(own, *REBUILD)
    with guard.check(lease, connection=own):
        send(own, DATA)
    own.commit()
    assert guarded.value() == "migrated"
    assert modes(guarded) == {"reports": "enforce"}


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "protect": lambda guard, own: guard.protect("reports", connection=own),
    "unprotect": lambda guard, own: guard.unprotect("reports", reason="a test", connection=own),
    "rebuilding": lambda guard, own: guard.rebuilding("reports", connection=own).__enter__(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_connection_in_no_transaction_is_refused(guarded: Guarded, own: Any, call: str) -> None:
    own.autocommit = True
    with pytest.raises(GuardError, match="not in a transaction"):
        CALLS[call](guarded.guard(), own)


@pytest.mark.parametrize("call", CALLS)
def test_a_server_whose_ddl_commits_refuses_and_says_what_to_do(guarded: Guarded, call: str) -> None:
    if guarded.sql.name == "postgres":
        pytest.skip("its DDL does not commit")
    with (
        guarded.client() as own,
        pytest.raises(UnsupportedError, match=r"commit it first, and then .* without connection="),
    ):
        CALLS[call](guarded.guard(), own)


def test_an_async_guard_protects_and_rebuilds_in_an_async_transaction(guarded: Guarded) -> None:
    if guarded.sql.name != "postgres":
        pytest.skip("its DDL commits")

    async def migrate() -> None:
        async with await psycopg.AsyncConnection.connect(guarded.database.url()) as own:
            guard = guarded.async_guard()
            await own.execute(NEW)
            await guard.protect("orders", connection=own)
            async with guard.rebuilding("reports", connection=own):
                for statement in REBUILD:
                    await own.execute(statement)
            await guard.unprotect("orders", reason="a test", connection=own)

    asyncio.run(migrate())
    assert modes(guarded) == {"reports": "enforce"}
