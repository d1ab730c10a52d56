"""Migrations that change protected tables and their rows: rebuilt tables, open guarded blocks, data, one at a time."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fencelock
from fencelock.errors import UnsupportedError
from tests.integrations import alembics
from tests.integrations.alembics import Project
from tests.integrations.databases import GuardedDatabase, make_tables
from tests.integrations.test_alembic import assert_fenced, protections
from tests.support.guards import LOCK, RESOURCE
from tests.support.helpers import DEADLINE_S, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index fencelock_")

TERMS = f"resource='{RESOURCE}', lock='{LOCK}'"
HOLD = f"op.fencelock_hold('{RESOURCE}')\n"
PROTECT = f"op.fencelock_protect('{{}}', {TERMS})\n"
ADD = "op.add_column('reports', sa.Column('remark', sa.String(40)))\n"
REBUILD = """
with op.batch_alter_table('{}', recreate='always') as batch_op:
    batch_op.add_column(sa.Column('remark', sa.String(40)))
"""
MIGRATE = """
import sys
import fencelock
from alembic import command
from alembic.config import Config

with fencelock.connect(sys.argv[1]) as source, source.lock("migrate", ttl=30.0):
    command.upgrade(Config(sys.argv[2]), "head")
"""
DATA = """
import fencelock
from fencelock.integrations.sqlalchemy import fenced
"""


def columns(guarded: GuardedDatabase, table: str = "reports") -> int:
    (row,) = guarded.rows(f"SELECT * FROM {table} WHERE id = 1")
    return len(row)


@pytest.mark.parametrize(("mode", "table"), [("enforce", "reports"), ("observe", "reports"), ("enforce", "Reports")])
def test_batch_mode_keeps_a_table_protected(empty_file: GuardedDatabase, tmp_path: Path, mode: str, table: str) -> None:
    empty_file.rows("CREATE TABLE reports (id INTEGER PRIMARY KEY, value VARCHAR(40))")
    empty_file.rows("INSERT INTO reports VALUES (1, 'first')")
    empty_file.guard().protect(RESOURCE, mode=mode)
    project = Project(tmp_path, empty_file)
    project.migration(REBUILD.format(table))
    project.run("upgrade", "head")
    assert columns(empty_file) == 3
    (kept,) = fencelock.inspect_resources(empty_file.url).protections
    assert kept == fencelock.Protection(table, RESOURCE, mode)


def test_batch_mode_keeps_a_renamed_table_protected(guarded_file: GuardedDatabase, tmp_path: Path) -> None:
    project = Project(tmp_path, guarded_file)
    project.migration("op.rename_table('reports', 'moved')\n" + REBUILD.format("moved"))
    project.run("upgrade", "head")
    assert columns(guarded_file, "moved") == 3
    assert protections(guarded_file) == {"moved": RESOURCE}


def test_batch_mode_keeps_what_the_same_migration_protects(guarded_file: GuardedDatabase, tmp_path: Path) -> None:
    project = Project(tmp_path, guarded_file)
    project.migration(PROTECT.format("plain") + REBUILD.format("plain"))
    project.run("upgrade", "head")
    assert columns(guarded_file, "plain") == 3
    assert protections(guarded_file) == {"reports": RESOURCE, "plain": RESOURCE}


def test_a_failed_rebuild_changes_nothing(guarded_file: GuardedDatabase, tmp_path: Path) -> None:
    project = Project(tmp_path, guarded_file)
    project.migration(REBUILD.format("reports") + "raise ZeroDivisionError")
    with pytest.raises(ZeroDivisionError):
        project.run("upgrade", "head")
    assert columns(guarded_file) == 2
    assert_fenced(guarded_file)


def test_batch_mode_leaves_other_tables_to_alembic(guarded_file: GuardedDatabase, tmp_path: Path) -> None:
    project = Project(tmp_path, guarded_file)
    project.migration(REBUILD.format("plain"))
    project.run("upgrade", "head")
    assert columns(guarded_file, "plain") == 3
    assert protections(guarded_file) == {"reports": RESOURCE}


def test_a_script_of_sql_may_rebuild_a_table(empty_file: GuardedDatabase, tmp_path: Path) -> None:
    project = Project(tmp_path, empty_file)
    known = "sa.Table('reports', sa.MetaData(), sa.Column('id', sa.Integer, primary_key=True))"
    project.migration(REBUILD.format("reports").replace("recreate=", f"copy_from={known}, recreate="))
    project.run("upgrade", "head", "--sql")


def test_a_database_in_memory_is_left_to_alembic(empty_file: GuardedDatabase, tmp_path: Path) -> None:
    empty_file.engines = ("sqlite://", "sqlite+aiosqlite://")
    project = Project(tmp_path, empty_file)
    project.models("Table('reports', metadata, Column('id', Integer, primary_key=True))")
    project.autogenerate()
    project.migration(REBUILD.format("reports"))
    project.run("upgrade", "head")


@pytest.mark.parametrize("hold", [HOLD, ""], ids=["held", "not held"])
def test_a_table_that_is_rebuilt_in_sql_is_protected_again(guarded: GuardedDatabase, tmp_path: Path, hold: str) -> None:
    if guarded.kind == "mysql" and hold:
        pytest.skip("each DDL statement commits")
    rebuild = [
        "CREATE TABLE newer (id INTEGER NOT NULL PRIMARY KEY, value VARCHAR(40), remark VARCHAR(40))",
        "INSERT INTO newer (id, value) SELECT id, value FROM reports",
        "DROP TABLE reports",
        "ALTER TABLE newer RENAME TO reports",
    ]
    project = Project(tmp_path, guarded)
    project.migration(hold + "".join(f"op.execute({line!r})\n" for line in rebuild) + PROTECT.format("reports"))
    project.run("upgrade", "head")
    assert columns(guarded) == 3
    assert_fenced(guarded)


def test_a_migration_and_a_guarded_block_do_not_wait_for_each_other(guarded: GuardedDatabase, tmp_path: Path) -> None:
    """The block has the mark and no table yet. Without the hold, the migration would have the table and no mark yet."""
    project = Project(tmp_path, guarded)
    hold = "" if guarded.kind == "mysql" else HOLD
    signal = "alembics.REACHED.set()\n"
    # Alembic's own first writes are none of the block's concern.
    project.migration("pass")
    project.run("upgrade", "head")
    project.migration(signal + hold + ADD + PROTECT.format("plain"), imports="from tests.integrations import alembics")
    alembics.REACHED.clear()
    guard = guarded.guard()
    with (
        fencelock.connect(f"sqlite:///{tmp_path}/locks.db") as source,
        source.lock(LOCK, ttl=60.0) as lease,
        ThreadPoolExecutor(1) as pool,
    ):
        with guard.transaction(lease) as connection:
            migration = pool.submit(project.run, "upgrade", "head")
            assert alembics.REACHED.wait(DEADLINE_S)
            if guarded.kind == "postgres":
                waiting = (
                    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
                wait_until(lambda: guarded.rows(waiting))
            connection.cursor().execute("UPDATE reports SET value = 'written' WHERE id = 1")
        migration.result(DEADLINE_S)
    assert guarded.value() == "written"
    assert columns(guarded) == 3
    assert protections(guarded) == {"reports": RESOURCE, "plain": RESOURCE}


def test_a_hold_is_refused_where_ddl_commits(guarded: GuardedDatabase, tmp_path: Path) -> None:
    if guarded.kind != "mysql":
        pytest.skip("DDL is transactional there")
    project = Project(tmp_path, guarded)
    project.migration(HOLD)
    with pytest.raises(UnsupportedError, match="while you hold the lock"):
        project.run("upgrade", "head")


@pytest.mark.parametrize("is_protected", [True, False], ids=["other resource", "no guard"])
def test_a_hold_of_what_does_not_exist_does_nothing(empty: GuardedDatabase, tmp_path: Path, is_protected: bool) -> None:
    if empty.kind == "mysql":
        pytest.skip("each DDL statement commits")
    if is_protected:
        make_tables(empty)
    project = Project(tmp_path, empty)
    project.migration(HOLD.replace("'reports'", "'others'") + "op.create_table('x', sa.Column('id', sa.Integer))")
    project.run("upgrade", "head")
    assert empty.rows("SELECT * FROM x") == []


def test_protect_follows_data_of_its_own_migration(guarded: GuardedDatabase, tmp_path: Path) -> None:
    """On MySQL the guard's own DDL would wait for the table that the migration has written."""
    project = Project(tmp_path, guarded)
    project.migration("op.execute(\"UPDATE plain SET value = 'before'\")\n" + PROTECT.format("plain"))
    project.run("upgrade", "head")
    assert guarded.value("plain") == "before"
    assert protections(guarded) == {"reports": RESOURCE, "plain": RESOURCE}


