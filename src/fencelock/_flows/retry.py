"""Ask a source until it answers.

Promise: a request whose outcome is unknown is sent MAX_TRIES times at most, under the same claim; requests are
idempotent, so the answer is the one that was lost. Where the last token of a block is spent, a block is reserved first
(T1). A claim that is refused after a lost reply is ended: the lost request may still be under way, and its grant would
reach nobody (H5). A release that was repeated is answered as one that held the lock: the first request may have ended
the lease, so the second answer proves no loss (H3). Never: repeated after a definite error, or without end; a definite
error for a request that an earlier try may have carried out.
"""

from typing import overload

from fencelock._flows.doubts import still_in_doubt
from fencelock.errors import OutcomeUnknownError, SourceError
from fencelock.model import LockInfo, SourceInfo
from fencelock.protocol.source_requests import (
    Acquire,
    AddKey,
    BlockSpent,
    Break,
    Broken,
    Busy,
    Check,
    Checked,
    ClaimEnded,
    Granted,
    Inspect,
    Keys,
    ListLocks,
    Poll,
    Purge,
    Queued,
    ReadKeys,
    ReadSource,
    Release,
    Released,
    ReserveBlock,
    RetireKey,
    SourceFlow,
    SourceReply,
    SourceRequest,
)

MAX_TRIES = 3
_NO_EFFECT = (Inspect, ListLocks, Check, ReadKeys, ReadSource, ReserveBlock)
"""Requests that change nothing a caller could meet, so that an error after one in doubt is as definite as it says."""


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
def ask_source(request: Check) -> SourceFlow[Checked]: ...
@overload
def ask_source(request: ReadKeys) -> SourceFlow[Keys]: ...
@overload
def ask_source(request: AddKey | RetireKey) -> SourceFlow[None]: ...
@overload
def ask_source(request: Purge) -> SourceFlow[int]: ...
@overload
def ask_source(request: ReadSource) -> SourceFlow[SourceInfo]: ...
@overload
def ask_source(request: ReserveBlock) -> SourceFlow[None]: ...
def ask_source(request: SourceRequest) -> SourceFlow[SourceReply]:
    """Yield the request until it is answered, and return the reply, which is never BlockSpent.

    The OutcomeUnknownError of the MAX_TRIES-th try is passed on. After one in doubt a definite error says nothing of
    the first try: it becomes the cause of an OutcomeUnknownError.
    """
    doubts: list[str] = []
    try:
        return (yield from _ask_until_answered(request, doubts))
    except SourceError as error:
        if not doubts or not error.definite or isinstance(request, _NO_EFFECT):
            raise
        raise still_in_doubt(doubts, error) from error


def _ask_until_answered(request: SourceRequest, doubts: list[str]) -> SourceFlow[SourceReply]:
    """Do what `ask_source` promises; `doubts` gets what was said before each repetition."""
    tries_left = MAX_TRIES
    while True:
        try:
            reply: SourceReply = yield request
        except OutcomeUnknownError as error:
            tries_left -= 1
            if not tries_left:
                raise
            doubts.append(str(error))  # Not the error, whose traceback refers to this frame.
            continue
        if not isinstance(reply, BlockSpent):
            # The lost request may still arrive, and its grant would reach nobody (H5).
            if doubts and isinstance(reply, Busy) and isinstance(request, Acquire):
                yield from ask_source(Release(request.lock, request.claim))
            # The lost request may have ended the lease, so that this reply proves no loss (H3).
            return Released(was_held=True) if doubts and isinstance(reply, Released) else reply
        yield from ask_source(ReserveBlock())
        tries_left = MAX_TRIES
