"""The identity of a source's file: its schema, the kernel whose clock it uses, and whether its history is whole (T7).

Promise: a file is refused, with the remedy, if another kernel uses it, if it is a copy (its inode or its time of birth
differs from the recorded one), or if it is an older state than this process has seen. After a reboot, the counter
skips to the durable bound before the first grant (T1), and all leases end: the processes that held them are gone.
Never noticed here, and therefore an operator's step: an older state written over the same file in place, while no
process runs that saw the newer state.
"""

import os
import shlex
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from fencelock.clock import boottime_us
from fencelock.errors import SchemaError, SourceError, SourceUnavailableError, UnsupportedError
from fencelock.model import SourceInfo, default_holder
from fencelock.protocol import source_requests as ask
from fencelock.stores.errors import SOURCE_PART, check_schema_number, not_installed
from fencelock.stores.source_clock import start_of_new_history
from fencelock.stores.sqlite.connection.database import Database
from fencelock.stores.sqlite.connection.file_identity import FileIdentity, Kernel, identify_file, this_kernel
from fencelock.stores.statements import statements

SQL = statements(__package__, "source.sql")
SCHEMA = statements(__package__, "schema.sql")
SCHEMA_NUMBER = 3
PAGE_BYTES = 1024
_REMEDY = "stop everything that uses it, then run `fencelock epoch --raise --reason …`"
Reply = TypeVar("Reply")


class SourceRow(NamedTuple):
    """The source's one row."""

    source_id: str
    epoch: int
    history_id: str
    counter: int
    bound: int
    reserved: int
    boot_id: str
    time_namespace: str
    machine_id: str
    inode: int
    born_ns: int

    def info(self) -> SourceInfo:
        """Return the public view of the row."""
        return SourceInfo(self.source_id, self.epoch, self.history_id, self.counter, self.reserved)


class SQLiteSourceState:
    """The newest state of a source that this process has seen; each grant raises the counter."""

    __slots__ = ("counter", "epoch", "history_id", "source_id")

    def __init__(self, source_id: str, epoch: int, history_id: str, counter: int) -> None:
        self.source_id = source_id
        self.epoch = epoch
        self.history_id = history_id
        self.counter = counter


class SourceStateRow(Protocol):
    """The part of the source that every transaction reads; SourceRow and QueueView have it."""

    @property
    def source_id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def history_id(self) -> str: ...
    @property
    def counter(self) -> int: ...
    @property
    def boot_id(self) -> str: ...
    @property
    def time_namespace(self) -> str: ...


def read_source(database: Database) -> SourceRow:
    """Return the source's row. Call it inside a transaction."""
    return _source_row(database, database.execute(SQL.read_source).fetchall())


def read_source_alone(database: Database) -> SourceRow:
    """Return the source's row, read in a transaction of its own."""
    return _source_row(database, database.run(SQL.read_source, to_write=False))


def _source_row(database: Database, rows: list[tuple[Any, ...]]) -> SourceRow:
    if not rows:
        raise missing_source_error(database.path)
    return SourceRow._make(rows[0])


def missing_source_error(path: Path) -> SchemaError:
    """Return the error for a file whose source row was deleted by hand."""
    return SchemaError(
        f"{path} holds fencelock's tables but no source: its one row was deleted. Restore the file from a backup and "
        f"run `fencelock epoch --raise --reason …`, or choose another file"
    )


class SQLiteAuditEntry(NamedTuple):
    """An operator's action; `holder` had the lease that a break ended, and `digest` is the break's own."""

    who: str
    action: str
    subject: str
    token: int
    reason: str
    holder: str | None = None
    digest: str | None = None


def write_audit(database: Database, entry: SQLiteAuditEntry) -> None:
    """Record an operator's action. Call it inside the transaction of that action."""
    database.execute(SQL.write_audit, entry._asdict())


def ensure_schema(database: Database) -> None:
    """Create the schema, in write-ahead-log mode, if the file has none; SchemaError if it has another schema, with
    nothing changed.
    """
    is_new = not database.run_alone(SQL.has_schema)
    if not is_new:
        _check_schema_number(database)
    # Before the tables, since the first page fixes the page size; outside of a transaction, where the mode may change.
    _use_write_ahead_log(database)
    if is_new:
        database.transact_flushed(lambda: _install(database))
        _check_schema_number(database)


