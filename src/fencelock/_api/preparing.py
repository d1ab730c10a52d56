"""What a guard's store needs before its tables are protected: the schema, whole, and DDL that can do it.

Promise: a failed `protect` of a table that does not exist leaves no schema behind. Never: makes a store that its URL
names by mistake.
"""

from contextlib import suppress

from fencelock.errors import SchemaError, UnsupportedError
from fencelock.protocol.stores import GuardStore, SQLGuardStore


def repair(store: GuardStore) -> None:
    """Have a database create again what somebody has dropped of its schema."""
    if isinstance(store, SQLGuardStore):
        store.repair()


def prepare(store: GuardStore, tables: tuple[str, ...]) -> None:
    """Have a database make its schema before it protects these tables, or what somebody has dropped of it.

    Other stores are installed by an operator: at DynamoDB a mistyped URL would name a table to be created and paid for.
    """
    repair(store)
    if store.capabilities.enforced_by == "store":
        if isinstance(store, SQLGuardStore):
            with suppress(SchemaError):  # A part of it is there: `install` completes it, or tells what it is.
                store.check_tables(tables)
        store.install()


def check_transactional_ddl(store: GuardStore) -> None:
    """Raise UnsupportedError unless the store's tables can be protected inside a caller's transaction."""
    if not (isinstance(store, SQLGuardStore) and store.has_transactional_ddl):
        raise UnsupportedError(
            f"{store.url} protects no table inside your transaction, which every DDL statement there would commit: "
            f"commit it first, and then call the same without connection=, as the migration's last step"
        )
