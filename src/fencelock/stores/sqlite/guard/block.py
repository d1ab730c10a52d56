"""The block connection: what `guard.transaction` yields. Foreign keys are on, and only the guard ends its transaction.

Promise: while a user's block runs, every COMMIT, ROLLBACK, `commit()`, `executescript()` and `with connection:` fails
and is remembered, so that the end of the block can say what happened; savepoints work. A commit waits for readers in
rollback-journal mode. A missing file is not created.
Safety does not depend on the authorizer here: the file itself refuses to commit a presented seal (`schema.sql`). The
authorizer exists so that the error can name the cause.
"""

import os
import sqlite3
import sys
import time
import weakref
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fencelock.errors import FencelockError, GuardError, SourceUnavailableError
from fencelock.stores.sqlite.connection.database import Database
from fencelock.stores.sqlite.connection.errors import BUSY, FAULTS, Fault, code_of

if TYPE_CHECKING:
    from types import GeneratorType

Result = TypeVar("Result")

# Distinct texts: sqlite3 caches prepared statements by text, and the authorizer runs only when a statement is prepared.
# With a cached plain COMMIT, the user's own COMMIT would run without being refused.
_COMMIT = "COMMIT -- by fencelock"
_ROLLBACK = "ROLLBACK -- by fencelock"
LEGACY_CONTROL = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)
_UNFINISHED = "SQL statements in progress"
"""Part of SQLite's message at COMMIT; the error's number is that of a file which others have locked."""
_READER_PAUSE_S = 0.000_5


_LASTING = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_CREATE_TEMP_INDEX,
    sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
    sqlite3.SQLITE_CREATE_TEMP_VIEW,
}
"""Actions whose effect on the connection outlasts the transaction."""


_WRITES = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
_ALLOWED, _DENIED = 1, 2
_JUDGED = 3
"""So many arguments of the authorizer decide: the action, a name and a value. Two more follow."""


