"""A store whose requests a test sends one by one, as a driver does."""

from typing import Any

from fencelock.clock import boottime_us
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.zookeeper.source.session import ZooKeeperSession
from fencelock.stores.zookeeper.source.store import ZooKeeperConnection, ZooKeeperSource

TTL_MS = 20_000
"""No test uses up the quarter after which a leader is asked, and a busy machine does not either."""


class Client:
    """A store and one connection, for single requests."""

    def __init__(self, url: str) -> None:
        self.store = ZooKeeperSource(url)
        self.connection: ZooKeeperConnection = self.store.connect(request_timeout_s=5.0)

    def perform(self, request: Any) -> Any:
        return self.connection.perform(request)

    def acquire(self, lock: str, *, claim: str | None = None, ttl_ms: int = TTL_MS, may_wait: bool = True) -> str:
        claim = claim or draw_claim()
        self.reply = self.perform(ask.Acquire(lock, claim, "tester", ttl_ms, boottime_us(), may_wait))
        return claim

    def renew(self, *leases: tuple[str, str]) -> ask.Renewed:
        return self.perform(ask.Renew(leases))  # type: ignore[no-any-return]

    @property
    def session(self) -> ZooKeeperSession:
        (session,) = self.store.sessions.open_sessions()
        return session

    def poll(self, lock: str, claim: str) -> Any:
        return self.perform(ask.Poll(lock, claim))

    def close(self) -> None:
        """End its sessions."""
        for session in self.store.sessions.open_sessions():
            session.close()
