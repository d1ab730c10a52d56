"""The Redis guard keeps every rule, synchronously and on the event loop, at Redis, at Valkey, and in a cluster."""

from typing import Any

import pytest
from redis.exceptions import ConnectionError as LostError

from fencelock.stores.redis.connection.connections import AsyncRedisConnection, RedisConnection
from fencelock.stores.redis.guard.transactions import AsyncRedisTransaction, RedisTransaction
from fencelock.testing import AsyncGuardConformance, GuardConformance
from fencelock_lab.servers.redis import RedisFleet
from tests.redis.fix_redis import THREE, Corner, fresh_corner


class AtRedis:
    """A fresh prefix for each check. A value is a key that holds a string."""

    compares_reads = True
    is_async: bool
    interrupted_files: tuple[str, ...] = ("redis/connection/connections.py",)
    kind = "redis"
    size = 1
    corner: Corner

    def setup_method(self) -> None:
        """The server comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _at_redis(self, redis_fleet: RedisFleet) -> None:
        self.corner = fresh_corner(redis_fleet, self.kind, self.size)
        self.direct = self.corner.direct
        super().setup_method()

    def make_url(self) -> str:
        return self.corner.url

    def dump(self) -> bytes:
        return self.direct.dump(self.corner.prefix)

    def key(self, table: str, key: str) -> str:
        return self.corner.key(f"{table}:{key}")

    def put(self, native: RedisTransaction, table: str, key: str, value: str) -> None:
        native.execute("SET", self.key(table, key), value)

    def read(self, native: RedisTransaction, table: str, key: str) -> str | None:
        value = native.get(self.key(table, key))
        return None if value is None else value.decode()

    def wire(self) -> tuple[Any, str]:
        return (AsyncRedisConnection if self.is_async else RedisConnection), "exchange"

    def lost_reply(self) -> Exception:
        return LostError("the answer was lost on purpose")

    def put_alone(self, table: str, key: str, value: str) -> None:
        self.direct("SET", self.key(table, key), value)

    def lose_mark(self, resource: str) -> None:
        self.direct("DEL", self.corner.own(f"marks/{resource}"))

    def get(self, table: str, key: str) -> str | None:
        return self.direct.get(self.key(table, key))


class TestRedisGuard(AtRedis, GuardConformance):
    pass


class TestAsyncRedisGuard(AtRedis, AsyncGuardConformance):
    async def put_async(self, native: AsyncRedisTransaction, table: str, key: str, value: str) -> None:
        native.execute("SET", self.key(table, key), value)


@pytest.mark.campaign
class TestValkeyGuard(AtRedis, GuardConformance):
    interrupted_files = ("stores/redis/",)
    kind = "valkey"


@pytest.mark.campaign
class TestRedisGuardInACluster(AtRedis, GuardConformance):
    interrupted_files = ()
    size = THREE


@pytest.mark.campaign
class TestAsyncRedisGuardInACluster(AtRedis, AsyncGuardConformance):
    size = THREE
