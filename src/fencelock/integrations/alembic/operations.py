"""The operations of migrations: `op.fencelock_protect(…)`, `op.fencelock_unprotect(…)`, `op.fencelock_hold(…)`.

Promise: where DDL is transactional, an operation happens in Alembic's own transaction, and locks the mark before any
table. On MySQL, where each DDL statement commits, so do these: they commit first, and use the guard's own connection.
"""

from collections.abc import Callable
from typing import Any

from alembic.operations import MigrateOperation, Operations
from sqlalchemy import Connection

from fencelock._api.guard_core import GuardCore, check_free
from fencelock._api.validation import scope_of
from fencelock._flows import admin
from fencelock.errors import UnsupportedError
from fencelock.hooks import NO_HOOKS
from fencelock.integrations.alembic.protections import has_guard
from fencelock.integrations.sqlalchemy.connection import SQLAlchemyConnection
from fencelock.integrations.sqlalchemy.urls import url_of
from fencelock.model import check_lock_name, check_reason, check_resource_name, default_holder
from fencelock.protocol.generators import run_generator
from fencelock.protocol.guard_requests import ENFORCE, GuardFlow
from fencelock.protocol.stores import SQLGuardStore
from fencelock.protocol.table_requests import HoldMarks
from fencelock.stores.registry import guard_store


@Operations.register_operation("fencelock_hold")
class HoldResourceOp(MigrateOperation):
    """Keeps guarded blocks of a resource out until the migration's transaction ends."""

    def __init__(self, resource: str, *, is_for_reverse: bool = False) -> None:
        self.resource = check_resource_name(resource)
        self.is_for_reverse = is_for_reverse
        """Whether it stands at the end of an upgrade, only to be at the beginning of the downgrade."""

    @classmethod
    def fencelock_hold(cls, operations: Operations, resource: str) -> None:
        """Lock the resource's mark until the transaction ends, so that no guarded block is open meanwhile.

        A migration that alters protected tables begins with it: a guarded block locks the mark first and tables later,
        and in the reverse order the two would wait for each other. UnsupportedError on MySQL.
        """
        operations.invoke(cls(resource))

    def reverse(self) -> "HoldResourceOp":
        """Return the one for the other direction."""
        return HoldResourceOp(self.resource, is_for_reverse=not self.is_for_reverse)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return what `alembic check` prints."""
        return ("fencelock_hold", self.resource)


class TableOp(MigrateOperation):
    """An operation on a table of a resource, which is bound to a lock."""

    name = ""

    def __init__(self, table_name: str, resource: str, lock: str, schema: str | None = None) -> None:
        self.table_name = str(table_name)
        self.resource = check_resource_name(resource)
        self.lock = check_lock_name(lock)
        self.schema = schema

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return what `alembic check` prints."""
        return (self.name, self.table_name, self.resource)


@Operations.register_operation("fencelock_protect")
class ProtectTableOp(TableOp):
    """Protects a table."""

    name = "fencelock_protect"

    @classmethod
    def fencelock_protect(
        cls, operations: Operations, table_name: str, *, resource: str, lock: str, schema: str | None = None
    ) -> None:
        """Have the database refuse writes to the table that present no token, as `guard.protect`. Safe to repeat."""
        operations.invoke(cls(table_name, resource, lock, schema))

    def reverse(self) -> "UnprotectTableOp":
        """Return the operation of the downgrade."""
        return UnprotectTableOp(self.table_name, self.resource, self.lock, self.schema)


@Operations.register_operation("fencelock_unprotect")
class UnprotectTableOp(TableOp):
    """Stops protecting a table."""

    name = "fencelock_unprotect"
    reason = "an Alembic migration"

    @classmethod
    def fencelock_unprotect(
        cls,
        operations: Operations,
        table_name: str,
        *,
        resource: str,
        lock: str,
        schema: str | None = None,
        reason: str = reason,
    ) -> None:
        """Stop protecting the table, as `guard.unprotect`. The mark stays."""
        operation = cls(table_name, resource, lock, schema)
        operation.reason = check_reason(reason)
        operations.invoke(operation)

    def reverse(self) -> ProtectTableOp:
        """Return the operation of the downgrade."""
        return ProtectTableOp(self.table_name, self.resource, self.lock, self.schema)