class TransactionWatch:
    """The authorizer of a block connection. While `is_on`, it refuses to end the transaction and remembers the attempt.

    SQLite itself ends it after some errors (OR ROLLBACK, an interrupted write, a full disk), and would commit later
    writes one by one: those are refused, and `is_ended` then. A statement that was prepared before runs all the same.
    `is_changed` becomes true if a block changed the connection, or if a kept reference used it while it `is_idle`.
    sqlite3 drops what its authorizer raises: an exception of a signal handler that runs there is `raised` again, and
    the connection counts as changed.
    """

    def __init__(self, is_in_transaction: Callable[[], bool]) -> None:
        self._is_in_transaction = weakref.WeakMethod(is_in_transaction)
        self.is_on = False
        self.is_ended = False
        self.is_idle = False
        self.is_changed = False
        self.attempt: str | None = None
        self.raised: BaseException | None = None
        self._weigher: GeneratorType[int, Any, None] | None = None

    @property
    def has_failed(self) -> bool:
        """Whether Python ended the authorizer, which denies everything since then, cached statements excepted.

        It is what happens at the limit of recursion: a generator that cannot go on has ended.
        """
        return self._weigher is not None and self._weigher.gi_frame is None

    def begin(self) -> None:
        """Refuse the end of the transaction from now on: the user's block has it."""
        self.attempt = None
        self.is_ended = False
        self.is_on = True

    def attach(self, native: sqlite3.Connection) -> None:
        """Become the authorizer of a connection that was just opened."""
        native.execute("PRAGMA foreign_keys = ON")
        # The file's own triggers read pragma_foreign_keys, which SQLite builds with an untrusted schema refuse.
        native.execute("PRAGMA trusted_schema = ON")
        # A signal handler runs, and may raise, as a Python function begins: nothing in the function could catch that.
        # So SQLite calls max(), which has no Python frame and hands each argument to a generator that is inside a `try`
        # already. The first argument is SQLITE_OK. If a text or None outweighs it, sqlite3 gets no int, and denies.
        self._weigher = cast("GeneratorType[int, Any, None]", self._weigh())
        next(self._weigher)
        native.set_authorizer(partial(max, sqlite3.SQLITE_OK, key=self._weigher.send))
        self.is_changed = False
        self.raised = None

    def _weigh(self) -> Generator[int, Any, None]:
        """Weigh SQLITE_OK, the action and its four arguments, call after call.

        A loop that begins with the first instruction of its `try` would jump back to an instruction before it.
        """
        given: list[Any]
        while True:
            try:
                # No call: at the limit of recursion it would fail again and again.
                weight, given = 0, []
                while True:
                    argument = yield weight
                    if argument == sqlite3.SQLITE_OK:
                        weight, given = _ALLOWED, []
                    else:
                        given.append(argument)
                        is_denied = self.raised is not None or (len(given) == _JUDGED and self._denies(*given))
                        weight = _DENIED if is_denied and not isinstance(argument, int) else 0
            except GeneratorExit:
                raise
            except BaseException as error:
                self.raised = error
                self.is_changed = True

    def _denies(self, action: int, name: str | None, value: str | None) -> bool:
        if not self.is_on:
            # Preparing any statement on an idle connection means that somebody kept a reference to it.
            self.is_changed |= self.is_idle
            return False
        if action == sqlite3.SQLITE_TRANSACTION and name != "BEGIN":
            self.attempt = name
            return True
        if action in _WRITES and (asked := self._is_in_transaction()) is not None and not asked():
            self.is_ended = True
            return True
        if action in _LASTING or (action == sqlite3.SQLITE_PRAGMA and value is not None):
            self.is_changed = True
        return False

    def raise_dropped(self, reported: BaseException | None = None) -> None:
        """Raise what sqlite3 dropped, if there is anything; `reported` is the error that came of it, if one did."""
        if self.raised is not None:
            try:
                raise self.raised from None
            finally:
                self.raised = None  # No local name: the exception would refer to itself, and to all of its frames.
        if self.has_failed and (reported is None or is_denial(reported)):
            raise GuardError(
                "Python could not check a statement of the guarded transaction, so SQLite refused it, and nothing of "
                "the block was written: the limit of recursion was reached there, or memory ran out. Use the "
                "connection in less deep calls, or raise the limit (sys.setrecursionlimit)"
            ) from reported


def is_denial(error: BaseException) -> bool:
    """Return whether the error is a refusal by the authorizer."""
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_AUTH


