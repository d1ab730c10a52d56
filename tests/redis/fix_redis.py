"""Fixtures: one Redis, one Valkey and a cluster of three for the whole test session, and servers that a test may kill.

Tests share the first three by having a prefix each; a test that ends, freezes or reconfigures a server has its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fencelock_lab.servers.redis import RedisCluster, RedisFleet, RedisServer
from tests.fix_servers import fresh_name
from tests.redis.direct import Direct

KINDS = ("redis", "valkey")
THREE = 3


@dataclass(frozen=True, slots=True)
class Corner:
    """A prefix of one test at servers that it may share with other tests."""

    servers: RedisCluster
    prefix: str

    @property
    def url(self) -> str:
        return f"{self.servers.url}/0/{self.prefix}"

    @property
    def direct(self) -> Direct:
        """A client that bypasses the guard, at the server that has the slot of the prefix."""
        return Direct.to_slot(self.servers, self.prefix)

    def key(self, name: str) -> str:
        """Return the key of the test's own data."""
        return f"{{{self.prefix}}}:{name}"

    def own(self, name: str) -> str:
        """Return a key of the guard's own."""
        return f"{{{self.prefix}}}.fencelock/{name}"


def fresh_corner(fleet: RedisFleet, kind: str = "redis", size: int = 1) -> Corner:
    """Return a fresh prefix at the servers of this kind that all tests share."""
    return Corner(fleet.shared(kind, size), fresh_name("test"))


def own_corner(server: RedisServer, prefix: str = "app") -> Corner:
    """Return a prefix at a server of the test's own."""
    return Corner(RedisCluster([server]), prefix)


@pytest.fixture
def redis(redis_fleet: RedisFleet) -> Corner:
    """Return a prefix of the test's own at the shared Redis, which a test must neither end nor freeze."""
    return fresh_corner(redis_fleet)


@pytest.fixture(params=KINDS)
def redis_of_each_kind(request: pytest.FixtureRequest, redis_fleet: RedisFleet) -> Corner:
    """Return a prefix of the test's own at the shared Redis, and at the shared Valkey."""
    return fresh_corner(redis_fleet, request.param)


@pytest.fixture
def redis_three(redis_fleet: RedisFleet) -> Corner:
    """Return a prefix of the test's own at the shared cluster, which a test must neither end nor freeze."""
    return fresh_corner(redis_fleet, size=THREE)


@pytest.fixture
def own_redis(redis_fleet: RedisFleet) -> Iterator[RedisServer]:
    """Yield a running server of the test's own, which the test may kill."""
    with redis_fleet.new_server() as server:
        yield server