def test_a_migration_writes_rows_of_a_protected_table_under_the_lock(guarded: GuardedDatabase, tmp_path: Path) -> None:
    project = Project(tmp_path, guarded)
    body = f"""
    with (
        op.get_context().autocommit_block(),
        fencelock.connect("sqlite:///{tmp_path}/locks.db") as source,
        source.lock("{LOCK}", ttl=30.0) as lease,
        op.get_bind().engine.connect() as connection,
        fenced(connection, lease, resource="{RESOURCE}"),
    ):
        connection.execute(sa.text("UPDATE reports SET remark = 'by a migration'"))
    """
    project.migration(("" if guarded.kind == "mysql" else HOLD) + ADD, imports=DATA)
    project.migration(ADD.replace("remark", "other") + alembics.dedent(body), imports=DATA)
    project.run("upgrade", "head")
    assert guarded.rows("SELECT remark FROM reports") == [("by a migration",)]


@pytest.mark.process
def test_a_second_migration_waits_for_the_first_one(empty: GuardedDatabase, tmp_path: Path) -> None:
    locks = f"sqlite:///{tmp_path}/locks.db"
    project = Project(tmp_path, empty)
    column = "sa.Column('id', sa.Integer, primary_key=True)"
    project.migration(f"op.create_table('reports', {column})\n" + PROTECT.format("reports"))
    with fencelock.connect(locks) as source:
        with source.lock("migrate", ttl=60.0):
            second = subprocess.Popen([sys.executable, "-c", MIGRATE, locks, str(project.ini)])
            project.run("upgrade", "head")
        assert second.wait(DEADLINE_S) == 0
    assert protections(empty) == {"reports": RESOURCE}
