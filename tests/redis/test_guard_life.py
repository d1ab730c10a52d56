"""What the Redis guard survives: lost requests, frozen and killed holders, forks, operators and their commands."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError as LostError

import fencelock
import fencelock.aio
from fencelock import GuardError, UnsupportedError
from fencelock_lab.servers.redis import RedisFleet, RedisServer
from tests.cli.program import program
from tests.redis.fix_redis import Corner, fresh_corner, own_corner
from tests.redis.guarded import protect, watch
from tests.support.guard_life import GuardLife, outlive_an_outage
from tests.support.guarded_keys import Face, Loss
from tests.support.guards import LOCK, RESOURCE, Blocking, HandmadeLease, HandmadeSource

__all__ = ["program"]


class RedisFace(Face):
    """One guarded key."""

    READ = "txn.get(KEY).decode()"
    WRITE = "txn.execute('SET', KEY, value)"

    def __init__(self, corner: Corner) -> None:
        self.corner = corner
        self.url = corner.url
        self.direct = corner.direct
        self.key = corner.key("value")
        self.direct("SET", self.key, "initial")
        protect(self.url)

    def put(self, txn: Any, value: str) -> None:
        txn.execute("SET", self.key, value)

    def read_number(self, txn: Any) -> int:
        return int(txn.get(self.key))

    def value(self) -> str | None:
        return self.direct.get(self.key)

    def put_floors(self, value: bytes) -> None:
        self.direct("SET", self.corner.own("floors"), value)

    def watch(self, guard: Any, loss: Loss) -> Loss:
        return watch(guard, loss, LostError("lost on purpose"))

    def trips(self, guard: Any) -> Callable[[], int]:
        """Return what counts trips, once the guard knows the commands that the tests use."""
        protect(self.url, "another")
        known = fencelock.guard(self.url, resource="another", lock=LOCK)
        with known.transaction(HandmadeLease(1)) as txn:
            txn.execute("SET", self.key, txn.get(self.key))
        guard._core.store._shapes.update(known._core.store._shapes)
        return super().trips(guard)

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(one) for one in self.direct("LRANGE", self.corner.own("audit"), 0, -1)][1:]


class TestRedisGuard(GuardLife):
    @pytest.fixture
    def new_face(self, redis_fleet: RedisFleet) -> Callable[[], Face]:
        return lambda: RedisFace(fresh_corner(redis_fleet))

    @pytest.fixture
    def face(self, new_face: Callable[[], Face]) -> Face:
        return new_face()

    def test_g6_the_store_protects_no_table_and_says_what_to_do(self, face: Face) -> None:
        with pytest.raises(UnsupportedError, match=r"has no triggers.*the store's own access control"):
            face.guard().protect("reports")
        with pytest.raises(GuardError, match="protects no table"):
            face.guard().unprotect(reason="a test")

    def test_g9_raising_to_a_source_that_has_issued_nothing_is_kept_too(self, face: Face) -> None:
        face.guard().raise_to(HandmadeSource(0), reason="restored")
        assert [one["action"] for one in face.entries()] == ["raise-to"]
        assert [mark.token for mark in fencelock.inspect_resources(face.url).marks] == [0]


class AsyncRedisFace(RedisFace):
    """The same through the async guard."""

    def __init__(self, corner: Corner, runner: asyncio.Runner) -> None:
        super().__init__(corner)
        self.runner = runner

    def guard(self, lock: str = LOCK) -> Any:
        return Blocking(fencelock.aio.guard(self.url, resource=RESOURCE, lock=lock), self.runner.run)


class TestAsyncRedisGuard:
    @pytest.fixture
    def new_face(self, redis_fleet: RedisFleet) -> Iterator[Callable[[], Face]]:
        with asyncio.Runner() as runner:
            yield lambda: AsyncRedisFace(fresh_corner(redis_fleet), runner)

    test_whatever_is_lost_what_is_told_is_true = GuardLife.test_whatever_is_lost_what_is_told_is_true


def test_a_guard_outlives_an_outage(own_redis: RedisServer) -> None:
    face = RedisFace(own_corner(own_redis))

    def start() -> None:
        own_redis.start()
        face.direct = face.corner.direct

    outlive_an_outage(face, own_redis.kill, start)
