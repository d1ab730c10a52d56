"""Blocks of SQLAlchemy that end without an error, over every driver that the reference names: each is committed."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from fencelock import GuardError
from tests.integrations.alchemy import Body, Stack
from tests.integrations.databases import GuardedDatabase, make_tables, open_database
from tests.support.guards import HandmadeLease
from tests.support.programs import refuse

DRIVERS = {
    "sqlite": ("pysqlite", "aiosqlite"),
    "postgres": ("psycopg", "psycopg_async", "psycopg2", "asyncpg", "pg8000"),
    "mysql": ("pymysql", "mysqldb", "aiomysql", "asyncmy"),
}
MODULES = {"pysqlite": "sqlite3", "psycopg_async": "psycopg", "mysqldb": "MySQLdb"}
"""The modules of drivers that SQLAlchemy calls by another name."""
ASYNCHRONOUS = {"aiosqlite", "psycopg_async", "asyncpg", "aiomysql", "asyncmy"}
OPTIONAL = {"mysqldb"}
"""mysqlclient has no wheel for Linux: whoever has it installed tests with it."""
WRITE = "UPDATE reports SET value = 'new' WHERE id = 1"
TAKEN = "INSERT INTO reports VALUES (1, 'taken')"
SIDE = "UPDATE plain SET value = 'new' WHERE id = 1"
READ = "SELECT value FROM plain"
ENDED = "ended inside its block"
FAILED = "its error was caught"


class Outcome(NamedTuple):
    """How a block ended, and what it wrote."""

    error: str | None
    value: str


WRITTEN = Outcome(None, "new")
UNDONE = Outcome(ENDED, "first")
SAVEPOINT = (WRITE, "SAVEPOINT one", TAKEN, "ROLLBACK TO SAVEPOINT one", SIDE)
EVERYWHERE = {
    (WRITE, SIDE): WRITTEN,
    SAVEPOINT: WRITTEN,
    (WRITE, "ROLLBACK"): UNDONE,
    (WRITE, "ROLLBACK", READ): UNDONE,
    (WRITE, "ROLLBACK", SIDE): UNDONE,
    (WRITE, "ROLLBACK", "BEGIN", READ): UNDONE,
}
BLOCKS: dict[str, dict[tuple[str, ...], Outcome]] = {
    "sqlite": EVERYWHERE
    | {
        (WRITE, TAKEN): WRITTEN,
        (WRITE, "ROLLBACK", WRITE): UNDONE,
        (WRITE, "COMMIT"): WRITTEN,  # The file refuses to commit a presented lease.
        (WRITE, "COMMIT", SIDE): WRITTEN,
        (WRITE, TAKEN.replace("INSERT", "INSERT OR ROLLBACK"), SIDE): UNDONE,
    },
    "postgres": EVERYWHERE
    | {
        (WRITE, TAKEN): Outcome(FAILED, "first"),
        (WRITE, TAKEN, READ): Outcome(FAILED, "first"),
        (WRITE, "SAVEPOINT one", TAKEN): Outcome(FAILED, "first"),
        (WRITE, TAKEN, "COMMIT", READ): UNDONE,
        (WRITE, "COMMIT"): Outcome(ENDED, "new"),
        (WRITE, "COMMIT", SIDE): Outcome(ENDED, "new"),
        (WRITE, "ROLLBACK AND CHAIN", SIDE): UNDONE,
        (WRITE, "COMMIT AND CHAIN", SIDE): Outcome(ENDED, "new"),
    },
    "mysql": EVERYWHERE
    | {
        (WRITE, TAKEN): WRITTEN,
        (WRITE, "ROLLBACK", WRITE): UNDONE,
        (WRITE, "COMMIT"): Outcome(ENDED, "new"),
        (WRITE, "COMMIT", SIDE): Outcome(ENDED, "new"),
        (WRITE, "ROLLBACK AND CHAIN", SIDE): UNDONE,
        (WRITE, "COMMIT AND CHAIN", SIDE): Outcome(ENDED, "new"),
        (WRITE, "CREATE OR REPLACE TABLE made (id INTEGER)", READ): Outcome(ENDED, "new"),
        (WRITE, "ROLLBACK", "START TRANSACTION READ WRITE", SIDE): UNDONE,
    },
}
"""The statements of a block that swallows every error of them, and its outcome, by the database."""


@pytest.fixture(params=[(kind, driver) for kind in DRIVERS for driver in DRIVERS[kind]], ids=lambda both: both[1])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GuardedDatabase]:
    kind, driver = request.param
    module = MODULES.get(driver, driver)
    if importlib.util.find_spec(module) is None:
        if driver in OPTIONAL:
            pytest.skip(f"{module} is not installed")
        refuse(f"{module} is not installed: see requirements/test.txt")
    with open_database(kind, tmp_path, request.getfixturevalue) as there:
        make_tables(there)
        scheme, _, rest = there.engines[0].partition("://")
        url = f"{scheme.partition('+')[0]}+{driver}://{rest}"
        yield replace(there, engines=(url, url))


def stacks(guarded: GuardedDatabase) -> Iterator[Stack]:
    """Yield a connection and a session of the driver; the pool of each has one connection."""
    driver = guarded.engines[0].partition("://")[0].partition("+")[2]
    for target in ("connection", "session"):
        stack = Stack(f"async {target}" if driver in ASYNCHRONOUS else target, guarded, pool_size=1, max_overflow=0)
        yield stack
        stack.close()


def swallowing(*statements: str) -> Body:
    """Return a body that catches the errors of its statements."""

    def body(target: Any) -> None:
        for statement in statements:
            with suppress(DBAPIError):
                target.execute(text(statement))

    return body


def outcome(guarded: GuardedDatabase, fenced: Callable[..., object], *statements: str) -> Outcome:
    """Return the outcome of a block, and reset what it wrote by another block on the same connection."""
    told: str | None = None
    try:
        fenced(swallowing(*statements))
    except GuardError as error:
        told = next((known for known in (ENDED, FAILED) if known in str(error)), str(error))
    found = Outcome(told, guarded.value())
    if found.value != "first":
        fenced(swallowing(WRITE.replace("new", "first")))
        assert guarded.value() == "first"
    return found


def test_a_block_that_ends_well_is_committed(guarded: GuardedDatabase) -> None:
    expected = BLOCKS[guarded.kind]
    for stack in stacks(guarded):
        fenced = partial(stack.fenced, HandmadeLease(5), guard=guarded.guard())
        assert {block: outcome(guarded, fenced, *block) for block in expected} == expected
        stack.run(swallowing(WRITE, "COMMIT"))
        assert guarded.value() == "first", "the lease is still presented on the connection"
