"""Ask a source until it answers.

Promise: a request whose outcome is unknown is repeated under the same claim, a few times; requests are idempotent, so
the answer is the one that was lost. Where the last token of a block is spent, a block is reserved first (T1). A claim
that is refused after a lost reply is ended: the request whose reply was lost may be under way still, and would be
granted to nobody (H5). Never: repeated after a definite error, or without end.
"""

from fencelock.errors import OutcomeUnknownError
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