def check_installed(database: Database) -> None:
    """Raise SchemaError, and create nothing, unless the file is there and holds a source."""
    url = f"sqlite:///{database.path}"
    folder = database.path.parent
    if not folder.is_dir():
        raise SchemaError(
            f"{url} holds no source of tokens of fencelock's (there is no folder {folder}): correct the URL. If it "
            f"is right, create the folder first, and then run `fencelock install --source {shlex.quote(url)}`"
        )
    if not database.path.exists():
        raise not_installed(url, SOURCE_PART, "there is no such file", or_else="correct the URL, or, ")
    if not database.run_alone(SQL.has_schema):
        raise not_installed(url, SOURCE_PART)


def is_installed(path: Path) -> bool:
    """Return whether the file is there, with a source of this version."""
    if not path.exists():
        return False
    database = Database(path)
    try:
        if not database.run_alone(SQL.has_schema):
            return False
        _check_schema_number(database)
        return True
    finally:
        database.close()


def _check_schema_number(database: Database) -> None:
    number = database.run_alone(SQL.read_schema_number)
    if number is None:
        raise missing_source_error(database.path)
    check_schema_number(os.fspath(database.path), SOURCE_PART, number, SCHEMA_NUMBER)


def _use_write_ahead_log(database: Database) -> None:
    # Takes effect only in a file without pages. Rows are small, and each change writes a whole page to the log.
    database.run_alone(f"PRAGMA page_size = {PAGE_BYTES}")
    mode = database.run_alone("PRAGMA journal_mode = WAL")
    if mode != "wal":
        raise UnsupportedError(
            f"{database.path}: SQLite cannot use a write-ahead log there (got {mode!r}): use a local disk"
        )


def _install(database: Database) -> None:
    if database.execute(SQL.has_schema).fetchone()[0]:
        return  # Another process has done it.
    for name in SCHEMA:
        if name != "insert_source":
            database.execute(SCHEMA[name])
    database.execute(
        SCHEMA.insert_source,
        {
            "schema": SCHEMA_NUMBER,
            "source_id": os.urandom(16).hex(),
            "history_id": os.urandom(8).hex(),
            **_birth_of(database.path)._asdict(),
            **this_kernel()._asdict(),
        },
    )


def _birth_of(path: Path) -> FileIdentity:
    try:
        return identify_file(path)
    except OSError as error:
        raise SourceUnavailableError(f"{path} disappeared while it was opened ({error.strerror}): try again") from error


