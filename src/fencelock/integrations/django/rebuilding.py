"""Keeps protected tables protected on SQLite, where Django changes a table by a copy, and drops the old one.

Promise: a protected table is protected again, in the mode that it had, in the transaction that rebuilds it; the file's
write lock is taken before the first statement. Every SQLite connection of the process gets this, for `migrate` and for
schema editors of the user's own. Never: a table protected that was not.
"""

from typing import Any

from django.db import transaction
from django.db.backends.signals import connection_created

from fencelock.integrations.django.urls import url_of
from fencelock.protocol.table_requests import HoldMarks, ReadProtections, Restore
from fencelock.stores.registry import guard_store

_GUARDS_TABLE = "fencelock_guard"


def connect_signals() -> None:
    """Have every SQLite connection of this process keep tables protected."""
    connection_created.connect(_extend_schema_editor)


def _extend_schema_editor(*, connection: Any, **_: Any) -> None:
    editor = connection.SchemaEditorClass
    if connection.vendor == "sqlite" and not issubclass(editor, RebuildingSchemaEditor):
        connection.SchemaEditorClass = type(editor.__name__, (RebuildingSchemaEditor, editor), {})


class RebuildingSchemaEditor:
    """The part of a schema editor that protects rebuilt tables again."""

    connection: Any
    collect_sql: bool

    def _remake_table(self, model: Any, *args: Any, **options: Any) -> Any:
        editor: Any = super()  # Django's own for SQLite.
        remake = editor._remake_table  # noqa: SLF001 - there is no public place to extend it.
        connection, table = self.connection, model._meta.db_table  # noqa: SLF001 - Django's documented name.
        if self.collect_sql or _GUARDS_TABLE not in connection.introspection.table_names():
            return remake(model, *args, **options)
        store: Any = guard_store(url_of(connection.alias))
        there = store.caller_connection(connection.connection)
        found = [one for one in there.perform(ReadProtections(None)) if one.table.casefold() == table.casefold()]
        if not found:
            return remake(model, *args, **options)
        with transaction.atomic(using=connection.alias):
            there.perform(HoldMarks((found[0].resource,)))
            done = remake(model, *args, **options)
            there.perform(Restore(found[0].resource, (table,)))
            return done
