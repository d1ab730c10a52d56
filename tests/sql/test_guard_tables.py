"""Which tables the guard on an SQL server protects, and what installing, repeating and taking away do."""

import asyncio
from typing import Any

import pytest

import fencelock
from fencelock import GuardError, SchemaError
from fencelock._api.guard import inspect_resources
from fencelock.stores.registry import guard_store
from tests.sql.dialect import SqlDialect, run
from tests.sql.guarded import Guarded, Step
from tests.support.guards import LOCK, HandmadeLease, sequencer


def check_refused(guarded: Guarded, statement: str) -> None:
    """Assert that a write without a token is refused."""
    with guarded.database.connect() as native, pytest.raises(guarded.sql.client_error) as caught:
        run(native, statement)
    assert guarded.sql.code_of(caught.value) == "FL001", statement


def test_a_failed_first_protect_leaves_no_schema(sql: SqlDialect, unprotected: Guarded) -> None:
    store = guard_store(unprotected.database.url())
    for names in (("nowhere",), ("reports", "nowhere"), ("re ports",)):
        with pytest.raises(GuardError, match=r"there is no table .*nowhere|there is no table .*re ports"):
            unprotected.guard().protect(*names)
        with pytest.raises(GuardError, match="there is no table"):
            asyncio.run(unprotected.async_guard().protect(*names))
    assert not store.is_installed()
    unprotected.guard().protect("reports")
    assert store.is_installed()


# --- names ----------------------------------------------------------------------------------------
RESOURCES = ["it's", 'quo"te', "ünï", "back\\slash", "%s {} $1", "x" * 512, "a,b", "r.1", "'\"\\%_`", "\U0001f512"]


@pytest.mark.parametrize("resource", RESOURCES)
def test_resources_of_any_name_are_enforced(sql: SqlDialect, database: Any, resource: str) -> None:
    database.rows("CREATE TABLE reports (id int PRIMARY KEY)")
    guard = fencelock.guard(database.url(), resource=resource, lock=LOCK)
    guard.protect("reports")
    with database.connect() as native:
        with pytest.raises(sql.client_error) as caught:
            run(native, "INSERT INTO reports VALUES (1)")
        assert sql.code_of(caught.value) == "FL001"
        assert not sql.names_in_full or resource in str(caught.value)
        with guard.transaction(HandmadeLease(5)) as own:
            run(own, "INSERT INTO reports VALUES (1)")
        run(native, "START TRANSACTION")
        sql.present(native, sequencer(5), resource)
        run(native, "INSERT INTO reports VALUES (2)")
        run(native, sql.commit_presented)
        run(native, "START TRANSACTION")
        with pytest.raises(sql.client_error) as caught:
            sql.present(native, sequencer(4), resource)
        assert sql.code_of(caught.value) == "FL002"
    guard.protect("reports")
    assert [one.resource for one in inspect_resources(database.url()).protections] == [resource]


def test_a_renamed_table_stays_protected(guarded: Guarded) -> None:
    guarded.database.rows("ALTER TABLE reports RENAME TO moved")
    check_refused(guarded, "DELETE FROM moved")
    with guarded.guard().transaction(HandmadeLease(5)) as own:
        run(own, "UPDATE moved SET value = 'fenced'")
    guarded.guard().protect("moved")
    guarded.guard().unprotect("moved", reason="a test")
    guarded.database.rows("DELETE FROM moved")


def test_a_table_that_was_made_anew_is_free_until_it_is_protected_again(guarded: Guarded) -> None:
    guarded.database.rows("DROP TABLE reports")
    guarded.database.rows("CREATE TABLE reports (id int PRIMARY KEY)")
    guarded.database.rows("INSERT INTO reports VALUES (1)")
    guarded.guard().protect("reports")
    check_refused(guarded, "DELETE FROM reports")
    assert guarded.database.value(f"SELECT COUNT(*) FROM {guarded.sql.prefix}protection") == 1


def test_unprotecting_takes_the_protection_off(guarded: Guarded) -> None:
    guarded.guard().unprotect(reason="a test")
    assert guarded.sql.protected_tables(guarded.database) == []
    guarded.database.rows("UPDATE reports SET value = 'unfenced'")
    with pytest.raises(GuardError, match="protects no table here"):
        guarded.guard().unprotect(reason="again")


def test_unprotecting_another_resources_table_is_refused(guarded: Guarded) -> None:
    guarded.database.rows("CREATE TABLE orders (id int)")
    with pytest.raises(GuardError, match="'orders' is not protected by resource 'reports'"):
        guarded.guard().unprotect("orders", reason="a test")


# --- installing -----------------------------------------------------------------------------------
def test_many_installations_at_once_make_one(sql: SqlDialect, database: Any) -> None:
    for number in range(6):
        database.rows(f"CREATE TABLE t{number} (id int)")
    steps = [
        Step(fencelock.guard(database.url(), resource="r", lock=LOCK).protect, f"t{number}") for number in range(6)
    ]
    for step in steps:
        step.end()
    assert database.value(f"SELECT COUNT(*) FROM {sql.prefix}protection") == 6
    assert database.value(f"SELECT COUNT(*) FROM {sql.prefix}guard") == 1


def test_another_schema_number_is_refused(guarded: Guarded) -> None:
    guarded.database.rows(f"UPDATE {guarded.sql.prefix}guard SET {guarded.sql.schema_column} = 1")
    guard = guarded.guard()
    attempts = [lambda: guarded.sealed(5), guard_store(guarded.database.url()).install]
    if guarded.sql.name == "postgres":  # MySQL's guard learns the number when it seals.
        attempts += [guard.mark, lambda: guard.protect("reports")]
    for attempt in attempts:
        with pytest.raises(SchemaError, match=r"schema 1, and this .*schema 3: an older version"):
            attempt()


def test_without_a_schema_the_remedy_is_named(unprotected: Guarded) -> None:
    guard = unprotected.guard()
    for attempt in (guard.mark, lambda: unprotected.sealed(5), lambda: guard.unprotect(reason="a test")):
        with pytest.raises(SchemaError, match=r"holds no guard .*run `fencelock install --guard (postgresql|mysql)://"):
            attempt()
