"""A guarded block whose writes are collected until its end, and the errors for its misuse, worded alike in each store.

Promise: the transaction of a block that is over reads and writes nothing. Never: a decision about a token.
"""

from collections.abc import Iterable

from fencelock.errors import GuardError, UnsupportedError


class WriteBuffer:
    """A guarded block's transaction, until the block is over."""

    def __init__(self) -> None:
        self._is_over = False

    def end(self) -> None:
        """Refuse everything from now on: the block is over."""
        self._is_over = True

    def _check_open(self) -> None:
        if self._is_over:
            raise GuardError("the guarded block is over: nothing can be read or written through its transaction")


def outside_error(what: str, areas: Iterable[str]) -> GuardError:
    """Return the error for a key or node that belongs to none of the guard's resources."""
    return GuardError(
        f"{what} is outside of the resources of this guard ({', '.join(areas)}), and other writers' marks decide "
        f"there. Open one guard with resources=[…] for all that a block touches"
    )


def unstored_error(where: str) -> GuardError:
    """Return the error for reading a key that the block itself has written."""
    return GuardError(
        f"the block has written at {where}, and its writes are stored only at its end: read first, then write"
    )


def inherited_error() -> UnsupportedError:
    """Return the error for a forked child that uses its parent's block."""
    return UnsupportedError(
        "the guarded transaction was inherited by fork: only the process that opened it may write it. In the child use "
        "guard.transaction(lease.sequencer)"
    )


def too_large_error(does: str, takes: str) -> GuardError:
    """Return the error for a block that is too large for the store."""
    return GuardError(f"the guarded block {does}, and {takes}: nothing of it was written. Do less in one block")
