"""SQLAlchemy's many ways to set up an engine or a session, and what a guarded block makes of each."""

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import fencelock
from fencelock import ConfigError, GuardError
from fencelock.integrations.sqlalchemy import fenced
from fencelock.integrations.sqlalchemy.urls import url_of
from tests.integrations.alchemy import TARGETS, Plain, Report, Stack, write
from tests.integrations.databases import GuardedDatabase, open_guarded
from tests.support.guards import LOCK, HandmadeLease

ENDING = {
    "postgres": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({}, 5000)"),
    "mysql": ("SELECT connection_id()", "KILL HARD CONNECTION {}"),
}
"""How to tell which connection it is, and to have the server end it."""


@pytest.fixture
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GuardedDatabase]:
    """A file of SQLite's."""
    with open_guarded("sqlite", tmp_path, request.getfixturevalue) as guarded:
        yield guarded


@pytest.fixture
def lease() -> HandmadeLease:
    return HandmadeLease(5)


# --- SQLite: who begins, and when -------------------------------------------------------------------
@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"])
@pytest.mark.parametrize("target", TARGETS)
def test_an_engine_that_begins_by_an_event_works(
    file: GuardedDatabase, lease: HandmadeLease, target: str, begin: str
) -> None:
    stack = Stack(target, file)

    @event.listens_for(stack.engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(stack.engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    stack.run(lambda it: it.rollback())
    stack.fenced(lease, write("new"))
    assert file.value() == "new"
    stack.close()


@pytest.mark.parametrize("target", TARGETS)
def test_an_engine_in_autocommit_leaves_no_transaction_behind(
    file: GuardedDatabase, lease: HandmadeLease, target: str
) -> None:
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "skip_autocommit_rollback": True}
    stack = Stack(target, file, isolation_level="AUTOCOMMIT", **options)
    stack.fenced(lease, write("new"))
    assert file.value() == "new"
    with pytest.raises(ZeroDivisionError):
        stack.fenced(lease, lambda it: (write("lost")(it), 1 / 0))
    assert file.value() == "new"
    with pytest.raises(DBAPIError, match=file.refused):
        stack.run(write("unfenced"))
    stack.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 brought Connection.autocommit")
@pytest.mark.reduced
def test_a_driver_that_keeps_a_transaction_open_needs_foreign_keys_from_the_start(
    file: GuardedDatabase, lease: HandmadeLease
) -> None:
    engine = create_engine(file.engines[0], connect_args={"autocommit": False})
    with Session(engine) as session:
        block = fenced(session, lease, resource="reports")
        with pytest.raises(GuardError, match="when a connection is made"), block:
            pass

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.autocommit = True
        connection.execute("PRAGMA foreign_keys = ON").close()
        connection.autocommit = False

    engine.dispose()
    with Session(engine) as session, fenced(session, lease, resource="reports"):
        session.execute(text("UPDATE reports SET value = 'new'"))
    assert file.value() == "new"
    engine.dispose()


def test_foreign_keys_are_enforced_in_the_block_alone(file: GuardedDatabase, lease: HandmadeLease) -> None:
    file.rows("CREATE TABLE child (parent INTEGER REFERENCES plain)")
    orphan = text("INSERT INTO child VALUES (99)")
    stack = Stack("connection", file)
    with pytest.raises(IntegrityError, match="FOREIGN KEY"):
        stack.fenced(lease, lambda it: it.execute(orphan))
    stack.run(lambda it: (it.execute(orphan), it.commit()))
    stack.close()


@pytest.mark.parametrize("target", TARGETS)
def test_a_file_that_others_write_is_waited_for_no_longer_than_the_engine_says(
    file: GuardedDatabase, lease: HandmadeLease, target: str
) -> None:
    stack = Stack(target, file, connect_args={"timeout": 0.05})
    stack.fenced(lease, write("mine"))
    busy = sqlite3.connect(file.settings["NAME"], isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    with pytest.raises(fencelock.SourceUnavailableError):
        stack.fenced(lease, write("lost"))
    busy.close()
    stack.fenced(lease, write("next"))
    assert file.value() == "next"
    stack.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:app.db?uri=true"])
def test_a_database_without_a_file_cannot_be_guarded(url: str, lease: HandmadeLease) -> None:
    engine = create_engine(url)
    with Session(engine) as session, pytest.raises(ConfigError, match="a guard needs a file on disk"):
        fenced(session, lease, resource="reports")
    engine.dispose()


def test_a_guard_of_another_file_is_refused(file: GuardedDatabase, lease: HandmadeLease, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    guard = fencelock.guard(f"sqlite:///{other}", resource="reports", lock=LOCK)
    stack = Stack("session", file)
    with pytest.raises(GuardError, match="this guard is for"):
        stack.fenced(lease, write("new"), guard=guard)
    stack.close()


# --- sessions ---------------------------------------------------------------------------------------
def test_a_session_with_several_engines_must_name_one(
    guarded: GuardedDatabase, tmp_path: Path, lease: HandmadeLease
) -> None:
    engine, other = create_engine(guarded.engines[0]), create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with Session(binds={Report: engine, Plain: other}) as session:
        with pytest.raises(ConfigError, match="bind_arguments"):
            fenced(session, lease, resource="reports")
        with fenced(session, lease, resource="reports", bind_arguments={"mapper": Report}):
            session.get_one(Report, 1).value = "new"
    assert guarded.value() == "new"
    engine.dispose()
    other.dispose()


def test_a_session_that_is_bound_to_a_connection(guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    engine = create_engine(guarded.engines[0])
    with engine.connect() as connection, Session(connection) as session:
        with fenced(session, lease, resource="reports"):
            session.get_one(Report, 1).value = "new"
        assert guarded.value() == "new"
        block = fenced(session, lease, resource="reports")
        with connection.begin(), pytest.raises(GuardError, match="session's connection is in a transaction"), block:
            pass
    engine.dispose()


def test_a_scoped_session_stands_for_its_session(guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    engine = create_engine(guarded.engines[0])
    registry = scoped_session(sessionmaker(engine))
    with fenced(registry, lease, resource="reports") as session:
        assert session is registry()
        registry.get_one(Report, 1).value = "new"
    assert guarded.value() == "new"
    registry.remove()
    engine.dispose()


def test_the_engines_options_for_a_block_hold(guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    engine = create_engine(guarded.engines[0])
    serializable = engine.execution_options(isolation_level="SERIALIZABLE")
    with Session(serializable) as session, fenced(session, lease, resource="reports"):
        if guarded.kind == "postgres":
            assert session.scalar(text("SHOW transaction_isolation")) == "serializable"
        session.get_one(Report, 1).value = "new"
    assert guarded.value() == "new"
    engine.dispose()


def test_a_block_whose_connection_was_killed_is_rolled_back_and_the_pool_works(
    guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    if guarded.kind == "sqlite":
        pytest.skip("a file has no server that could end a connection")
    for target in TARGETS:
        stack = Stack(target, guarded)

        def ended(it: Any) -> None:
            write("lost")(it)
            which, kill = ENDING[guarded.kind]
            guarded.rows(kill.format(it.execute(text(which)).scalar_one()))
            if hasattr(it, "flush"):
                it.add(Report(id=2, value="lost"))
                it.flush()
            it.execute(text("SELECT 1"))

        with pytest.raises((DBAPIError, GuardError)):
            stack.fenced(lease, ended)
        assert guarded.value() != "lost"
        stack.fenced(lease, write("next"))
        assert guarded.value() == "next"
        stack.close()


# --- URLs -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("engine", "guard"),
    [
        ("sqlite:////var/app.db", "sqlite:////var/app.db"),
        (
            "postgresql+psycopg://me:p%40ss@db:5433/app",
            "postgresql://?host=db&dbname=app&user=me&password=p%40ss&port=5433",
        ),
        ("postgresql+psycopg:///app?service=books", "postgresql://?dbname=app&service=books"),
        ("postgresql+psycopg://me@/app?host=a:1&host=b:2", "postgresql://?host=a%2Cb&port=1%2C2&dbname=app&user=me"),
    ],
)
def test_the_guards_url_is_the_engines(engine: str, guard: str) -> None:
    made = create_engine(engine)
    found = url_of(made)
    assert sorted(found.partition("?")[2].split("&")) == sorted(guard.partition("?")[2].split("&"))
    assert found.partition("?")[0] == guard.partition("?")[0]
    made.dispose()


def test_an_engine_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no guard for"):
        url_of(cast("Any", SimpleNamespace(url=make_url("oracle://me@db/app"))))
