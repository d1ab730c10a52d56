"""A guarded transaction in ZooKeeper against a `multi` that checks a mark's version by hand, and one without a check.

A statement is a `set`. The hand-written one lacks: the mark's lock and source, and the refusal of values that
changed meanwhile, and of nodes outside of the resource.
"""

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

import fencelock
from fencelock_lab.benchmarks.guards import BY_HAND, GUARDED, LEASE, LOCK, NO_CHECK, RESOURCE, USUAL, Kind
from fencelock_lab.benchmarks.stores.zookeeper import client_of

KINDS = USUAL
_MARK, _PLAIN, _DATA = "/plain-mark", "/plain", f"/bench-data/{RESOURCE}"


def prepare(url: str) -> None:
    """Make the nodes, and seal the resource."""
    client = client_of(url)
    client.create(_MARK, b"1")
    _guard(url).seal(LEASE)
    for folder in (_PLAIN, _DATA):
        for number in range(max(kind.statements for kind in KINDS)):
            client.create(f"{folder}/{number}", b"", makepath=True)
    client.stop()
    client.close()


def variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    """Return a transaction with a check by hand, with none, and a guarded one."""
    client, guard = client_of(url), _guard(url)
    numbers = range(kind.statements)

    def transact(checks: Iterable[str]) -> None:
        multi: Any = client.transaction()
        for path in checks:
            multi.check(path, 0)
        for number in numbers:
            multi.set_data(f"{_PLAIN}/{number}", b"x")
        assert not any(isinstance(answer, Exception) for answer in multi.commit())

    def guarded() -> None:
        with guard.transaction(LEASE) as txn:
            for number in numbers:
                txn.set(f"{_DATA}/{number}", b"x")

    return {BY_HAND: lambda: transact([_MARK]), NO_CHECK: lambda: transact([]), GUARDED: guarded}


def _guard(url: str) -> fencelock.Guard:
    parts = urlsplit(url)
    return fencelock.guard(parts._replace(path="/bench-data").geturl(), resource=RESOURCE, lock=LOCK)