class SQLiteIdentity:
    """What one source object knows of its file, over all its connections. Safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seen: SQLiteSourceState | None = None
        """The newest state of the source that any connection of this object has read."""

    def check_not_gone(self) -> None:
        """Raise SourceError if the file that this process has used is gone; a new file would be another source."""
        if self.seen is not None and not self._path.exists():
            raise SourceError(
                f"{self._path} was source {self.seen.source_id} and is gone: put it back, or start this process again "
                f"to begin a new source, and run `fencelock rebind` for each resource"
            )

    def check_file(self, database: Database) -> None:
        """Refuse a copy and another kernel's file; adopt the file after a reboot. Call it once per opening."""
        row = read_source_alone(database)
        self._check_birth(row)
        if not self._is_our_clock(row):
            database.transact_flushed(lambda: self._adopt_after_reboot(database))

    def check_state(self, row: SourceStateRow) -> None:
        """Raise SourceError if the file is on another kernel's clock or its history went back; remember the state."""
        here = this_kernel()
        if (row.boot_id, row.time_namespace) != (here.boot_id, here.time_namespace):
            raise self._other_kernel()
        now = SQLiteSourceState(row.source_id, row.epoch, row.history_id, row.counter)
        if self.seen is not None:
            self._check_forward(self.seen, now)
        self.seen = now

    def remember_grant(self, reply: Reply) -> Reply:
        """Remember the token of a committed grant, so that its loss is noticed; return the reply."""
        seen = self.seen
        if isinstance(reply, ask.Granted) and seen is not None and reply.token > seen.counter:
            seen.counter = reply.token
        return reply

    def raise_epoch(self, database: Database, request: ask.RaiseEpoch) -> SourceInfo | None:
        """Begin a new history on this kernel's clock; end every lease of the old one."""
        info = database.transact_flushed(lambda: self._begin_history(database, request))
        if info is not None:
            self.seen = SQLiteSourceState(info.source_id, info.epoch, info.history_id, info.last_token)
        return info

    def _begin_history(self, database: Database, request: ask.RaiseEpoch) -> SourceInfo | None:
        row = read_source(database)
        seen = self.seen.counter if self.seen else 0
        (written,) = database.execute(SQL.read_highest_token).fetchone()
        # An older state that was restored has a counter below tokens that its rows, or this process, have seen (T7).
        counter = start_of_new_history(max(row.counter, row.reserved, written, seen))
        fields = {
            "history_id": request.history_id,
            "new_history_id": os.urandom(8).hex(),
            "counter": counter,
        }
        if not database.execute(SQL.raise_epoch, {**fields, **_birth_of(self._path)._asdict()}).rowcount:
            return None
        self._void_everything(database, "the source's epoch was raised: " + request.reason, boottime_us())
        entry = SQLiteAuditEntry(default_holder(), "raise epoch", request.history_id, counter, request.reason)
        write_audit(database, entry)
        return read_source(database).info()

    def _adopt_after_reboot(self, database: Database) -> None:
        row = read_source(database)
        if self._is_our_clock(row):
            return  # Another process has done it.
        self._void_everything(database, "the machine was started again", born_after_us=0)

    def _void_everything(self, database: Database, ended: str, born_after_us: int) -> None:
        """Skip to the reserved bound, adopt this kernel's clock, and end every lease and wait of the old clock."""
        database.execute(SQL.end_all_leases, {"ended": ended})
        database.execute(SQL.drop_all_waiters)
        database.execute(SQL.adopt_clock, {"born_after_us": born_after_us, **this_kernel()._asdict()})

    def _is_our_clock(self, row: SourceRow) -> bool:
        written = Kernel(row.boot_id, row.time_namespace, row.machine_id)
        here = this_kernel()
        if not here.is_same_clock(written) and not here.is_reboot_of(written):
            raise self._other_kernel()
        return here.is_same_clock(written)

    def _check_birth(self, row: SourceRow) -> None:
        found = _birth_of(self._path)
        if not found.is_of(FileIdentity(row.inode, row.born_ns)):
            raise SourceError(
                f"{self._path} is a copy: it was made as inode {row.inode}, born {_birth_text(row.born_ns)}, and is "
                f"inode {found.inode}, born {_birth_text(found.born_ns)} (restored, moved to another disk, or "
                f"duplicated). The original may have issued higher tokens than its counter, {row.counter}, says: "
                f"{_REMEDY}"
            )

    def _check_forward(self, seen: SQLiteSourceState, now: SQLiteSourceState) -> None:
        if now.source_id != seen.source_id:
            raise SourceError(
                f"{self._path} was source {seen.source_id} and is source {now.source_id} now: its file was replaced. "
                "Put the first one back, or start this process again and run `fencelock rebind` for each resource"
            )
        is_fork = now.epoch == seen.epoch and now.history_id != seen.history_id
        if is_fork or now.epoch < seen.epoch or now.counter < seen.counter:
            raise SourceError(
                f"{self._path} went back from token {seen.counter} (epoch {seen.epoch}, history {seen.history_id}) to "
                f"{now.counter} (epoch {now.epoch}, history {now.history_id}): an older state was restored over it, "
                f"and tokens would be issued twice. No lock is granted: {_REMEDY}"
            )

    def _other_kernel(self) -> SourceError:
        return SourceError(
            f"{self._path} is used by another kernel (a second machine, a container with a clock of its own, or a "
            "copy): this kernel's clock says nothing about its leases. Use a server store for several machines; if the "
            f"file moved here for good, {_REMEDY}"
        )


def _birth_text(born_ns: int) -> str:
    """Return a time of birth as text: UTC, to the microsecond."""
    if not born_ns:
        return "at an unknown time"
    seconds, ns = divmod(born_ns, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ns // 1000:06d}Z"
