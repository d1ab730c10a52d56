"""Clients of a MySQL source for tests: each request made by hand, as `tests/sources.py` makes them of a file."""

from fencelock.protocol import source_requests as ask
from fencelock.stores.mysql.source.store import MySQLSource
from tests import sources


class Client(sources.Client):
    """One process's view of a source: a store of its own, with what it remembers, and one connection."""

    def __init__(self, url: str, *, request_timeout_s: float = 10.0) -> None:
        self.url = url
        self.store = MySQLSource(url)
        self.connection = self.store.connect(request_timeout_s=request_timeout_s)

    def token(self, lock: str = "lock", claim: str | None = None, *, ttl_ms: int = sources.LONG_MS) -> int:
        """Acquire the lock, which must be free, and return the token; a claim that came too soon is drawn anew."""
        while isinstance(reply := self.acquire(lock, claim, ttl_ms=ttl_ms), ask.ClaimEnded):
            assert claim is None or not self.has_ended(lock, claim)
        assert isinstance(reply, ask.Granted), reply
        return reply.token

    def has_ended(self, lock: str, claim: str) -> bool:
        """Tell whether the source remembers this very claim as one that is over."""
        native = self.connection._native
        assert native is not None
        with native.cursor() as cursor:
            cursor.execute("select ended_claim from fencelock_lock where name = %s", [lock.encode()])
            return cursor.fetchone() == (claim,)


def one_token(url: str, lock: str = "lock") -> int:
    """Acquire and release the lock as a process that was just started, and return the token."""
    client = Client(url)
    try:
        return client.one_token(lock)
    finally:
        client.close()
