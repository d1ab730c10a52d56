"""`fencelock install` and `uninstall` on both SQL servers: everything of fencelock's is made, and removed again."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import fencelock
from fencelock import SchemaError
from fencelock.stores.registry import guard_store, source_store
from tests.cli.program import Program, program
from tests.sql.dialect import SqlDialect
from tests.sql.guarded import Guarded
from tests.sql.marks import one_version
from tests.support.guards import LOCK, RESOURCE, HandmadeLease

__all__ = ["program"]

pytestmark = one_version


@pytest.fixture
def output(program: Program) -> Callable[..., str]:
    """Run a command that exits with a code, and return all that it prints."""

    def said(code: int, *words: str) -> str:
        done = program.inside(*words)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return said


def objects(sql: SqlDialect, database: Any) -> set[Any]:
    """Return everything that the database holds."""
    return {row for statement in sql.objects for row in database.rows(statement)}


def test_one_install_makes_both_halves(unprotected: Guarded, program: Program) -> None:
    url = unprotected.database.url()
    for _ in range(2):
        made = program.json("install", "--source", url)
        assert made["guards"] == [made["source"]]
    with fencelock.connect(url) as source, source.lock(LOCK) as lease:
        unprotected.guard("order:42").seal(lease)


def test_each_half_is_made_alone_and_the_error_names_the_other(unprotected: Guarded, program: Program) -> None:
    url = unprotected.database.url()
    assert program.json("install", "--guard", url)["source"] is None
    unprotected.guard().seal(HandmadeLease(5))
    with fencelock.connect(url) as source, pytest.raises(SchemaError, match=r"no source of tokens.*install --source "):
        source.describe()


def test_uninstall_leaves_nothing_of_fencelocks_and_all_else(
    sql: SqlDialect, unprotected: Guarded, output: Callable[..., str]
) -> None:
    database, url = unprotected.database, unprotected.database.url()
    database.rows("CREATE VIEW own_view AS SELECT id FROM reports")
    before = objects(sql, database)
    output(0, "install", "--source", url)
    unprotected.guard().protect("reports")
    with fencelock.connect(url) as source:
        source.add_key()
        with source.lock(LOCK) as lease, unprotected.guard().transaction(lease):
            pass
    assert "tables are protected (" in output(1, "uninstall", "--source", url)
    output(0, "unprotect", url, "--resource", RESOURCE, "--reason", "a test")
    assert output(0, "uninstall", "--source", url).count(": removed") == 2
    assert output(0, "uninstall", "--source", url).count(": nothing of fencelock's was there") == 2
    assert objects(sql, database) == before
    output(0, "install", "--source", url)
    unprotected.guard().protect("reports")


@pytest.mark.parametrize("half", ["guard", "source"])
def test_uninstall_names_what_needs_ours_and_removes_nothing_of_either_half(
    sql: SqlDialect, unprotected: Guarded, output: Callable[..., str], half: str
) -> None:
    database, url = unprotected.database, unprotected.database.url()
    output(0, "install", "--source", url)
    database.rows(sql.need_table.format(half))
    before = objects(sql, database)
    said = output(69, "uninstall", "--source", url)
    assert re.search(rf"own_need .*{sql.prefix}{half}(_audit)?\): drop .* Nothing was removed there", said)
    assert objects(sql, database) == before
    database.rows(sql.forgo_table)
    assert output(0, "uninstall", "--source", url).count(": removed") == 2


def test_install_without_options_makes_no_guard_beside_the_default_source(
    unprotected: Guarded, program: Program
) -> None:
    program.environment["FENCELOCK_SOURCE"] = url = unprotected.database.url()
    assert program.json("install")["guards"] == []
    assert source_store(url).is_installed()  # type: ignore[attr-defined]
    assert not guard_store(url).is_installed()  # type: ignore[attr-defined]


def test_uninstall_by_force_removes_the_triggers_of_protected_tables(
    sql: SqlDialect, unprotected: Guarded, output: Callable[..., str]
) -> None:
    url = unprotected.database.url()
    before = objects(sql, unprotected.database)
    unprotected.guard().protect("reports")
    unprotected.guard("other").protect(*make_table(unprotected.database))
    output(0, "uninstall", "--guard", url, "--force")
    unprotected.database.rows("DROP TABLE others")
    assert objects(sql, unprotected.database) == before
    with unprotected.client() as native, native.cursor() as cursor:
        cursor.execute("UPDATE reports SET value = 'by anybody'")


def make_table(database: Any) -> tuple[str, ...]:
    database.rows("CREATE TABLE others (id int PRIMARY KEY)")
    return ("others",)


def test_one_half_stays_when_the_other_is_removed(unprotected: Guarded, output: Callable[..., str]) -> None:
    url = unprotected.database.url()
    output(0, "install", "--source", url)
    guard_store(url).uninstall()  # type: ignore[attr-defined]
    with fencelock.connect(url) as source:
        source.add_key()
        with source.lock(LOCK) as lease:
            assert lease.sequencer.signature
    output(0, "install", "--source", url)
    source_store(url).uninstall()  # type: ignore[attr-defined]
    unprotected.guard().seal(HandmadeLease(5))


def test_uninstall_waits_for_the_holders(unprotected: Guarded, output: Callable[..., str]) -> None:
    url = unprotected.database.url()
    output(0, "install", "--source", url)
    with fencelock.connect(url) as source:
        with source.lock(LOCK):
            refused = output(1, "uninstall", "--source", url)
            assert f"locks are held or waited for ({LOCK}): stop their holders" in refused
            assert source.info(LOCK).is_held
        output(0, "uninstall", "--source", url)
        with pytest.raises(SchemaError):
            source.describe()


def test_another_versions_schema_is_not_removed(guarded: Guarded, output: Callable[..., str]) -> None:
    guarded.database.rows(f"UPDATE {guarded.sql.prefix}guard SET {guarded.sql.schema_column} = 2")
    said = output(69, "uninstall", "--guard", guarded.database.url(), "--force")
    assert "with schema 2, and this version of fencelock has schema 3" in said
    assert guarded.database.value(f"SELECT COUNT(*) FROM {guarded.sql.prefix}mark") == 1
