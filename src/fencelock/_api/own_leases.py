"""Which leases a thread or a task has from a handle: in order, for `Lock`; one with a count, for `RLock`.

Promise: a lease belongs to the thread or task that got it until the handle releases it, also if it is over by then, so
that a release never ends another one's (H4). What any other thread released through the handle is gone from here too.
Never: I/O, or a lock: a signal handler may interrupt any line.
"""

import weakref
from contextlib import suppress
from typing import Generic, TypeVar

from fencelock._api.lease import BaseLease

AnyLease = TypeVar("AnyLease", bound=BaseLease)
MAX_OWN_LEASES = 16
"""Leases of one thread or task, acquired through one handle and never released through it, that the handle remembers.
All but the last are over."""


class OwnLease(Generic[AnyLease]):
    """A lease that a thread or task got from a handle.

    `is_returned`: the handle has released it. From then on no thread has it, and only its block remembers it.
    """

    __slots__ = ("_others", "is_block", "is_returned", "lease")

    def __init__(self, lease: AnyLease, others: "OwnLeases[AnyLease]", *, is_block: bool) -> None:
        self.lease = lease
        self.is_block = is_block
        self.is_returned = False
        # Weakly: in a circle, a lease that the program drops would wait for the collector.
        self._others = weakref.ref(others)

    def forget(self) -> None:
        """Remove it from its thread's own leases, in any thread."""
        if (others := self._others()) is not None:
            others.forget(self)

    def set_returned(self) -> None:
        """Note that the handle has released the lease."""
        self.is_returned = True
        if not self.is_block:
            self.forget()


class OwnLeases(Generic[AnyLease]):
    """The leases that one thread or task got from one handle and has not returned to it, the newest last."""

    __slots__ = ("__weakref__", "_all")

    def __init__(self) -> None:
        self._all: list[OwnLease[AnyLease]] = []

    def newest(self) -> OwnLease[AnyLease] | None:
        """Return the lease that a release ends."""
        return next((own for own in reversed(self._all) if not own.is_returned), None)

    def innermost_block(self) -> OwnLease[AnyLease] | None:
        """Return the lease of the `with` block that ends next."""
        return next((own for own in reversed(self._all) if own.is_block), None)

    def returned_block(self) -> OwnLease[AnyLease] | None:
        """Return the innermost block if it has returned its lease, and nothing was acquired in it since."""
        # A copy: another thread may remove a lease meanwhile.
        return next((own for own in self._all[-1:] if own.is_returned), None)

    def check_may_acquire(self) -> None:
        """Raise the loss of a lease that was returned inside its own block: the block must not go on under another."""
        if (block := self.returned_block()) is not None:
            block.lease.leave_inner_block(None)

    def enter(self, lease: AnyLease) -> OwnLease[AnyLease]:
        """Add the lease of a `with` block."""
        return self._add(lease, is_block=True)

    def acquire(self, lease: AnyLease) -> OwnLease[AnyLease]:
        """Add a lease. If a block has returned its own one, as `Condition.wait` does, the new one is the block's."""
        if (block := self.returned_block()) is not None:
            block.lease, block.is_returned = lease, False
            return block
        acquired = [own for own in self._all if not own.is_block]
        if len(acquired) >= MAX_OWN_LEASES:
            acquired[0].forget()
        return self._add(lease, is_block=False)

    def _add(self, lease: AnyLease, *, is_block: bool) -> OwnLease[AnyLease]:
        own = OwnLease(lease, self, is_block=is_block)
        self._all.append(own)
        return own

    def forget(self, own: OwnLease[AnyLease]) -> None:
        """Remove one of them, if it is still there; in any thread."""
        with suppress(ValueError):
            self._all.remove(own)

    def undo_enter(self, lease: AnyLease) -> None:
        """Remove the lease of a block that did not begin."""
        self._all[:] = [own for own in self._all if own.lease is not lease]

    def undo_acquire(self, lease: AnyLease) -> None:
        """Return a lease that did not reach the caller; a block that had it goes on without one."""
        for own in [own for own in self._all if own.lease is lease]:
            own.set_returned()


class Holding(Generic[AnyLease]):
    """A re-entrant lock in one thread or task: the lease, and how many frames hold it."""

    __slots__ = ("depth", "lease")

    def __init__(self) -> None:
        self.lease: AnyLease | None = None
        self.depth = 0

    def again(self) -> AnyLease | None:
        """Return the lease for one more frame; None if there is none yet. Raises the loss if it was lost."""
        lease = self.lease
        # A forked child's lease is its parent's: the child acquires one of its own (H6).
        if lease is None or lease.is_inherited:
            return None
        lease.check_valid()
        self.depth += 1
        return lease

    def begin(self, lease: AnyLease) -> None:
        """Hold a fresh lease for a first frame."""
        self.depth = 1
        self.lease = lease

    def end(self, depth: int) -> bool:
        """Take the frame off that was entered as the `depth`th, and return whether it was the first one.

        Idempotent, so that a caller may repeat it after a signal handler interrupted it.
        """
        self.depth = depth - 1
        if depth == 1:
            self.lease = None
        return depth == 1
