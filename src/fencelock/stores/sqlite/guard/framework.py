"""The framework connection: answers a guard's requests inside a framework's transaction, over any SQLite driver.

Promise: the transaction takes the file's write lock before anything is read in it, and enforces foreign keys, which
keep a presented seal from being committed. Afterwards the setting of foreign keys is restored.
Never: commits or rolls back a transaction of the framework.
"""

from pathlib import Path
from typing import Any, ClassVar

from fencelock.errors import GuardError
from fencelock.protocol import guard_requests as ask
from fencelock.stores.sqlite.guard.caller import SQLiteCallerBase
from fencelock.stores.sqlite.guard.connection import rolled_back_error
from fencelock.stores.sqlite.guard.marks import SQLiteMarks

_FOREIGN_KEYS = "PRAGMA foreign_keys"


class CursorAdapter:
    """Gives a DB-API connection the `execute` of sqlite3's, which `SQLiteMarks` uses."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, parameters: Any = ()) -> Any:
        """Execute a statement on a new cursor, and return the cursor."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, parameters)
        except BaseException:
            cursor.close()
            raise
        return cursor


class SQLiteFrameworkMarks(SQLiteMarks):
    """`SQLiteMarks` over a framework's connection."""

    def ask(self, statement: str, parameters: Any = ()) -> list[Any]:
        """Run a query and return its rows as tuples."""
        cursor = self.native.execute(statement, parameters)
        try:
            return [tuple(row) for row in cursor.fetchall()]
        finally:
            cursor.close()


class SQLiteFrameworkConnection(SQLiteCallerBase):
    """A framework's connection to the guarded file."""

    def __init__(self, connection: Any, driver: Any, path: Path) -> None:
        cursors: Any = CursorAdapter(connection)
        super().__init__(driver, SQLiteFrameworkMarks(cursors, path), path)
        self._cursors = cursors
        self._is_to_restore = False
        self._was_idle = False

    def prepare(self) -> None:
        """Enforce foreign keys from now on. Call it outside a transaction, inside which SQLite ignores the PRAGMA."""
        self._was_idle = not self.native.in_transaction
        if not self._has_foreign_keys():
            self._is_to_restore = True
            self._cursors.execute(f"{_FOREIGN_KEYS} = ON").close()

    def restore(self) -> None:
        """Restore the setting of foreign keys; end a transaction that the framework does not know of."""
        # A driver in autocommit mode: `_present` has begun the transaction, so no COMMIT of the framework ends it.
        if self._was_idle and self.native.in_transaction:
            self._cursors.execute("ROLLBACK").close()
        if self._is_to_restore:
            self._cursors.execute(f"{_FOREIGN_KEYS} = OFF").close()

    def map_commit_error(self, error: BaseException) -> GuardError | None:
        """Return None: the seal is withdrawn before COMMIT, so a failed COMMIT concerns the caller's own rows."""
        return None

    def _ended_error(self) -> GuardError:
        return rolled_back_error()

    def _has_foreign_keys(self) -> bool:
        return bool(self._marks.ask(_FOREIGN_KEYS)[0][0])

    def _present(self, request: ask.Present) -> tuple[str, ...]:
        if not self._has_foreign_keys():
            raise GuardError(
                "foreign keys are off on this connection, and only they keep a seal from being committed. They cannot "
                "be switched on inside a transaction, and this driver always keeps one open: execute PRAGMA "
                "foreign_keys = ON when a connection is made, before its first transaction"
            )
        if not self.native.in_transaction:
            # Python's drivers begin at the first INSERT or UPDATE; a read before that would be in no transaction.
            self._cursors.execute("BEGIN IMMEDIATE").close()
        self._check_file()
        return self._marks.present(request.resources, request.sequencer)

    _ANSWERS: ClassVar[dict[type, Any]] = {**SQLiteCallerBase._ANSWERS, ask.Present: _present}  # noqa: SLF001 - the base class's own.
