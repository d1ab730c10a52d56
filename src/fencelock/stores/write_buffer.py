"""What a block may not do whose writes are collected until its end: in the same words at each store.

Promise: nothing is read or written through the transaction of a block that is over. Never: a decision about a token.
"""

from collections.abc import Iterable

from fencelock.errors import GuardError


class WriteBuffer:
    """A guarded block's transaction, until the block is over."""

    def __init__(self) -> None:
        self._is_over = False

    def end(self) -> None:
        """Allow nothing more: the block is over."""
        self._is_over = True

    def _check_open(self) -> None:
        if self._is_over:
            raise GuardError("the guarded block is over: nothing can be read or written through its transaction")


def outside(what: str, areas: Iterable[str]) -> GuardError:
    """Return the error for a key or node that is no part of the guard's resources."""
    return GuardError(
        f"{what} is outside of what this guard watches over ({', '.join(areas)}): other writers' marks decide there. "
        f"Open one guard with resources=[…] for all that a block touches"
    )


def was_written(where: str) -> GuardError:
    """Return the error for reading what is stored nowhere yet."""
    return GuardError(
        f"the block has written at {where}, and nothing of it is stored before its end: read first, then write"
    )


def too_large(does: str, takes: str) -> GuardError:
    """Return the error for a block that the store would not take."""
    return GuardError(f"the guarded block {does}, and {takes}: nothing of it was written. Do less in one block")
