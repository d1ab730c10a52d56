"""Clients of a source on an SQL server: each request made by hand, or one way to call both public APIs."""

import asyncio
import inspect
from types import TracebackType
from typing import Any, Self

import fencelock
import fencelock.aio
from fencelock.model import digest_of_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.registry import source_store
from tests.sql.dialect import run
from tests.support import sources


class SqlClient(sources.Client):
    """One process's view of a source: a store of its own, with what it remembers, and one connection."""

    def __init__(self, url: str, *, request_timeout_s: float = 10.0) -> None:
        self.url = url
        self.store: Any = source_store(url)
        self.connection: Any = self.store.connect(request_timeout_s=request_timeout_s)

    @property
    def native(self) -> Any:
        """The connection of the client library, which is open."""
        assert self.connection._native is not None
        return self.connection._native

    def token(self, lock: str = "lock", claim: str | None = None, *, ttl_ms: int = sources.LONG_MS) -> int:
        """Acquire the lock, which must be free, and return the token; draw another claim if one came too soon."""
        while isinstance(reply := self.acquire(lock, claim, ttl_ms=ttl_ms), ask.ClaimEnded):
            assert claim is None or not self.has_ended(lock, claim)
        assert isinstance(reply, ask.Granted), reply
        return reply.token

    def has_ended(self, lock: str, claim: str) -> bool:
        """Return whether the source remembers this very claim as one that is over."""
        return run(self.native, f"SELECT ended_digest FROM {self._locks} WHERE name = %s", lock.encode()) == [
            (digest_of_claim(claim),)
        ]

    def expire(self, lock: str = "lock") -> None:
        """Let the lease that `token` has obtained be over."""
        earlier = f"deadline_us = deadline_us - {sources.LONG_MS * 1000}"
        run(self.native, f"UPDATE {self._locks} SET {earlier} WHERE name = %s", lock.encode())

    @property
    def _locks(self) -> str:
        return "fencelock.lock" if self.url.startswith("postgresql:") else "fencelock_lock"


def one_token(url: str, lock: str = "lock") -> int:
    """Acquire and release the lock as a process that was just started, and return the token."""
    client = SqlClient(url)
    try:
        return client.one_token(lock)
    finally:
        client.close()


class PublicSource:
    """A public source, sync or async, and one way to call it: `public.do(public.source.info("lock"))`."""

    def __init__(self, kind: str, url: str) -> None:
        self._runner = asyncio.Runner()
        self.source: Any = fencelock.connect(url) if kind == "sync" else fencelock.aio.connect(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.do(self.source.close())
        self._runner.close()

    def do(self, result: Any) -> Any:
        """Return the result of a call, which the async source gives as a coroutine."""
        if not inspect.iscoroutine(result):
            return result
        return self._runner.run(result)