class MigrationGuard:
    """The guard of an operation's table, in the database that is migrated."""

    def __init__(self, operations: Operations, operation: TableOp) -> None:
        self._connection = _online(operations, operation.name)
        self.store = store_of(self._connection)
        self.scope = scope_of(self.store.url, operation.resource, None, operation.lock, independent=False)
        self.tables = (self._name_of(operation),)

    def _name_of(self, operation: TableOp) -> str:
        """Return the table's name as the guard expects it."""
        if self._connection.dialect.name == "sqlite":
            return operation.table_name
        quote = self._connection.dialect.identifier_preparer.quote_identifier
        return ".".join(quote(part) for part in (operation.schema, operation.table_name) if part)

    def run(self, within: GuardFlow[None], alone: GuardFlow[None]) -> None:
        """Run a flow inside Alembic's transaction, or alone where DDL commits."""
        if self.store.has_transactional_ddl:
            run_generator(within, inside(self._connection))
        else:
            # The guard's DDL would wait for tables that this transaction has read.
            self._connection.exec_driver_sql("COMMIT")
            check_free(self.store.url)
            GuardCore(self.store, self.scope, NO_HOOKS).run(alone)


@Operations.implementation_for(HoldResourceOp)
def _hold(operations: Operations, operation: HoldResourceOp) -> None:
    connection = _online(operations, "fencelock_hold")
    if not store_of(connection).has_transactional_ddl:
        raise UnsupportedError(
            "fencelock_hold: each DDL statement commits on this database, and would end the hold: run the migration "
            "while you hold the lock instead"
        )
    # A guard that a later migration creates has no blocks yet.
    if has_guard(connection):
        inside(connection)(HoldMarks((operation.resource,)))


@Operations.implementation_for(ProtectTableOp)
def _protect(operations: Operations, operation: ProtectTableOp) -> None:
    guard = MigrationGuard(operations, operation)
    asked = (guard.scope, guard.tables, ENFORCE, None, default_holder())
    guard.store.install()
    guard.run(admin.protect_inside(*asked), admin.protect(*asked))


@Operations.implementation_for(UnprotectTableOp)
def _unprotect(operations: Operations, operation: UnprotectTableOp) -> None:
    guard = MigrationGuard(operations, operation)
    asked = (guard.scope, guard.tables, default_holder(), operation.reason)
    guard.run(admin.unprotect_inside(*asked), admin.unprotect(*asked))


def _online(operations: Operations, name: str) -> Connection:
    if operations.migration_context.as_sql:
        raise UnsupportedError(
            f"{name} depends on what it finds in the database, so there is no SQL script of it (--sql): put `if not "
            f"context.is_offline_mode():` before it (from alembic import context), and run `fencelock protect` after "
            f"the script"
        )
    return operations.get_bind()


def store_of(connection: Connection) -> SQLGuardStore:
    """Return the guard store of the connection's database."""
    store = guard_store(url_of(connection.engine))
    assert isinstance(store, SQLGuardStore), "url_of knows SQL databases only"
    return store


def inside(connection: Connection) -> Callable[[Any], Any]:
    """Return what answers a guard's requests inside Alembic's transaction."""
    store, driver = store_of(connection), connection.connection.driver_connection
    check_free(store.url)
    if connection.dialect.name == "sqlite" and not getattr(driver, "in_transaction", False):
        # Python's driver begins at the first INSERT, UPDATE or DELETE; DDL before that is committed at once.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    return SQLAlchemyConnection(connection, store).perform
