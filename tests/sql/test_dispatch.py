"""The rule G13 at SQL servers: an effect outside of the database has an intent before it and a result after it."""

from typing import Any

import pytest

from fencelock.stores.registry import guard_store
from tests.sql.dialect import SqlDialect, run
from tests.sql.guarded import Guarded
from tests.sql.mysql.dialect import MySQLDialect
from tests.support.effects import Effects
from tests.support.guards import HandmadeLease

pytestmark = pytest.mark.server_wide


class TestEffects(Effects):
    @pytest.fixture
    def effects_url(self, database: Any) -> str:
        guard_store(database.url()).install()
        return str(database.url())


def write(sql: SqlDialect, native: Any, resource: str = "reports", key: str = "mail") -> None:
    """Keep an intent, as a client in any language does."""
    run(native, f"{sql.call}begin_effect(%s, %s, 'me', '')", resource, key)


def kept(guarded: Guarded) -> list[Any]:
    return [int(token) for (token,) in guarded.database.rows(f"SELECT token FROM {table_of(guarded.sql)}")]


def table_of(sql: SqlDialect) -> str:
    return f"{sql.call.split()[-1]}effect"


def test_g13_a_client_that_has_presented_keeps_an_effect(guarded: Guarded) -> None:
    with guarded.guard().transaction(HandmadeLease(5)) as native:
        write(guarded.sql, native)
    assert kept(guarded) == [5]


@pytest.mark.parametrize("function", ["write_effect(%s, %s, 'me', NULL, '')", "begin_effect(%s, %s, 'me', '')"])
def test_g13_who_has_presented_nothing_is_refused(guarded: Guarded, function: str) -> None:
    """Nor does a stale lease, a token for another resource, or one from the transaction before help."""
    guarded.sealed(5)
    lease = guarded.sealed(6)
    refused = pytest.raises(guarded.sql.client_error, match=r"no token (is )?presented|READ ONLY")
    statement = f"{guarded.sql.call}{function}"
    with guarded.database.connect() as native:
        with refused:
            run(native, statement, "reports", "mail")
        run(native, "START TRANSACTION")
        guarded.sql.present(native, lease.sequencer, "reports")
        with refused:
            run(native, statement, "others", "mail")
        run(native, "ROLLBACK")
        guarded.sql.after_error(native)
        with refused:
            run(native, statement, "reports", "mail")
    assert kept(guarded) == []


def test_g13_a_role_writes_the_table_by_the_functions_alone(guarded: Guarded) -> None:
    sql, database = guarded.sql, guarded.database
    guarded.sealed(5)
    with guarded.guard().transaction(HandmadeLease(5)) as native:
        write(sql, native)
    is_mysql = isinstance(sql, MySQLDialect)
    key = "effect_key" if is_mysql else "key"
    may = f"EXECUTE ON {database.name}.*" if is_mysql else "USAGE ON SCHEMA fencelock"
    columns = f"resource, {key}, token, holder, began_at"
    with sql.accounts(database):
        database.rows(f"GRANT {may} TO worker")
        with database.connect(user="worker") as native:
            for statement in (
                f"INSERT INTO {table_of(sql)} ({columns}) VALUES ('reports', 'x', 5, 'me', now())",
                f"UPDATE {table_of(sql)} SET result = 'forged'",
                f"DELETE FROM {table_of(sql)}",
            ):
                with pytest.raises(sql.client_error, match="denied"):
                    run(native, statement)
    assert kept(guarded) == [5]
