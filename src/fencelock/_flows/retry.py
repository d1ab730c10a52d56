"""Repeat what may be repeated: a source's request whose reply was lost, a guard's transaction that met a conflict.

Promise: a request whose outcome is unknown is repeated under the same claim, MAX_TRIES times; requests are idempotent,
so the answer is the one that was lost. Where the last token of a block is spent, a block is reserved first (T1). A
claim that is refused after a lost reply is ended: the lost request may still be under way, and its grant would reach
nobody (H5). A guard's transaction that was refused because something had changed, and has therefore written nothing,
begins again with the present state. Never: repeated after a definite error, or without end.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.protocol.guard_requests import ConflictError
from fencelock.protocol.source_requests import Acquire, BlockSpent, Busy, Flow, Release, ReserveBlock, SourceReply

MAX_TRIES = 3


def ask_source(request: object) -> Flow[SourceReply]:
    """Yield the request until it is answered, and return the reply, which is never BlockSpent. The OutcomeUnknownError
    of the MAX_TRIES-th try is passed on.
    """
    tries_left = MAX_TRIES
    is_in_doubt = False
    while True:
        try:
            reply: SourceReply = yield request
        except OutcomeUnknownError:
            tries_left -= 1
            if not tries_left:
                raise
            is_in_doubt = True
            continue
        if not isinstance(reply, BlockSpent):
            if is_in_doubt and isinstance(reply, Busy) and isinstance(request, Acquire):
                yield from ask_source(Release(request.lock, request.claim))
            return reply
        yield from ask_source(ReserveBlock())
        tries_left = MAX_TRIES


MAX_CONFLICTS = 16
"""Each refusal means that somebody else's write succeeded: so many in a row are no accident."""

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


def retry_on_conflict(flow: Callable[Parameters, Flow[Result]]) -> Callable[Parameters, Flow[Result]]:
    """Have a flow of brief transactions begin anew when one is refused; SourceUnavailableError if that goes on."""

    @wraps(flow)
    def retried(*arguments: Parameters.args, **named: Parameters.kwargs) -> Flow[Result]:
        for tries_left in reversed(range(MAX_CONFLICTS)):
            try:
                return (yield from flow(*arguments, **named))
            except ConflictError as conflict:
                if not tries_left:
                    raise _too_many_conflicts(conflict) from conflict
        raise AssertionError("the loop ends by its return or its raise")

    return retried


def _too_many_conflicts(conflict: ConflictError) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"{conflict}, {MAX_CONFLICTS} times in a row: others write there all the time. Nothing was written: try again"
    )
