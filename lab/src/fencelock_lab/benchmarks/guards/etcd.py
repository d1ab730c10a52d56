"""A guarded transaction in etcd against a bare one that compares a mark's value by hand, and one that compares nothing.

A statement is a put. The hand-written one lacks: the mark's lock and source, and the refusal of values that changed
meanwhile, of keys outside of the resource, and of two puts to one key.
"""

from collections.abc import Callable

import fencelock
from fencelock_lab.benchmarks import etcd_messages
from fencelock_lab.benchmarks.guards import BY_HAND, GUARDED, LEASE, LOCK, NO_CHECK, RESOURCE, USUAL, Kind
from fencelock_lab.benchmarks.stores.etcd import BareTransactions

KINDS = USUAL
_MARK = b"plain/mark"


def prepare(url: str) -> None:
    """Put a mark by hand, and seal the resource."""
    bare = BareTransactions(url)
    bare.run([], [etcd_messages.put(_MARK, b"1")])
    bare.close()
    _guard(url).seal(LEASE)


def variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    """Return a transaction with a comparison by hand, with none, and a guarded one."""
    bare, guard = BareTransactions(url), _guard(url)
    puts = [etcd_messages.put(f"plain/{number}".encode(), b"x") for number in range(kind.statements)]
    keys = [f"bench-data/{RESOURCE}/{number}" for number in range(kind.statements)]

    def by_hand() -> None:
        bare.run([etcd_messages.has_value(_MARK, b"1")], puts)

    def unguarded() -> None:
        bare.run([], puts)

    def guarded() -> None:
        with guard.transaction(LEASE) as txn:
            for key in keys:
                txn.put(key, "x")

    return {BY_HAND: by_hand, NO_CHECK: unguarded, GUARDED: guarded}


def _guard(url: str) -> fencelock.Guard:
    return fencelock.guard(url.rpartition("/")[0] + "/bench-data", resource=RESOURCE, lock=LOCK)
