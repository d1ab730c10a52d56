"""One SQLite file and a connection to it: opening, transactions, and errors.

Promise: a file created here has mode 0600. A write transaction begins with the write lock or not at all. Every sqlite3
error becomes a FencelockError that names the file and says correctly whether the work may have been done. The wait for
another writer happens outside SQLite, so that signals arrive and no fork has to wait for it.
Never: changes a setting of the user's file by opening it.
"""

import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fencelock._platform import IS_MACOS
from fencelock.errors import ConfigError, FencelockError, OutcomeUnknownError, SourceUnavailableError, UnsupportedError
from fencelock.stores.sqlite.connection import macos
from fencelock.stores.sqlite.connection.errors import BUSY, FAULTS, Fault, code_of, remedy_for
from fencelock.stores.sqlite.connection.file_identity import check_one_name
from fencelock.stores.sqlite.connection.forks import GATE

MIN_SQLITE = (3, 37, 0)
BUSY_TIMEOUT_S = 5.0
"""How long a request waits for another process's write transaction before SourceUnavailableError."""

Result = TypeVar("Result")
_BY_EFFECTIVE_IDS = os.access in os.supports_effective_ids
_OPTIONS = re.compile(r"\?\w+=")
_BUSY_PAUSE_MIN_S = 0.000_05
_BUSY_PAUSE_MAX_S = 0.005


def path_of(url: str) -> Path:
    """Return the file that `sqlite:///relative` or `sqlite:////absolute` names; ConfigError for anything else."""
    _, _, rest = url.partition("://")
    # No message repeats the URL: a slash too few or too many, and it may be another store's, with a password.
    if not rest.startswith("/"):
        raise ConfigError(
            "a SQLite URL has no host and no user: write sqlite:///relative/path or sqlite:////absolute/path (three or "
            "four slashes)"
        )
    name = rest[1:].removesuffix(macos.OPTION)
    if not name or name == ":memory:" or name.endswith("/"):
        raise ConfigError("a SQLite URL names no file: a lock must outlive the process, so it needs a file on disk")
    if _OPTIONS.search(name):
        # Another library would leave them out of the name. Then one URL would mean two files, and two locks.
        raise ConfigError(
            "a SQLite URL has no options, and all of its path is the file's name: leave out the '?' and what follows it"
        )
    if "\0" in name:
        raise ConfigError("a SQLite URL contains U+0000: leave it out")
    macos.check_asked_for(name != rest[1:])
    return Path(os.path.abspath(name))


def _make_file(path: Path) -> None:
    if IS_MACOS:
        macos.make_file(path)
    else:
        os.mknod(os.path.realpath(path), stat.S_IFREG | 0o600)


def _nothing_to_prepare(native: sqlite3.Connection) -> None:
    """Do nothing: the default for connections without settings of their own."""