def check_exists(path: Path) -> None:
    """Raise SourceUnavailableError if there is no such file; never opens it."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise SourceUnavailableError(
            f"{path} does not exist, and a guard protects an existing database: create it with its tables first, or "
            f"correct the URL"
        ) from None
    except OSError:
        pass  # Opening the file gives the better error.


class SQLiteBlockConnection(Database):
    """A connection to a guarded file. One thread at a time may use it, and any thread."""

    _rollback_text = _ROLLBACK

    def __init__(self, path: Path) -> None:
        self.watch = TransactionWatch(self.is_in_transaction)
        self._default_level: str | None = None
        self._own_references = sys.maxsize
        super().__init__(path, prepare=self.watch.attach)

    def _open(self) -> sqlite3.Connection:
        check_exists(self.path)
        self._own_references = sys.maxsize  # No block has used the new connection yet.
        return super()._open()

    def map_error(self, error: Fault, *, is_commit: bool = False) -> FencelockError:
        """Return the FencelockError for sqlite3's error on this file."""
        if code_of(error) == sqlite3.SQLITE_CORRUPT:
            return SourceUnavailableError(
                f"{self.path}: it is corrupted: restore it from a backup, then run `fencelock marks URL --raise-to "
                f"SOURCE --reason …` before anybody uses it ({error})"
            )
        return super().map_error(error, is_commit=is_commit)

    def flush_commits(self, *, is_flushed: bool) -> None:
        """Make the next commits durable in every journal mode, the directory entry included (EXTRA); or set the level
        that the file's own users have.
        """
        if self._default_level is None:
            self._default_level = str(self.run_alone("PRAGMA synchronous"))
        level = "EXTRA" if is_flushed else self._default_level
        if level != self._synchronous:
            self._set_synchronous(level)

    def begin_briefly(self) -> None:
        """Begin a short write transaction: a fork waits until it is committed or rolled back."""
        self._execute_waiting("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit, and wait for the readers of a file in rollback-journal mode.

        OutcomeUnknownError if the system did not confirm it; sqlite3.IntegrityError if a deferred constraint of the
        user's tables is violated; GuardError if a statement of the user's is not finished.
        """
        # The next COMMIT is the guard's own, and the authorizer would refuse that as well.
        self.watch.is_on = False
        give_up = 0.0
        while True:
            try:
                self.native.execute(_COMMIT)
                break
            except sqlite3.IntegrityError:
                raise
            except FAULTS as error:
                if _UNFINISHED in str(error):
                    raise unfinished_error() from error
                if code_of(error) not in BUSY:
                    raise self.map_error(error, is_commit=True) from error
                now = time.monotonic()
                give_up = give_up or now + self.request_timeout_s
                if now >= give_up:
                    raise self._readers_error() from error
            time.sleep(_READER_PAUSE_S)
        self.is_inside = False

    def _readers_error(self) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"{self.path} was read for more than {self.request_timeout_s:g} s, and a commit waits for readers: some "
            f"process is frozen or slow while it reads, or this one has kept a cursor or a BLOB handle of an earlier "
            f"block; end that process or close the cursor, then try again"
        )

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one, whatever the user did to the connection; never raises."""
        self.watch.is_on = False
        try:
            super().rollback()
        finally:
            self.is_inside = False

    def native_on_current_file(self) -> sqlite3.Connection | None:
        """Return the connection, in the transaction just begun, if the path still names its file; else roll back and
        return None.
        """
        self.drop_if_replaced()
        if self._native is None:
            self.rollback()
        return self._native

    def is_in_transaction(self) -> bool:
        """Return whether a transaction is open, whatever the user did to the connection."""
        try:
            return self._native is not None and self._native.in_transaction
        except sqlite3.ProgrammingError:
            return False

    def read(self, body: Callable[[], Result]) -> Result:
        """Run `body` in a read transaction, as soon as other processes' locks allow it."""

        def begun() -> Result:
            # BEGIN alone takes no lock. The first statement does, and may have to wait for a commit.
            self._execute_waiting("SELECT count(*) FROM main.sqlite_schema").fetchone()
            return body()

        return self.transact(begun, to_write=False)

    def give_to_block(self) -> None:
        """Hand the open transaction over to the user."""
        self._own_references = self._references()
        self.watch.begin()

    def is_ready(self) -> bool:
        """Return whether an idle connection may be given to a block: no user still refers to it (G11). A connection
        that was used meanwhile is closed, and opens again at its next use.
        """
        # More references than when the block got it: the user has kept one, and could write through it.
        if self._native is not None and self._references() > self._own_references:
            return False
        if not self.is_unchanged():
            self.close()
        self.watch.is_idle = False
        return True

    def _references(self) -> int:
        return sys.getrefcount(self._native)

    def is_unchanged(self) -> bool:
        """Return whether the user left the connection as it was, so that another block may use it."""
        native = self._native
        try:
            return native is None or (
                not self.watch.is_changed
                and not self.watch.has_failed
                and not native.in_transaction
                and native.isolation_level is None
                and native.row_factory is None
                and native.text_factory is str
                and getattr(native, "autocommit", LEGACY_CONTROL) == LEGACY_CONTROL
            )
        except sqlite3.ProgrammingError:  # The user closed it.
            return False


def unfinished_error() -> GuardError:
    """Return the error for a block at whose end a statement that writes has not finished."""
    return GuardError(
        "the guarded block ended in the middle of its own statement, and nothing of it was written: inside the block, "
        "close() each BLOB handle, read all rows of RETURNING or close() its cursor, and wait for the block's threads"
    )
