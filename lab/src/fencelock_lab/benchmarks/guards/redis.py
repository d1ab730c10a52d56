"""A guarded write in Redis against a script that compares a mark by hand, and one that compares nothing.

A statement is a SET. The script by hand lacks: the mark's lock and source, the refusal of keys that changed meanwhile,
and the check of every command before the first one runs.

Redis is usually set up with `appendfsync everysec`, where an acknowledged write waits for no disk. One kind measures
that; the others are on a server that flushes before it answers, as the guard requires unless its URL accepts the loss.
"""

from collections.abc import Callable

import redis
import redis.asyncio

import fencelock
import fencelock.aio
from fencelock_lab.benchmarks.guards import BY_HAND, GUARDED, LEASE, LOCK, NO_CHECK, RESOURCE, Kind, on_loop

EVERYSEC = Kind("1 writer, 1 statement, appendfsync everysec", aim=1.3)
KINDS = (
    Kind("1 writer, 1 statement", aim=1.3),
    Kind("1 writer, 1 statement, asyncio", aim=1.3, is_async=True),
    Kind("8 writers, 1 statement", writers=8, batch=10, aim=1.3),
    Kind("1 writer, 100 statements", statements=100, batch=2, aim=1.3),
    EVERYSEC,
)
_MARK = "plain:mark"
_WRITE = "for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[2]) end return 1"
_CHECK = f"if redis.call('GET', table.remove(KEYS)) ~= ARGV[1] then return 0 end {_WRITE}"


def prepare(url: str) -> None:
    """Set a mark by hand, and seal the resource."""
    redis.Redis.from_url(url).set(_MARK, 1)
    guard = fencelock.guard(_guarded(url), resource=RESOURCE, lock=LOCK)
    guard.protect()
    guard.seal(LEASE)


def variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    """Return a script with a check by hand, one without a check, and a guarded block."""
    redis.Redis.from_url(url).config_set("appendfsync", "everysec" if kind == EVERYSEC else "always")
    return _async_variants(url, kind) if kind.is_async else _sync_variants(url, kind)


def _sync_variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    client = redis.Redis.from_url(url)
    guard = fencelock.guard(_guarded(url, kind), resource=RESOURCE, lock=LOCK)
    check, write = client.register_script(_CHECK), client.register_script(_WRITE)
    plain, keys = _plain(kind), _keys(kind)

    def by_hand() -> None:
        assert check(keys=[*plain, _MARK], args=[1, "x"]) == 1

    def unguarded() -> None:
        assert write(keys=plain, args=[1, "x"]) == 1

    def guarded() -> None:
        with guard.transaction(LEASE) as txn:
            for key in keys:
                txn.execute("SET", key, "x")

    return {BY_HAND: by_hand, NO_CHECK: unguarded, GUARDED: guarded}


def _async_variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    client = redis.asyncio.Redis.from_url(url)
    guard = fencelock.aio.guard(_guarded(url, kind), resource=RESOURCE, lock=LOCK)
    check, write = client.register_script(_CHECK), client.register_script(_WRITE)
    plain, keys = _plain(kind), _keys(kind)

    async def by_hand() -> None:
        assert await check(keys=[*plain, _MARK], args=[1, "x"]) == 1

    async def unguarded() -> None:
        assert await write(keys=plain, args=[1, "x"]) == 1

    async def guarded() -> None:
        async with guard.transaction(LEASE) as txn:
            for key in keys:
                txn.execute("SET", key, "x")

    return {BY_HAND: on_loop(by_hand), NO_CHECK: on_loop(unguarded), GUARDED: on_loop(guarded)}


def _plain(kind: Kind) -> list[str]:
    return [f"plain:{number}" for number in range(kind.statements)]


def _keys(kind: Kind) -> list[str]:
    return [f"{{bench}}:{number}" for number in range(kind.statements)]


def _guarded(url: str, kind: Kind | None = None) -> str:
    return f"{url}/0/bench{'?unflushed=accept' if kind == EVERYSEC else ''}"
