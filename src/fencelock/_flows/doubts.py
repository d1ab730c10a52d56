"""What is told after an unknown outcome: that it stays unknown, and whether the same may be asked for again.

Promise: after a request in doubt, the definite error of its repetition says nothing of the first try: it becomes the
cause of an OutcomeUnknownError. Never: a note that allows a repetition which could do work twice.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from fencelock.errors import OutcomeUnknownError, SourceError
from fencelock.protocol.guard_requests import GuardFlow

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


class RepeatableNote(str):
    """The note on an unknown outcome after which the same may be asked for again: it is done once, or does no harm."""

    __slots__ = ()


def note_repeatable(error: BaseException, why: str) -> None:
    """Note on an unknown outcome that what failed with it may be repeated."""
    error.add_note(RepeatableNote(f"fencelock: {why}"))


def still_in_doubt(doubts: Sequence[str], error: SourceError) -> OutcomeUnknownError:
    """Return the error for a request that was in doubt, and whose repetition failed with a definite error."""
    return OutcomeUnknownError(f"{doubts[-1]}. The request was repeated to find out: {error}")


def keep_mark_in_doubt(
    flow: Callable[Concatenate[list[str], Parameters], GuardFlow[Result]],
) -> Callable[Parameters, GuardFlow[Result]]:
    """Have a flow that writes only marks fail with OutcomeUnknownError if it has noted a doubt in its first argument.

    A leader's loop goes on after that: a mark that the same tenure raises or closes twice does no harm.
    """

    @wraps(flow)
    def kept(*arguments: Parameters.args, **named: Parameters.kwargs) -> GuardFlow[Result]:
        doubts: list[str] = []
        try:
            return (yield from flow(doubts, *arguments, **named))
        except SourceError as error:
            if not doubts:
                raise
            unknown = still_in_doubt(doubts, error) if error.definite else error
            note_repeatable(unknown, "only the mark is in doubt, and nothing else was written: ask for it again")
            if unknown is error:
                raise
            raise unknown from error

    return kept
