"""A guarded resource at a store of keys, with one face for etcd and ZooKeeper, and what may be cut off there.

The tests over it are in `guard_life.py` and `guard_colocated.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import fencelock
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource


class Face(ABC):
    """One guarded resource with one value, and how it is spoken to."""

    url: str
    READ: str
    """An expression that reads the value in an actor's block: `txn` and `KEY` are there."""
    WRITE: str
    """One that writes `value`."""
    key: str

    @abstractmethod
    def put(self, txn: Any, value: str) -> None:
        """Write the value in a block."""

    @abstractmethod
    def read_number(self, txn: Any) -> int:
        """Return the value, which is a number, as a block reads it."""

    @abstractmethod
    def value(self) -> str | None:
        """Return the value, as somebody who knows no guard."""

    @abstractmethod
    def put_floors(self, value: bytes) -> None:
        """Write what the guard keeps of floors, which are there, as somebody who knows no guard."""

    @abstractmethod
    def watch(self, guard: Any, loss: "Loss") -> "Loss":
        """Have the guard's requests pass through the loss, and return it."""

    def trips(self, guard: Any) -> Callable[[], int]:
        """Return what tells how many trips a guard has made since now."""
        return self.watch(guard, Loss(-1, is_done=True)).count

    @abstractmethod
    def entries(self) -> list[dict[str, Any]]:
        """Return the audit entries, oldest first."""

    def guard(self, lock: str = LOCK) -> Any:
        return fencelock.guard(self.url, resource=RESOURCE, lock=lock)

    def write(self, lease: Any, value: str, guard: Any = None) -> None:
        with (guard or self.guard()).transaction(lease) as txn:
            self.put(txn, value)

    def script(self, body: str) -> str:
        """Return an actor's script, whose functions `read` and `write` take the block's transaction."""
        return f"""
KEY = {self.key!r}
guard = fencelock.guard({self.url!r}, resource={RESOURCE!r}, lock={LOCK!r})
guard.mark()  # It loads what it needs, and connects: no lease of a second has to outlive that.

def read(txn):
    return {self.READ}

def write(txn, value):
    {self.WRITE}

{body}
"""


class Loss:
    """Loses one of the requests that pass through a call, the `number`-th from 0, or its reply if it `is_done`."""

    def __init__(self, number: int, *, is_done: bool) -> None:
        self.number = number
        self.is_done = is_done
        self.seen = 0

    def __call__(self, call: Callable[[], Any], error: Exception) -> Any:
        """Make the call; if its turn has come raise the error, and perhaps do not make it."""
        self.seen += 1
        if self.seen - 1 != self.number:
            return call()
        if self.is_done:
            call()
        raise error

    def has_happened(self) -> bool:
        return self.seen > self.number

    def count(self) -> int:
        return self.seen


# --- what may be cut off ----------------------------------------------------------------------------------------------
def seal(face: Face, guard: Any) -> Iterator[bool]:
    yield False
    guard.seal(HandmadeLease(5))
    yield face.guard().mark().token == 5


def seal_over_an_older_one(face: Face, guard: Any) -> Iterator[bool]:
    face.guard().seal(HandmadeLease(3))
    yield from seal(face, guard)


def first_block(face: Face, guard: Any) -> Iterator[bool]:
    yield False
    face.write(HandmadeLease(5), "done", guard)
    yield face.value() == "done"


def later_block(face: Face, guard: Any) -> Iterator[bool]:
    lease = HandmadeLease(5)
    face.write(lease, "before")
    yield False
    face.write(lease, "done", guard)
    yield face.value() == "done"


def close(face: Face, guard: Any) -> Iterator[bool]:
    lease = HandmadeLease(5)
    face.guard().seal(lease)
    yield False
    guard.close(lease)
    yield face.guard().mark().is_closed


def lower(face: Face, guard: Any) -> Iterator[bool]:
    face.guard().seal(HandmadeLease(5))
    yield True
    guard.lower(2, reason="a test")
    yield face.guard().mark().token == 2


def raise_to(face: Face, guard: Any) -> Iterator[bool]:
    face.guard().seal(HandmadeLease(3))
    yield True
    guard.raise_to(HandmadeSource(5), reason="a test")
    yield face.guard().mark().token == 5


def outrank(face: Face, guard: Any) -> Iterator[bool]:
    face.guard().seal(HandmadeLease(3))
    yield True
    guard.outrank(HandmadeLease(5), reason="a test")
    yield face.guard().mark().token == 5


FLOWS = (seal, seal_over_an_older_one, first_block, later_block, close, lower, raise_to, outrank)
"""Each prepares, yields whether a lost reply may leave its outcome unknown, acts, and yields whether it was done."""
MAY_BE_UNKNOWN = {first_block, later_block}
"""A seal looks again; only the user's own work may be unknown, and what an operator asked for."""
