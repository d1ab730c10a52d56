"""Operations of migrations: `ProtectTable` has the database refuse writes to a model's table, `UnprotectTable` ends it.

Promise: where DDL is transactional (PostgreSQL, SQLite) the operation is part of the migration's own transaction, and
locks the resource's mark in it until the migration is committed. On MySQL, where each DDL statement commits, it is
committed by itself, and safe to repeat. A database in memory is left alone: no other process can write it.
Never: the state of a model changed.
"""

from typing import Any

from django.db.migrations.operations.base import Operation, OperationCategory

import fencelock
from fencelock.integrations.django.urls import is_in_memory, name_for_guard, transaction_of, url_of
from fencelock.model import check_lock_name, check_resource_name


class TableOperation(Operation):
    """An operation on the table of a model, and on the tables that Django creates for its many-to-many fields."""

    reduces_to_sql = False
    category = OperationCategory.ALTERATION
    _verb = ""

    def __init__(self, model_name: str, *, resource: str, lock: str) -> None:
        self.model_name = model_name
        self.resource = check_resource_name(resource)
        self.lock = check_lock_name(lock)

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: protection is no part of a model."""

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return f"{self._verb} the table of {self.model_name} (resource {self.resource}, lock {self.lock})"

    @property
    def migration_name_fragment(self) -> str:
        """Return the part of an automatic migration's name."""
        return f"{self._verb}_{self.model_name}".lower()

    def _protect(self, app_label: str, schema_editor: Any, state: Any) -> None:
        tables = self._tables(app_label, schema_editor, state)
        if tables:
            self._guard(schema_editor).protect(*tables, connection=transaction_of(schema_editor.connection))

    def _unprotect(self, app_label: str, schema_editor: Any, state: Any) -> None:
        tables = self._tables(app_label, schema_editor, state)
        if tables:
            reason = f"a migration of {app_label}: {self.describe()}"
            connection = transaction_of(schema_editor.connection)
            self._guard(schema_editor).unprotect(*tables, reason=reason, connection=connection)

    def _tables(self, app_label: str, schema_editor: Any, state: Any) -> list[str]:
        connection = schema_editor.connection
        model = state.apps.get_model(app_label, self.model_name)
        if is_in_memory(connection) or not self.allow_migrate_model(connection.alias, model):
            return []
        through = [field.remote_field.through for field in model._meta.local_many_to_many]  # noqa: SLF001
        models = [model, *(one for one in through if one._meta.auto_created)]  # noqa: SLF001
        return [name_for_guard(connection, one._meta.db_table) for one in models]  # noqa: SLF001

    def _guard(self, schema_editor: Any) -> fencelock.Guard:
        return fencelock.guard(url_of(schema_editor.connection.alias), resource=self.resource, lock=self.lock)


class ProtectTable(TableOperation):
    """Have the database refuse writes to a model's table that present no token. Reversed, it unprotects the table."""

    _verb = "protect"

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Protect."""
        self._protect(app_label, schema_editor, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Stop protecting."""
        self._unprotect(app_label, schema_editor, to_state)


class UnprotectTable(TableOperation):
    """Let every program write a model's table again. Reversed, it protects the table."""

    _verb = "unprotect"

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Stop protecting."""
        self._unprotect(app_label, schema_editor, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Protect."""
        self._protect(app_label, schema_editor, to_state)
