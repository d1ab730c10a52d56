"""The simulated world with SQLite's own source: its statements and decisions, on virtual time.

Promise: `SQLiteSourceConnection` answers every request from a database in memory; only its clock, its kernel and its
disk are simulated. A power cut keeps only the state that `transact_flushed` has flushed. It ends every process of the
machine, because the deadlines in the file are on the clock of one boot.
"""

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from fencelock.model import SourceInfo
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.connection.database import Database
from fencelock.stores.sqlite.connection.file_identity import Kernel, this_kernel
from fencelock.stores.sqlite.source import identity
from fencelock.stores.sqlite.source import store as source
from fencelock.stores.sqlite.source.store import OPERATOR_REQUESTS, SQLiteSource, SQLiteSourceConnection
from fencelock_lab.simulator.source import SimulatedSource
from fencelock_lab.simulator.world import SimulatedWorld

Result = TypeVar("Result")
NS_PER_US = 1000
URL_PREFIX = "sqlite:///"


@cache
def _template() -> tuple[tempfile.TemporaryDirectory[str], Path, bytes]:
    """Return an unused source: its folder, its file, which identifies it, and its pages."""
    folder = tempfile.TemporaryDirectory(prefix="fencelock-")
    path = Path(folder.name) / "locks.db"
    SQLiteSource(f"{URL_PREFIX}{path}").install()
    with closing(sqlite3.connect(path)) as native:
        native.execute("PRAGMA journal_mode = DELETE")  # A database in memory has no separate log file.
        return folder, path, native.serialize()


class Clock:
    """The time and the kernel that the SQLite source reads."""

    def __init__(self) -> None:
        self.now_us: Callable[[], int] = lambda: 0
        self.boots = 0

    def kernel(self) -> Kernel:
        """Return the present boot of the machine."""
        here = this_kernel()
        return here._replace(boot_id=f"{here.boot_id}-{self.boots}") if self.boots else here


CLOCK = Clock()


@contextmanager
def virtual_time(now_us: Callable[[], int]) -> Iterator[None]:
    """Make the SQLite source read this clock inside the block."""
    changes = (
        (identity, "boottime_us", now_us),
        (source, "this_kernel", CLOCK.kernel),
        (identity, "this_kernel", CLOCK.kernel),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    CLOCK.now_us, CLOCK.boots = now_us, 0
    try:
        for module, name, replacement in changes:
            setattr(module, name, replacement)
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)


class MemoryDatabase(Database):
    """A database in memory that records its flushes."""

    pages: bytes
    was_flushed = False

    def _open(self) -> sqlite3.Connection:
        native = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        native.deserialize(self.pages)
        self._prepare(native)
        native.create_function("fencelock_now_ns", 0, lambda: CLOCK.now_us() * NS_PER_US)
        return native

    def drop_if_replaced(self) -> None:
        """Do nothing: no other process can replace a database in memory."""

    def transact_flushed(self, body: Callable[[], Result], *, afterwards: str = "NORMAL") -> Result:
        """Run the transaction, and note that the present state is on the disk."""
        result = super().transact_flushed(body, afterwards=afterwards)
        self.was_flushed = True
        return result


class SimulatedConnection(SQLiteSourceConnection):
    """A connection to pages in memory; opening it checks schema and identity, as in production."""

    database_type = MemoryDatabase
    database: MemoryDatabase

    def __init__(self, pages: bytes) -> None:
        _, path, _ = _template()
        super().__init__(SQLiteSource(f"{URL_PREFIX}{path}"), request_timeout_s=0.0)
        self.database.pages = pages

    def _check_file(self, kind: type) -> None:
        if kind not in OPERATOR_REQUESTS:
            self._identity.check_file(self.database)
            self._checked_opening = self.database.opening


class SQLiteLedger:
    """SQLite's source with the interface of the reference model."""

    def __init__(self, source_id: str, history_id: str, *, block_tokens: int, pages: bytes | None = None) -> None:
        self._connection = SimulatedConnection(_template()[2] if pages is None else pages)

    def answer(self, request: Any, now_us: int) -> ask.SourceReply:
        """Answer one request with SQLite."""
        return self._connection.perform(request)

    def take_flushed(self) -> bool:
        """Return whether a flush has happened since the last call."""
        database = self._connection.database
        was_flushed, database.was_flushed = database.was_flushed, False
        return was_flushed

    def copy(self) -> "SQLiteLedger":
        """Return a source on an unopened copy of the pages."""
        return SQLiteLedger("", "", block_tokens=0, pages=self._connection.database.native.serialize())

    def start_again(self, now_us: int, ended: str) -> None:
        """Restart the machine: the next request finds another boot."""
        CLOCK.boots += 1
        self._connection.perform(ask.ReserveBlock())

    def head(self, lock: str, now_ms: int) -> str | None:
        """Return the digest of the claim at the head of the queue."""
        row = self._connection.database.execute(identity.SQL.read_head, {"lock": lock}).fetchone()
        return row[0] if row else None

    @property
    def counter(self) -> int:
        """The last token issued."""
        return self._info.last_token

    @property
    def epoch(self) -> int:
        """The epoch of the present history."""
        return self._info.epoch

    @property
    def history_id(self) -> str:
        """The id of the present history."""
        return self._info.history_id

    @property
    def _info(self) -> SourceInfo:
        return cast("SourceInfo", self._connection.perform(ask.ReadSource()))


class SQLiteBehindANetwork(SimulatedSource):
    """The simulated source, with SQLite instead of the reference model."""

    ledger_type = SQLiteLedger  # type: ignore[assignment]
    ledger: SQLiteLedger  # type: ignore[assignment]

    def has_flushed(self, request: Any) -> bool:
        """Return what SQLite did, not what it should have done."""
        return self.ledger.take_flushed()


class SQLiteWorld(SimulatedWorld):
    """A world with SQLite's source."""

    source_type = SQLiteBehindANetwork

    def run(self) -> None:
        """Run the world on virtual time."""
        with virtual_time(lambda: self.kernel.now_us):
            super().run()

    def _restart_source(self) -> None:
        """Cut the power: the machine restarts, and every process on it ends."""
        for client in self.clients:
            client.process.kill()
        self.network.forget()
        self.source.stop()
        self.source.start()
        for _ in range(self.kernel.between(1, 3)):
            self.add_client()
