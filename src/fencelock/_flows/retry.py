"""Ask a source until it answers.

Promise: a request whose outcome is unknown is repeated under the same claim, MAX_TRIES times; requests are idempotent,
so the answer is the one that was lost. Where the last token of a block is spent, a block is reserved first (T1). A
claim that is refused after a lost reply is ended: the lost request may still be under way, and its grant would reach
nobody (H5). A release that was repeated is answered as one that held the lock: the first request may have ended the
lease, so the second answer proves no loss (H3). Never: repeated after a definite error, or without end.
"""

from typing import overload

from fencelock.errors import OutcomeUnknownError
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
            return Released(was_held=True) if is_in_doubt and isinstance(reply, Released) else reply
        yield from ask_source(ReserveBlock())
        tries_left = MAX_TRIES
