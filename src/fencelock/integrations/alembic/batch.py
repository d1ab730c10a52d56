"""Batch mode on SQLite: Alembic copies a table and drops the old one, and with it the triggers that protect it.

Promise: a protected table is protected again, in the mode that it had, in the transaction that rebuilds it; the file's
write lock is taken before the first statement. Replaces Alembic's own implementation for SQLite, which it extends.
"""

from typing import Any

from alembic.ddl.sqlite import SQLiteImpl
from sqlalchemy import Connection

from fencelock.integrations.alembic.operations import inside, store_of
from fencelock.integrations.alembic.protections import has_guard
from fencelock.integrations.sqlalchemy.connection import SQLAlchemyConnection
from fencelock.model import Protection
from fencelock.protocol.table_requests import HoldMarks, ReadProtections, Restore


class GuardedSQLiteImpl(SQLiteImpl):
    """Alembic's DDL for SQLite, which keeps protected tables protected."""

    __dialect__ = "sqlite"
    _rebuilt: Protection | None = None

    def prep_table_for_batch(self, batch_impl: Any, table: Any) -> None:
        """Lock the mark before the first statement, if the table is protected."""
        super().prep_table_for_batch(batch_impl, table)
        if self.as_sql or self.connection is None:
            return  # `--sql` looks at no database.
        self._rebuilt = _protection_of(self.connection, table.name)
        if self._rebuilt is not None:
            inside(self.connection)(HoldMarks((self._rebuilt.resource,)))

    def rename_table(self, old_table_name: str, new_table_name: Any, schema: Any = None) -> None:
        """Rename the table; protect it again if it is the one that is being rebuilt."""
        super().rename_table(old_table_name, new_table_name, schema)
        rebuilt = self._rebuilt
        if rebuilt is not None and rebuilt.table.casefold() == new_table_name.casefold():
            assert self.connection is not None
            self._rebuilt = None
            inside(self.connection)(Restore(rebuilt.resource, (rebuilt.table,)))


def _protection_of(connection: Connection, table: str) -> Protection | None:
    if not has_guard(connection):
        return None
    found = SQLAlchemyConnection(connection, store_of(connection)).perform(ReadProtections(None))
    return next((one for one in found if one.table.casefold() == table.casefold()), None)
