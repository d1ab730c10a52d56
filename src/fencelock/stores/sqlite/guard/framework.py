"""A guard's requests answered inside a framework's transaction, over whichever driver speaks SQLite there.

Promise: the transaction holds the write lock of the file before anything is read in it, and foreign keys are enforced,
which keep what was presented from being committed; whether they are enforced afterwards is as it was before. Never: a
transaction of the framework's committed or rolled back.
"""

from pathlib import Path
from typing import Any, ClassVar

from fencelock.errors import GuardError
from fencelock.protocol import guard_requests as ask
from fencelock.stores.sqlite.guard.caller import SQLiteCallerBase
from fencelock.stores.sqlite.guard.marks import SQLiteMarks

_FOREIGN_KEYS = "PRAGMA foreign_keys"


class CursorAdapter:
    """A DB-API connection behind what `SQLiteMarks` asks of sqlite3's."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, parameters: Any = ()) -> Any:
        """Execute a statement on a cursor of its own, and return the cursor."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, parameters)
        except BaseException:
            cursor.close()
            raise
        return cursor


class SQLiteFrameworkMarks(SQLiteMarks):
    """What a guard keeps in a file, through a framework's connection."""

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
        """Enforce foreign keys from now on; inside a transaction SQLite would ignore it."""
        self._was_idle = not self.native.in_transaction
        if not self._has_foreign_keys():
            self._is_to_restore = True
            self._cursors.execute(f"{_FOREIGN_KEYS} = ON").close()

    def restore(self) -> None:
        """Enforce foreign keys as before. A transaction that is still there is one that the framework did not know of,
        since its driver commits each statement by itself: it ends.
        """
        if self._was_idle and self.native.in_transaction:
            self._cursors.execute("ROLLBACK").close()
        if self._is_to_restore:
            self._cursors.execute(f"{_FOREIGN_KEYS} = OFF").close()

    def map_commit_error(self, error: BaseException) -> GuardError | None:
        """Return None: what was presented is withdrawn by then, so a failed COMMIT is about the caller's own rows."""
        return None

    def _has_foreign_keys(self) -> bool:
        return bool(self._marks.ask(_FOREIGN_KEYS)[0][0])

    def _present(self, request: ask.Present) -> tuple[str, ...]:
        if not self._has_foreign_keys():
            raise GuardError(
                "foreign keys are off on this connection, and they keep the seal from being committed. They cannot be "
                "switched on inside a transaction, which this driver keeps open all the time: execute PRAGMA "
                "foreign_keys = ON when a connection is made, before its first transaction"
            )
        if not self.native.in_transaction:
            # Drivers of Python begin with the first INSERT or UPDATE: what is read before would be in no transaction.
            self._cursors.execute("BEGIN IMMEDIATE").close()
        self._check_file()
        return self._marks.present(request.resources, request.sequencer)

    _ANSWERS: ClassVar[dict[type, Any]] = {**SQLiteCallerBase._ANSWERS, ask.Present: _present}  # noqa: SLF001 - the base class's own.
