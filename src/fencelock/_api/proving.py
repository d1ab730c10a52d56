"""Have a store prove, once in each process, that its server keeps what the guard relies on.

Promise: no seal, and no change of a mark, is asked of a store before it has succeeded; threads that come meanwhile wait
for the one that tries. Never: tried again after a success, or a failure remembered.
"""

import threading
from typing import cast

from fencelock._platform import at_fork
from fencelock.protocol.stores import GuardStore, ProvableGuardStore

MAX_PROVEN = 1024
"""URLs that a process remembers; beyond that it forgets them all, and the stores prove themselves again."""


class _Proof:
    """Whether the store at one URL has proven itself; whoever tries holds the lock."""

    __slots__ = ("is_done", "lock")

    def __init__(self) -> None:
        # Re-entrant: a signal handler may use a guard while its own thread tries.
        self.lock = threading.RLock()
        self.is_done = False


_PROOFS: dict[str, _Proof] = {}

at_fork(after_in_child=_PROOFS.clear)  # A thread of the parent may have held a lock.


def is_proven(store: GuardStore) -> bool:
    """Return whether `prove` would do nothing."""
    if not hasattr(store, "prove"):  # Before each block: `isinstance` with a protocol takes tens of microseconds.
        return True
    proof = _PROOFS.get(store.url)
    return proof is not None and proof.is_done


def prove(store: GuardStore) -> None:
    """Call the store's `prove` if it has one that has not succeeded in this process, and raise what that raises."""
    if is_proven(store):
        return
    if len(_PROOFS) >= MAX_PROVEN and store.url not in _PROOFS:
        _PROOFS.clear()
    proof = _PROOFS.setdefault(store.url, _Proof())
    with proof.lock:
        if not proof.is_done:
            cast("ProvableGuardStore", store).prove()
            proof.is_done = True
