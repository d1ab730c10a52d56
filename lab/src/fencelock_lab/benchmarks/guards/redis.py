"""A guarded write in Redis against a script that compares a mark by hand, and one that compares nothing.

A statement is a SET. The script by hand lacks: the mark's lock and source, the refusal of keys that changed meanwhile,
and the check of every command before the first one runs.
"""

from collections.abc import Callable

import redis

import fencelock
from fencelock_lab.benchmarks.guards import BY_HAND, GUARDED, LEASE, LOCK, NO_CHECK, RESOURCE, Kind

KINDS = (
    Kind("1 writer, 1 statement", aim=1.3),
    Kind("8 writers, 1 statement", writers=8, batch=10),
    Kind("1 writer, 100 statements", statements=100, batch=2),
)
_MARK = "plain:mark"
_WRITE = "for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[2]) end return 1"
_CHECK = f"if redis.call('GET', table.remove(KEYS)) ~= ARGV[1] then return 0 end {_WRITE}"


def prepare(url: str) -> None:
    """Set a mark by hand, and seal the resource."""
    redis.Redis.from_url(url).set(_MARK, 1)
    guard = _guard(url)
    guard.protect()
    guard.seal(LEASE)


def variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    """Return a script with a check by hand, one without a check, and a guarded block."""
    client, guard = redis.Redis.from_url(url), _guard(url)
    check, write = client.register_script(_CHECK), client.register_script(_WRITE)
    plain = [f"plain:{number}" for number in range(kind.statements)]
    keys = [f"{{bench}}:{number}" for number in range(kind.statements)]

    def by_hand() -> None:
        assert check(keys=[*plain, _MARK], args=[1, "x"]) == 1

    def unguarded() -> None:
        assert write(keys=plain, args=[1, "x"]) == 1

    def guarded() -> None:
        with guard.transaction(LEASE) as txn:
            for key in keys:
                txn.execute("SET", key, "x")

    return {BY_HAND: by_hand, NO_CHECK: unguarded, GUARDED: guarded}


def _guard(url: str) -> fencelock.Guard:
    return fencelock.guard(f"{url}/0/bench", resource=RESOURCE, lock=LOCK)
