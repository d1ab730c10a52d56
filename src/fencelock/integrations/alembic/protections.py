"""fencelock's own tables, and the tables that are protected, under the names by which SQLAlchemy knows them."""

from typing import NamedTuple

from sqlalchemy import Connection, inspect

from fencelock._api.guard import inspect_resources
from fencelock.integrations.sqlalchemy.urls import url_of

TableKey = tuple[str | None, str]
"""A schema, None for the default one, and a table."""


class BoundTable(NamedTuple):
    """The resource of a protected table, and the lock to which it is bound."""

    resource: str
    lock: str


class Protections(NamedTuple):
    """What a database protects: its tables, and the locks of its resources."""

    tables: dict[TableKey, BoundTable]
    locks: dict[str, str]


def is_ours(dialect: str, schema: str | None, table: str) -> bool:
    """Return whether a table is fencelock's own."""
    return schema == "fencelock" if dialect == "postgresql" else table.startswith("fencelock_")


def has_guard(connection: Connection) -> bool:
    """Return whether the database has the guard's tables."""
    is_postgres = connection.dialect.name == "postgresql"
    table, schema = ("guard", "fencelock") if is_postgres else ("fencelock_guard", None)
    return inspect(connection).has_table(table, schema)


def read_protections(connection: Connection) -> Protections:
    """Return what the connection's database protects."""
    if not has_guard(connection):
        return Protections({}, {})
    seen = inspect_resources(url_of(connection.engine))
    locks = {mark.resource: mark.lock for mark in seen.marks}
    # Triggers may have outlived the mark.
    kept = [one for one in seen.protections if one.resource in locks]
    tables = {_key_of(connection, one.table): BoundTable(one.resource, locks[one.resource]) for one in kept}
    return Protections(tables, locks)


def _key_of(connection: Connection, shown: str) -> TableKey:
    """Return the key of a table from its name as the guard shows it."""
    default = connection.dialect.default_schema_name
    if connection.dialect.name != "postgresql":
        return None, shown.removeprefix(f"{default}.")
    schema, table = connection.dialect.identifier_preparer.unformat_identifiers(shown)
    return (None if schema == default else schema), table
