"""Migrations of Django protect tables, keep them protected, and run under a lock."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, migrations, models, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.writer import OperationWriter
from django.test import override_settings

import fencelock
from fencelock import LeaseLostError, StaleTokenError, UnprotectedTableError
from fencelock._api.guard import inspect_resources
from fencelock.errors import ConfigError
from fencelock.integrations.django import ProtectTable, UnprotectTable, fenced, lock
from fencelock.integrations.django.management.commands.fencelock_migrate import Command as FencelockMigrate
from fencelock.testing import lose
from tests.integrations.databases import GuardedDatabase
from tests.integrations.djangos import connected_to

RESOURCE = {"resource": "ledger", "lock": "book-keeping"}
TABLES = {"ledger_account", "ledger_account_owners"}
on_sqlite = pytest.mark.parametrize("empty", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def project(empty: GuardedDatabase, tmp_path: Any) -> Iterator[None]:
    """Install the app with migrations, on an empty database."""
    apps = ["fencelock.integrations.django", "books", "ledger"]
    locks = {"SOURCE": f"sqlite:///{tmp_path / 'locks.db'}"}
    with connected_to(empty), override_settings(INSTALLED_APPS=apps, FENCELOCK=locks):
        yield


def migrate(name: str | None = None, *, command: str = "migrate", **options: Any) -> None:
    call_command(command, "ledger", *([name] if name else []), verbosity=0, skip_checks=True, **options)


def protected_there(empty: GuardedDatabase) -> set[str]:
    return {one.table.rpartition(".")[2] for one in inspect_resources(empty.url).protections}


def write() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO ledger_account (balance) VALUES (1)")


def check_refused(empty: GuardedDatabase) -> None:
    with pytest.raises(DatabaseError, match=empty.refused):
        write()


def take() -> Any:
    return lock("book-keeping", ttl=10.0)


def work(lease: Any) -> None:
    with fenced(lease, resource="ledger"):
        write()


# --- the operations ---------------------------------------------------------------------------------------------------
def test_a_migration_protects_the_table_that_it_creates_and_back(empty: GuardedDatabase) -> None:
    migrate("0001")
    assert protected_there(empty) == TABLES
    check_refused(empty)
    with take() as lease:
        work(lease)
    migrate("zero")
    assert protected_there(empty) == set()
    migrate("0001")
    check_refused(empty)


def test_a_rebuilt_table_stays_protected(empty: GuardedDatabase) -> None:
    migrate("0002")
    assert protected_there(empty) == TABLES
    check_refused(empty)
    with take() as lease:
        work(lease)
    migrate("0001")
    assert protected_there(empty) == TABLES
    check_refused(empty)


def test_a_data_migration_unprotects_the_table_for_itself_alone(empty: GuardedDatabase) -> None:
    migrate("0003")
    assert empty.rows("SELECT balance FROM ledger_account") == [(100,)]
    assert protected_there(empty) == TABLES
    check_refused(empty)


def test_what_a_failed_migration_protected_is_undone_where_ddl_is(empty: GuardedDatabase) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    migrate("0001")
    migration = migrations.Migration("0002", "ledger")
    migration.operations = [UnprotectTable("Account", **RESOURCE), migrations.RunPython(fail)]
    with pytest.raises(ZeroDivisionError):
        apply(migration, after="0001_initial")
    if empty.kind == "mysql":
        assert protected_there(empty) == set(), "each DDL statement commits there"
        migration.operations = [ProtectTable("Account", **RESOURCE)]
        apply(migration, after="0001_initial")
    assert protected_there(empty) == TABLES
    check_refused(empty)


def apply(migration: migrations.Migration, *, after: str) -> None:
    state = MigrationLoader(connection).project_state([("ledger", after)])
    with connection.schema_editor(atomic=migration.atomic) as editor:
        migration.apply(state, editor)


@on_sqlite
def test_a_rebuild_keeps_the_mode_and_needs_no_transaction_of_the_migration(empty: GuardedDatabase) -> None:
    guard = fencelock.guard(empty.url, **RESOURCE)
    migrate("0001")
    guard.unprotect(reason="to observe first")
    guard.protect("ledger_account", mode="observe")
    migration = migrations.Migration("0002", "ledger")
    migration.atomic = False
    migration.operations = [migrations.AlterField("Account", "balance", models.BigIntegerField(default=0))]
    apply(migration, after="0001_initial")
    (found,) = inspect_resources(empty.url).protections
    assert (found.table, found.mode) == ("ledger_account", "observe")


def test_a_renamed_table_stays_protected_when_it_is_altered(empty: GuardedDatabase) -> None:
    migrate("0001")
    migration = migrations.Migration("0002", "ledger")
    migration.operations = [
        migrations.AlterModelTable("Account", "acct"),
        migrations.AlterField("Account", "balance", models.BigIntegerField(default=0)),
    ]
    apply(migration, after="0001_initial")
    assert "acct" in protected_there(empty)
    with pytest.raises(DatabaseError, match=empty.refused), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO acct (balance) VALUES (1)")


@on_sqlite
def test_a_rebuild_of_an_unprotected_table_protects_nothing(empty: GuardedDatabase) -> None:
    migrate("0001")
    migration = migrations.Migration("0002", "ledger")
    migration.operations = [migrations.AlterField("Owner", "name", models.TextField(unique=True))]
    apply(migration, after="0001_initial")
    assert protected_there(empty) == TABLES


@on_sqlite
def test_a_rebuild_that_fails_leaves_the_table_protected(empty: GuardedDatabase) -> None:
    migrate("0001")
    with take() as lease, fenced(lease, resource="ledger"), connection.cursor() as cursor:
        cursor.execute("INSERT INTO ledger_account (balance) VALUES (1), (1)")
    migration = migrations.Migration("0002", "ledger")
    migration.operations = [migrations.AlterField("Account", "balance", models.IntegerField(unique=True))]
    with pytest.raises(DatabaseError, match="UNIQUE"):
        apply(migration, after="0001_initial")
    assert protected_there(empty) == TABLES
    check_refused(empty)


@on_sqlite
def test_g16_a_table_that_another_tool_rebuilt_stops_blocks_until_it_is_protected_again(
    empty: GuardedDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("migrate", run_syncdb=True, verbosity=0, skip_checks=True)
    empty.rows("CREATE TABLE copied (id INTEGER PRIMARY KEY, balance INTEGER)")
    empty.rows("DROP TABLE ledger_account")
    empty.rows("ALTER TABLE copied RENAME TO ledger_account")
    with take() as lease:
        with pytest.raises(UnprotectedTableError, match="ledger_account"):
            work(lease)
        assert "fencelock.W001" in {message.id for message in run_checks(databases=["default"])}
        call_command("fencelock_protect")
        assert "ledger_account: enforce" in capsys.readouterr().out
        work(lease)
    check_refused(empty)


@on_sqlite
def test_an_operation_is_written_into_a_migration_as_it_was_read() -> None:
    text, imports = OperationWriter(ProtectTable("Account", **RESOURCE)).serialize()
    names: dict[str, Any] = {}
    exec("\n".join(imports), names)  # noqa: S102 - what Django itself wrote.
    again = eval(text.strip().rstrip(","), names)  # noqa: S307
    assert (again.model_name, again.resource, again.lock) == ("Account", "ledger", "book-keeping")
    assert again.describe() == "protect the table of Account (resource ledger, lock book-keeping)"
    assert again.migration_name_fragment == "protect_account"
    with pytest.raises(ConfigError):
        ProtectTable("Account", resource="", lock="book-keeping")


@on_sqlite
def test_sqlmigrate_leaves_the_operation_out(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("sqlmigrate", "ledger", "0001", skip_checks=True)
    assert "THIS OPERATION CANNOT BE WRITTEN AS SQL" in capsys.readouterr().out


@on_sqlite
def test_a_database_in_memory_is_left_alone(empty: GuardedDatabase) -> None:
    empty.settings["NAME"] = ":memory:"
    with connected_to(empty):
        migrate("0003")
        write()


# --- the commands -----------------------------------------------------------------------------------------------------
def test_migrate_under_a_lock_waits_for_the_other_process(empty: GuardedDatabase) -> None:
    with lock("django-migrate", ttl=10.0), pytest.raises(CommandError, match="django-migrate"):
        migrate(command="fencelock_migrate", wait=0.01)
    migrate(command="fencelock_migrate")
    check_refused(empty)


def test_migrate_under_the_resources_lock_refuses_former_holders() -> None:
    migrate("0001")
    with take() as former:
        work(former)
        sequencer = former.sequencer
    migrate(command="fencelock_migrate", lock="book-keeping")
    with pytest.raises(StaleTokenError):
        work(sequencer)


@on_sqlite
def test_no_further_migration_begins_once_the_lease_is_lost(
    empty: GuardedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = FencelockMigrate.migration_progress_callback

    def lose_after_the_first(self: Any, action: str, *args: Any) -> None:
        report(self, action, *args)
        if action == "apply_success":
            lose(self._lease)

    monkeypatch.setattr(FencelockMigrate, "migration_progress_callback", lose_after_the_first)
    with pytest.raises(CommandError) as caught:
        migrate(command="fencelock_migrate")
    assert isinstance(caught.value.__cause__, LeaseLostError)
    assert empty.rows("SELECT name FROM django_migrations WHERE app = 'ledger'") == [("0001_initial",)]


def test_unprotect_lets_every_program_write_again(empty: GuardedDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    migrate("0001")
    call_command("fencelock_unprotect", reason="the project moves")
    write()
    assert protected_there(empty) == set()
    call_command("fencelock_unprotect", reason="the project moves")
    said = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in said] == ["every program can write it"] * 2 + [
        "no table is protected in database default"
    ]


def test_install_makes_both_halves_ready(empty: GuardedDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    with override_settings(FENCELOCK={"SOURCE": empty.url}):
        call_command("fencelock_install")
        call_command("fencelock_install")
        with take() as lease:
            assert lease.token > 0
    assert inspect_resources(empty.url).marks == ()
    said = capsys.readouterr().out
    assert said.count("is ready for locks") == said.count("is ready for guards") == 2
