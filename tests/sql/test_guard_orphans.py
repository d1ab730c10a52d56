"""Tables whose triggers outlive fencelock's own tables, which a migration has dropped, on both SQL servers."""

from contextlib import suppress

import pytest

import fencelock
from fencelock import GuardError
from fencelock.stores.registry import guard_store
from tests.sql.dialect import run
from tests.sql.guarded import Guarded, write
from tests.support.guards import LOCK, HandmadeLease, HandmadeSource

TABLES = {"postgres": "", "mysql": "fencelock_"}
"""How the names of fencelock's tables begin."""


def drop_tables(guarded: Guarded, *only: str) -> None:
    """Drop fencelock's tables as `alembic revision --autogenerate` does."""
    schema = "fencelock" if guarded.sql.name == "postgres" else guarded.database.name
    known = guarded.database.rows(
        "SELECT table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND table_schema = %s", schema
    )
    tables = [table for (table,) in known if table.startswith(TABLES[guarded.sql.name])]
    for _ in tables:  # A table goes after those that refer to it.
        for table in tables:
            if not only or table.removeprefix("fencelock_") in only:
                with suppress(guarded.sql.client_error):
                    guarded.database.rows(f"DROP TABLE IF EXISTS {schema}.{table}")


def found(guarded: Guarded) -> list[tuple[str, str | None]]:
    """Return what doctor finds about the tables."""
    kinds = {"lost-tables", "orphaned-trigger", "lost-protection", "no-marks", "guard-refused"}
    findings = guard_store(guarded.database.url()).examine()
    return [(one.code, one.resource) for one in findings if one.code in kinds]


def test_protect_repairs_dropped_tables_and_raises_the_mark(guarded: Guarded) -> None:
    with guarded.guard().transaction(HandmadeLease(5)) as native:
        write(native)
    drop_tables(guarded)
    assert found(guarded) == [("lost-tables", None), ("orphaned-trigger", "reports")]
    with pytest.raises(GuardError, match=r"without a record.*source=…"):
        guarded.guard().protect("reports")
    with pytest.raises(GuardError, match=r"without a record.*source=…"):
        guarded.guard().protect("reports")
    guarded.guard().protect("reports", source=HandmadeSource(7))
    assert guarded.guard().mark().token == 7
    assert found(guarded) == []
    with guarded.client() as native, pytest.raises(guarded.sql.client_error) as caught:
        write(native)
    assert guarded.sql.code_of(caught.value) == "FL001"
    with guarded.guard().transaction(HandmadeLease(8)) as native:
        write(native, "again")
    assert guarded.value() == "again"


@pytest.mark.parametrize("tables", [("reports",), ()])
def test_unprotect_removes_what_has_no_record(guarded: Guarded, tables: tuple[str, ...]) -> None:
    drop_tables(guarded)
    guarded.guard().unprotect(*tables, reason="fencelock goes")
    guarded.database.rows("UPDATE reports SET value = 'free'")
    assert guarded.value() == "free"
    assert found(guarded) == []


def test_a_lost_record_is_an_orphan_and_the_mark_is_kept(guarded: Guarded) -> None:
    guarded.sealed(5)
    guarded.database.rows(f"DELETE FROM {guarded.sql.prefix}protection")
    assert found(guarded) == [("orphaned-trigger", "reports")]
    guarded.guard().protect("reports", source=HandmadeSource(5))
    assert guarded.guard().mark().token == 5
    assert found(guarded) == []


def test_lost_marks_make_orphans(guarded: Guarded) -> None:
    guarded.sealed(5)
    drop_tables(guarded, "mark")
    with pytest.raises(GuardError, match=r"without a record.*source=…"):
        guarded.guard().protect("reports")
    guarded.guard().protect("reports", source=HandmadeSource(7))
    assert guarded.guard().mark().token == 7


def test_another_table_may_be_protected_before_the_orphan(guarded: Guarded) -> None:
    guarded.database.rows("CREATE TABLE orders (id int PRIMARY KEY)")
    drop_tables(guarded)
    other = fencelock.guard(guarded.database.url(), resource="orders", lock=LOCK)
    other.protect("orders")
    assert found(guarded) == [("orphaned-trigger", "reports")]
    with pytest.raises(GuardError, match=r"belongs to resource .?reports.? already"):
        other.protect("reports")
    guarded.guard().protect("reports", source=HandmadeSource(7))
    assert found(guarded) == []
    with other.transaction(HandmadeLease(5)) as native:
        run(native, "INSERT INTO orders VALUES (1)")


def test_unprotect_forgets_a_table_that_was_dropped(guarded: Guarded) -> None:
    guarded.database.rows("DROP TABLE reports")
    assert found(guarded) == [("lost-protection", "reports")]
    guarded.guard().unprotect("reports", reason="it is gone")
    assert found(guarded) == []
