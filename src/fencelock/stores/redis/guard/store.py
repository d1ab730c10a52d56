"""The guard of Redis keys: marks beside the data, and one script that compares them.

Promise: the constructor opens nothing; all connections of one guard share their idle ones. A mark is as durable as the
data beside it, and no more: an asynchronous failover may lose both. Redis itself refuses nobody who writes past the
guard: its ACL has to, and `examine` reports where it does not.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from fencelock.model import Finding
from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.optimistic.connection import AsyncOptimisticConnection, OptimisticConnection
from fencelock.stores.redis.connection.client import (
    AsyncRedisSession,
    RedisPool,
    RedisSession,
    RedisSessionBase,
)
from fencelock.stores.redis.connection.url import parse_url
from fencelock.stores.redis.guard.block import MAX_REQUEST_BYTES, MAX_WRITES, Shapes
from fencelock.stores.redis.guard.codec import RedisGuardCodec
from fencelock.stores.redis.guard.inspection import examine
from fencelock.stores.redis.guard.layout import RedisLayout
from fencelock.stores.redis.guard.policy import guard_policy
from fencelock.stores.redis.guard.transactions import AsyncRedisTransaction, RedisTransaction


class RedisGuard:
    """Guarded keys."""

    capabilities = GuardCapabilities(
        enforced_by="policy",
        speaks_asyncio=True,
        keeps_open=False,
        seal_is_durable=False,
        first_seal_creates=False,
        max_writes=MAX_WRITES,
        max_request_bytes=MAX_REQUEST_BYTES,
    )

    def __init__(self, url: str) -> None:
        self.info = parse_url(url)
        self.url = self.info.url
        self.layout = RedisLayout(self.info)
        self._pool = RedisPool(self.info)
        self._shapes: Shapes = {}

    def connect(self) -> OptimisticConnection[RedisGuardCodec]:
        """Return a connection for the caller's thread."""
        session = RedisSession(self._pool)
        return OptimisticConnection(self._codec(RedisTransaction, session), session.send, session.release)

    def connect_async(self) -> AsyncOptimisticConnection[RedisGuardCodec]:
        """Return a connection for the running loop."""
        session = AsyncRedisSession(self._pool)
        return AsyncOptimisticConnection(self._codec(AsyncRedisTransaction, session), session.send, session.release)

    def _codec(self, transaction_type: Callable[..., Any], session: RedisSessionBase) -> RedisGuardCodec:
        return RedisGuardCodec(self.layout, partial(transaction_type, session, self.layout, self._shapes))

    def install(self) -> None:
        """Do nothing: `protect` creates what a resource needs."""

    def policy(self, resource: str, lock: str, *roles: str) -> str:
        """Return the commands that let these users write one resource, and no other mark."""
        return "\n".join(guard_policy(self.layout, resource, lock, role) for role in roles)

    def examine(self) -> list[Finding]:
        """Report a server that a guard cannot rely on, what it does not flush, and missing access control."""
        return examine(self.info, self.layout, self._pool, self.connect())
