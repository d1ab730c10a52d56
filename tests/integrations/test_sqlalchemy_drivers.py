"""Blocks of SQLAlchemy that end without an error, over every driver that the reference names: each is committed."""

import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from fencelock import AlreadyDoneError, BlockLostError, GuardError, StaleTokenError, inspect_resources, set_floor
from fencelock._api.idle_limit import is_from_lost_block
from tests.integrations.alchemy import Body, Stack, write
from tests.integrations.alembics import TERMS, Project
from tests.integrations.databases import GuardedDatabase, open_guarded
from tests.integrations.endings import ENDED, WRITE, check_endings
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


@pytest.fixture(params=[(kind, driver) for kind in DRIVERS for driver in DRIVERS[kind]], ids=lambda both: both[1])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GuardedDatabase]:
    kind, driver = request.param
    module = MODULES.get(driver, driver)
    spec = importlib.util.find_spec(module)
    if spec is None or spec.name != module:  # Without mysqlclient, Django's project lets PyMySQL answer to its name.
        if driver in OPTIONAL:
            pytest.skip(f"{module} is not installed")
        refuse(f"{module} is not installed: see requirements/test.txt")
    with open_guarded(kind, tmp_path, request.getfixturevalue) as there:
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


def end_by_the_driver(target: Any) -> None:
    """Write, and roll back in a way that SQLAlchemy does not see."""
    target.execute(text(WRITE))
    connection = target if isinstance(target, Connection) else target.connection()
    connection.connection.rollback()


def test_a_block_that_ends_well_is_committed(guarded: GuardedDatabase) -> None:
    for stack in stacks(guarded):
        fenced = partial(stack.fenced, HandmadeLease(5), guard=guarded.guard())
        check_endings(guarded, lambda *statements, fenced=fenced: fenced(swallowing(*statements)))
        with pytest.raises(GuardError, match=ENDED):
            fenced(end_by_the_driver)
        stack.run(swallowing(WRITE, "COMMIT"))
        assert guarded.value() == "first", "the lease is still presented on the connection"


def test_g14_the_work_of_a_key_is_committed_once_with_every_driver(guarded: GuardedDatabase) -> None:
    for number, stack in enumerate(stacks(guarded)):
        stack.fenced(HandmadeLease(5), write("done"), once=f"job {number}")
        with pytest.raises(AlreadyDoneError):
            stack.fenced(HandmadeLease(5), write("twice"), once=f"job {number}")
    assert guarded.value() == "done"


def test_g15_a_token_that_is_not_above_the_floor_is_refused_with_every_driver(guarded: GuardedDatabase) -> None:
    """Protecting has made a mark that has no source yet."""
    set_floor(guarded.url, HandmadeLease(5).sequencer.source_id, 5, reason="a test")
    for stack in stacks(guarded):
        with pytest.raises(StaleTokenError, match="up to token 5 were purged here") as caught:
            stack.fenced(HandmadeLease(5), write("stale"))
        assert (caught.value.token, caught.value.mark, caught.value.resource) == (5, 5, "reports")
    assert guarded.value() == "first"


def test_g12_other_sessions_see_no_proof_in_the_statements_of_a_block(guarded: GuardedDatabase) -> None:
    """They do with psycopg2, which writes all parameters into the text, as the page of PostgreSQL's guard says."""
    if guarded.kind != "postgres":
        return
    for stack in stacks(guarded):
        lease, seen = HandmadeLease(5), set[str]()

        def look(_: Any, seen: set[str] = seen) -> None:
            # Of this database alone: elsewhere other tests show this very proof.
            shown = guarded.rows("SELECT query FROM pg_stat_activity WHERE datname = current_database()")
            seen.update(query for (query,) in shown)

        stack.fenced(lease, look, guard=guarded.guard())
        shown = "\n".join(seen)
        assert "fencelock.offer" in shown
        assert (lease.sequencer.proof in shown) == ("psycopg2" in guarded.engines[0])


def test_g3_a_block_whose_session_the_server_ended_says_so_with_every_driver(guarded: GuardedDatabase) -> None:
    """By its error, or by a note on the driver's, which tells of a closed connection at most."""
    if guarded.kind == "sqlite":
        return  # It has no sessions.
    for stack in stacks(guarded):
        for then in (WRITE, None):
            with pytest.raises((BlockLostError, DBAPIError)) as caught:
                stack.fenced(HandmadeLease(5), partial(lose, guarded, then), guard=guarded.guard())
            told = "\n".join((str(caught.value), *getattr(caught.value, "__notes__", ())))
            assert "closed inside its block" in told
            assert "Nothing of it was written" in told
            assert "token 5 is still valid, for 30.0 s: only this block is gone" in told
            assert is_from_lost_block(caught.value)
            assert guarded.value() == "first"
            stack.free()


def lose(guarded: GuardedDatabase, then: str | None, target: Any) -> None:
    """Write, lose the session, and go on."""
    target.execute(text(WRITE))
    guarded.end_other_sessions()
    if then is not None:
        target.execute(text(then))


def test_g3_the_session_limits_a_block_as_its_idle_says(guarded: GuardedDatabase) -> None:
    look = {
        "postgres": "SELECT current_setting('idle_in_transaction_session_timeout')",
        "mysql": "SELECT @@idle_transaction_timeout",
        "sqlite": "SELECT 77",
    }
    for stack in stacks(guarded):
        seen: list[Any] = []
        body = partial(see, look[guarded.kind], seen)
        stack.fenced(HandmadeLease(5), body, guard=guarded.guard(), idle=77)
        assert seen in (["77s"], [77])


def see(statement: str, seen: list[Any], target: Any) -> None:
    seen.append(target.execute(text(statement)).scalar_one())


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index fencelock_")
def test_alembic_protects_a_table(guarded: GuardedDatabase, tmp_path: Path) -> None:
    driver = guarded.engines[0].partition("://")[0].partition("+")[2]
    project = Project(tmp_path, guarded, is_async=driver in ASYNCHRONOUS)
    columns = "Column('id', Integer, primary_key=True), Column('value', String(40))"
    project.models(
        f"Table('reports', metadata, {columns})\nTable('plain', metadata, {columns}, info={{'fencelock': {TERMS}}})"
    )
    assert "op.fencelock_hold(" in project.autogenerate() or guarded.kind == "mysql"
    project.run("upgrade", "head")
    assert {one.table.rpartition(".")[2] for one in inspect_resources(guarded.url).protections} == {"reports", "plain"}
