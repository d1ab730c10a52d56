"""Clients of a SQLite source for tests: each request made by hand, over a real file, in the order that a test says."""

import sqlite3
from pathlib import Path
from typing import Any

from fencelock.clock import boottime_us
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.connection.file_identity import Kernel
from fencelock.stores.sqlite.source import identity
from fencelock.stores.sqlite.source import store as source
from fencelock.stores.sqlite.source.store import SQLiteSource

LONG_MS = 60_000
"""A ttl that no test outlives."""
TAKE_OVERS = 100
"""Tries to meet the last millisecond of a lease."""


def installed(path: Path) -> str:
    """Make the source, and return its URL."""
    url = f"sqlite:///{path}"
    SQLiteSource(url).install()
    return url


class Client:
    """One process's view of a source: a store of its own, and one connection."""

    def __init__(self, path: Path, *, request_timeout_s: float = 5.0) -> None:
        self.path = path
        self.store = SQLiteSource(f"sqlite:///{path}")
        self.connection = self.store.connect(request_timeout_s=request_timeout_s)

    def ask(self, request: Any) -> Any:
        """Make one request, and reserve a block where the last one is spent, as flows do."""
        while isinstance(reply := self.connection.perform(request), ask.BlockSpent):
            self.connection.perform(ask.ReserveBlock())
        return reply

    def acquire(
        self,
        lock: str = "lock",
        claim: str | None = None,
        *,
        ttl_ms: int = LONG_MS,
        may_wait: bool = False,
        born_us: int | None = None,
    ) -> Any:
        """Ask for the lock under a claim, drawn now unless one is given."""
        born_us = boottime_us() if born_us is None else born_us
        return self.ask(ask.Acquire(lock, claim or draw_claim(), "tester", ttl_ms, born_us, may_wait))

    def token(self, lock: str = "lock", claim: str | None = None, *, ttl_ms: int = LONG_MS) -> int:
        """Acquire the lock, which must be free, and return the token."""
        reply = self.acquire(lock, claim, ttl_ms=ttl_ms)
        assert isinstance(reply, ask.Granted), reply
        return reply.token

    def one_token(self, lock: str = "lock") -> int:
        """Acquire the lock, release it, and return the token that it had."""
        claim = draw_claim()
        token = self.token(lock, claim)
        self.release(lock, claim)
        return token

    def expire(self, lock: str = "lock") -> None:
        """Let the lease that `token` has obtained be over: a short ttl might be before somebody queues behind it."""
        rows(self.path, "UPDATE fencelock_lock SET deadline_ms = deadline_ms - ? WHERE name = ?", (LONG_MS, lock))

    def check_free_is_free(self, lock: str = "lock") -> None:
        """Take the lock whenever it is shown as free, again and again."""
        for _ in range(TAKE_OVERS):
            self.token(lock, ttl_ms=1)
            while self.ask(ask.Inspect(lock)).is_held:
                pass
            self.one_token(lock)

    def release(self, lock: str, claim: str) -> bool:
        """End the claim, and return whether it held the lock."""
        was_held: bool = self.ask(ask.Release(lock, claim)).was_held
        return was_held

    def describe(self) -> Any:
        """Return the source's identity and counter."""
        return self.ask(ask.ReadSource())

    def raise_epoch(self, reason: str = "a test") -> Any:
        """Begin a new history."""
        return self.ask(ask.RaiseEpoch(self.describe().history_id, reason))

    def close(self) -> None:
        """Close the connection, as the end of a process does."""
        self.connection.close()


def one_token(path: Path, lock: str = "lock") -> int:
    """Acquire and release the lock as a process that was just started, and return the token."""
    client = Client(path)
    try:
        return client.one_token(lock)
    finally:
        client.close()


def pretend_kernel(monkeypatch: Any, kernel: Kernel) -> None:
    """Have this process believe that it runs on another kernel."""
    monkeypatch.setattr(identity, "this_kernel", lambda: kernel)
    monkeypatch.setattr(source, "this_kernel", lambda: kernel)


def rows(path: Path, statement: str, parameters: Any = ()) -> list[Any]:
    """Run a statement on the file as somebody else's program does, and return its rows."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        return connection.execute(statement, parameters).fetchall()
    finally:
        connection.close()
