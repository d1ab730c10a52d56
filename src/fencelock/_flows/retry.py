"""Repeat what may be repeated: a source's request whose reply was lost, a guard's transaction that met a conflict.

Promise: a request whose outcome is unknown is repeated under the same claim, MAX_TRIES times; requests are idempotent,
so the answer is the one that was lost. Where the last token of a block is spent, a block is reserved first (T1). A
claim that is refused after a lost reply is ended: the lost request may still be under way, and its grant would reach
nobody (H5). A guard's transaction that was refused because something had changed, and has therefore written nothing,
begins again with the present state. Never: repeated after a definite error, or without end.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, overload

from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.model import LockInfo, SourceInfo
from fencelock.protocol.guard_requests import ConflictError, GuardFlow
from fencelock.protocol.source_requests import (
    Acquire,
    BlockSpent,
    Break,
    Broken,
    Busy,
    ClaimEnded,
    Granted,
    Inspect,
    ListLocks,
    Poll,
    Purge,
    Queued,
    ReadSource,
    Release,
    Released,
    ReserveBlock,
    SourceFlow,
    SourceReply,
    SourceRequest,
)

MAX_TRIES = 3


@overload
def ask_source(request: Acquire | Poll) -> SourceFlow[Granted | Queued | Busy | ClaimEnded]: ...
@overload
def ask_source(request: Release) -> SourceFlow[Released]: ...
@overload
def ask_source(request: Break) -> SourceFlow[Broken]: ...
@overload
def ask_source(request: Inspect) -> SourceFlow[LockInfo]: ...
@overload
def ask_source(request: ListLocks) -> SourceFlow[tuple[LockInfo, ...]]: ...
@overload
def ask_source(request: Purge) -> SourceFlow[int]: ...
@overload
def ask_source(request: ReadSource) -> SourceFlow[SourceInfo]: ...
@overload
def ask_source(request: ReserveBlock) -> SourceFlow[None]: ...
def ask_source(request: SourceRequest) -> SourceFlow[SourceReply]:
    """Yield the request until it is answered, and return the reply, which is never BlockSpent.

    The OutcomeUnknownError of the MAX_TRIES-th try is passed on.
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
"""Each conflict means that another client's write succeeded: so many in a row are no accident."""

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


def retry_on_conflict(flow: Callable[Parameters, GuardFlow[Result]]) -> Callable[Parameters, GuardFlow[Result]]:
    """Run a flow of brief transactions again when it meets a conflict; SourceUnavailableError after MAX_CONFLICTS."""

    @wraps(flow)
    def retried(*arguments: Parameters.args, **named: Parameters.kwargs) -> GuardFlow[Result]:
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