class Database:
    """A connection to one file, opened at its first use. One thread at a time may use it, and any thread."""

    _rollback_text = "ROLLBACK"

    def __init__(
        self,
        path: Path,
        *,
        prepare: Callable[[sqlite3.Connection], None] = _nothing_to_prepare,
        request_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        self.path = path
        self._name = os.fspath(path)
        self.request_timeout_s = request_timeout_s
        self._prepare = prepare
        self._native: sqlite3.Connection | None = None
        self._file_id: tuple[int, int] | None = None
        self._synchronous: str | None = None
        self._openings = 0
        self.opening = 0
        """The number of the current opening; 0 while the connection is closed."""
        self.is_inside = False
        GATE.watch(self)

    def __del__(self) -> None:
        """Close the connection when its owner was garbage-collected."""
        native = getattr(self, "_native", None)
        # At interpreter exit this module's names may already be None; sqlite3 closes the connection then.
        if native is not None and GATE is not None:
            GATE.close_collected(native)

    @property
    def is_open(self) -> bool:
        """True while a connection is open."""
        return self._native is not None

    @property
    def native(self) -> sqlite3.Connection:
        """The sqlite3 connection, opened if necessary. A fork closes it unless a transaction is open on it."""
        if self._native is None:
            self._native = self._open()
            GATE.opened(self._native, self.path)
            self._openings += 1
            self.opening = self._openings
        return self._native

    def _open(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < MIN_SQLITE:
            raise UnsupportedError(f"SQLite {sqlite3.sqlite_version} is too old: fencelock needs 3.37 or newer")
        GATE.check_may_open(self.path)
        self._make_private()
        # Before it is opened: a file that takes its place in between is then noticed as another one.
        file_id = self._file_id_now()
        native = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            if IS_MACOS:
                macos.flush_to_disk(native)
            self._prepare(native)
            if self._synchronous is not None:
                native.execute(f"PRAGMA synchronous = {self._synchronous}")
        except BaseException:
            native.close()
            raise
        self._file_id = file_id
        return native

    def drop_if_replaced(self) -> None:
        """Close the connection if the path now names another file, or none: SQLite would keep using the old file."""
        if self._native is not None and self._file_id_now() != self._file_id:
            self.close()

    def _file_id_now(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._name)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _make_private(self) -> None:
        """Create the file with mode 0600 if it is missing (SQLite would use the umask), and check that it is a regular
        file with one name.

        No descriptor is opened: closing one drops every lock that this process has on the file, those of its other
        connections included, and another process would then delete the log under them
        (https://www.sqlite.org/howtocorrupt.html, section 2.2).
        """
        try:
            if not os.path.exists(self.path):
                with suppress(FileExistsError):
                    _make_file(self.path)
            status = os.stat(self.path)
        except OSError as error:
            raise SourceUnavailableError(
                f"{self.path} cannot be opened ({error.strerror}): the file and its folder must exist and be writable"
            ) from error
        mode = status.st_mode
        if not stat.S_ISREG(mode):
            raise SourceUnavailableError(
                f"{self.path} is not a regular file ({stat.filemode(mode)}): choose another file"
            )
        if not os.access(self.path, os.R_OK | os.W_OK, effective_ids=_BY_EFFECTIVE_IDS):
            raise SourceUnavailableError(
                f"{self.path} ({stat.filemode(mode)}) may not be read and written by this user: make it and its folder "
                f"writable, or choose another file"
            )
        check_one_name(self.path, status.st_nlink)

    def execute(self, statement: str, parameters: Any = ()) -> sqlite3.Cursor:
        """Run one statement of the open transaction; raises sqlite3's own errors."""
        return self.native.execute(statement, parameters)

    def transact(self, body: Callable[[], Result], *, to_write: bool = True) -> Result:
        """Run `body` in a short transaction, which a fork waits for; commit at its end, roll back on any exception."""
        is_commit = False
        try:
            self._execute_waiting("BEGIN IMMEDIATE" if to_write else "BEGIN")
            result = body()
            is_commit = True
            self.native.execute("COMMIT")
        except FAULTS as error:
            self.rollback()
            raise self.map_error(error, is_commit=is_commit) from error
        except BaseException:
            self.rollback()
            raise
        finally:
            self.is_inside = False
        return result

    def begin(self) -> None:
        """Begin a write transaction that the user's block ends; SourceUnavailableError if the file stays locked."""
        try:
            self._execute_waiting("BEGIN IMMEDIATE")
        except BaseException:
            self.rollback()
            raise
        finally:
            self.is_inside = False

    def commit(self) -> None:
        """Commit the transaction of `begin`; OutcomeUnknownError if the system did not confirm the commit."""
        try:
            self.native.execute("COMMIT")
        except FAULTS as error:
            raise self.map_error(error, is_commit=True) from error

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one; never raises."""
        try:
            if self._native is not None and self._native.in_transaction:
                self._native.execute(self._rollback_text)
        except FAULTS:
            self.close()

    def run(self, statement: str, parameters: Any = (), *, to_write: bool = True) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own and return all rows; reading them all ends the transaction."""
        try:
            return self._execute_waiting(statement, parameters, is_commit=to_write).fetchall()
        except FAULTS as error:
            raise self.map_error(error, is_commit=to_write) from error
        finally:
            self.is_inside = False

    def change(self, statement: str, parameters: Any = ()) -> int:
        """Run one statement in a transaction of its own and return how many rows it changed."""
        try:
            return self._execute_waiting(statement, parameters, is_commit=True).rowcount
        finally:
            self.is_inside = False

    def run_alone(self, statement: str) -> Any:
        """Run a statement that writes no rows, outside any transaction; return the first value of its answer."""
        rows = self.run(statement, to_write=False)
        return rows[0][0] if rows else None

    def _execute_waiting(self, statement: str, parameters: Any = (), *, is_commit: bool = False) -> sqlite3.Cursor:
        """Run a statement, retrying while other processes hold the file's locks. Pauses happen outside the fork gate;
        on success the connection is still inside it.
        """
        give_up = 0.0
        pause_s = _BUSY_PAUSE_MIN_S
        while True:
            # First the flag, then the gate: see SQLiteForkGate for why this order needs no lock.
            self.is_inside = True
            if GATE.is_shut:
                self._enter_gate()
            try:
                return (self._native or self.native).execute(statement, parameters)
            except FAULTS as error:
                self.is_inside = False
                now = time.monotonic()
                give_up = give_up or now + self.request_timeout_s
                if code_of(error) not in BUSY or now >= give_up:
                    raise self.map_error(error, is_commit=is_commit) from error
            # The clock's last digits serve as jitter, so that processes that collided do not collide again.
            time.sleep(pause_s * (0.5 + time.monotonic_ns() % 1000 / 1000))
            pause_s = min(pause_s * 1.5, _BUSY_PAUSE_MAX_S)

    def _enter_gate(self) -> None:
        self.is_inside = True
        while GATE.is_shut:
            self.is_inside = False
            GATE.wait_until_open()
            self.is_inside = True

    def transact_flushed(self, body: Callable[[], Result], *, afterwards: str = "NORMAL") -> Result:
        """Run `body` in a transaction that is durable when this returns; then set `synchronous` to `afterwards`."""
        self._set_synchronous("EXTRA")
        try:
            return self.transact(body)
        finally:
            # A failure here must not hide how the transaction itself ended. A reopened connection sets the level again.
            try:
                self._set_synchronous(afterwards)
            except FencelockError:
                self.close()

    def _set_synchronous(self, level: str) -> None:
        # A fork may close the connection between any two requests: `_open` applies the level to the next one.
        self._synchronous = level
        self.run_alone(f"PRAGMA synchronous = {level}")

    def map_error(self, error: Fault, *, is_commit: bool = False) -> FencelockError:
        """Return the FencelockError for sqlite3's error on this file."""
        code = code_of(error)
        if code in BUSY:
            return SourceUnavailableError(
                f"{self.path} was locked by another connection for more than {self.request_timeout_s:g} s: some "
                "process, perhaps this one, is frozen or slow inside a write transaction, or has left one open; end "
                "it, or try again"
            )
        if is_commit and code == sqlite3.SQLITE_IOERR:
            return OutcomeUnknownError(f"{self.path}: the commit was not confirmed ({error}): it may have happened")
        remedy = remedy_for(code)
        return SourceUnavailableError(f"{self.path}: {remedy} ({error})" if remedy else f"{self.path}: {error}")

    def check_integrity(self, error: Exception) -> None:
        """Raise SourceUnavailableError from `error` if SQLite finds the file damaged."""
        message = self.run_alone("PRAGMA integrity_check(1)")
        if message != "ok":
            raise SourceUnavailableError(f"{self.path}: {remedy_for(sqlite3.SQLITE_CORRUPT)} ({message})") from error

    def close(self) -> None:
        """Close the connection, inside the fork gate; never raises. Its next use opens it again.

        Closing changes the log and its locks, and a child forked in between would take those for its own.
        """
        was_inside = self.is_inside
        if not was_inside:
            self._enter_gate()
        try:
            self._close()
        finally:
            self.is_inside = was_inside

    def _close(self) -> None:
        native, self._native = self._native, None
        self.opening = 0
        if native is not None:
            GATE.close(native)

    def close_if_idle(self) -> None:
        """Close the connection unless a thread is inside it or a transaction is open on it.

        Called by the fork gate in the forking thread, while the gate is shut.
        """
        if self.is_inside or self._native is None:
            return
        with suppress(sqlite3.ProgrammingError):  # The user of a guarded block may have closed it.
            if self._native.in_transaction:
                return
        self._close()

    def disown(self) -> None:
        """Forget the connection, which belongs to the parent process. Called by the fork gate in the child."""
        self._native = None
        self.opening = 0
