"""Ask a source again when its reply was lost.

Promise: a request whose outcome is unknown is repeated under the same claim, a few times; requests are idempotent, so
the answer is the one that was lost. Never: repeated after a definite error, or without end.
"""

from fenceline._flows.requests import Flow, SourceReply
from fenceline.errors import OutcomeUnknownError

MAX_TRIES = 3


def asked(request: object) -> Flow[SourceReply]:
    """Yield the request until it is answered, at most MAX_TRIES times; the last OutcomeUnknownError is passed on."""
    for _ in range(MAX_TRIES - 1):
        try:
            return (yield request)  # type: ignore[no-any-return]
        except OutcomeUnknownError:
            continue
    return (yield request)  # type: ignore[no-any-return]
