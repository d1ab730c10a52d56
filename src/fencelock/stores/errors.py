"""Errors of stores: mapping those of a client library, and those that several stores raise in the same words.

Promise: a client library's error that the store recognises is raised as the matching FencelockError, with the
original as its cause; any other error passes unchanged, KeyboardInterrupt and CancelledError included.
Never: an error that refers to a frame through which it passes. Such a cycle would keep the frame's variables alive,
a forgotten lease among them, until the garbage collector runs.
"""

from collections.abc import Callable, Iterable
from types import TracebackType

from fencelock.errors import FencelockError, GuardError, SourceError


class ErrorMapper:
    """A reusable context manager that maps a client library's errors to FencelockError.

    It is a class because a generator-based context manager would cost measurable time in every request.
    """

    __slots__ = ("_map_error",)

    def __init__(self, map_error: Callable[[BaseException], SourceError | None]) -> None:
        self._map_error = map_error

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            raise_mapped(self._map_error(error), error)


def raise_mapped(mapped: FencelockError | None, error: BaseException) -> None:
    """Raise `mapped` from `error`; return if `mapped` is None. Pass `mapped` as an expression, not as a variable."""
    if mapped is None:
        return
    try:
        raise mapped from error
    finally:
        # The raised error's traceback refers to this frame: without its variables there is no cycle.
        del mapped, error


def unknown_parameter(name: str, query: str, known: Iterable[str]) -> str:
    """Return the reason to refuse a URL with this parameter, which may be the end of a password with a ? in it."""
    subject = "one of its parameters is unknown" if "@" in query else f"there is no parameter {name!r}"
    return f"{subject}; known: {', '.join(sorted(known))}"


def nothing_protected(resource: str) -> GuardError:
    """Return the error for a resource that protects no table."""
    return GuardError(f"resource {resource!r} protects no table here: `fencelock marks` lists the resources")


def not_protected(table: str, resource: str) -> GuardError:
    """Return the error for a table that the resource does not protect."""
    return GuardError(f"table {table!r} is not protected by resource {resource!r}: `fencelock marks` lists what is")
