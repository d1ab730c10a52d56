"""A block in which what a client library raises becomes an error of the tree, if it is the store's.

Promise: an error that the store knows the meaning of is raised as that, with the library's own as its cause; any other
passes unchanged, an interruption included. A class, since a generator in each request would be felt.
Never: an error that a frame refers to through which it comes. Both would stay until the collector finds them, and all
that the callers have with them: a lease that was forgotten, too.
"""

from collections.abc import Callable
from types import TracebackType

from fencelock.errors import FencelockError, SourceError


class ErrorMapper:
    """Such a block; it may be entered again and again."""

    __slots__ = ("_meaning",)

    def __init__(self, meaning: Callable[[BaseException], SourceError | None]) -> None:
        self._meaning = meaning

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            raise_known(self._meaning(error), error)


def raise_known(known: FencelockError | None, error: BaseException) -> None:
    """Raise what an error means, if that is known; to be called without a name for it."""
    if known is None:
        return
    try:
        raise known from error
    finally:
        del known, error
