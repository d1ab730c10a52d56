"""Which errors tell that work may simply be begun again, under a new lease: what the loops of leaders go by.

Promise: an error of a block whose connection ended inside it is one, whichever driver or framework raised it, and so is
an unknown outcome of a seal, or of a block whose key makes a repetition harmless. Never: what is no Exception
(KeyboardInterrupt, SystemExit, CancelledError).
"""

from fencelock._api.idle_limit import is_from_lost_block
from fencelock._flows.doubts import RepeatableNote
from fencelock.errors import (
    LeaseExpiredError,
    LeaseLostError,
    LeaseReleasedError,
    OutcomeUnknownError,
    SourceUnavailableError,
    StaleTokenError,
)

_REPEATABLE = (LeaseExpiredError, LeaseLostError, LeaseReleasedError, StaleTokenError, SourceUnavailableError)


def is_repeatable(error: BaseException, also: tuple[type[Exception], ...] = ()) -> bool:
    """Return whether the work that raised this may be begun again; `also` are the caller's own kinds.

    A group is, if all of its errors are.
    """
    if isinstance(error, also):
        return True
    if isinstance(error, BaseExceptionGroup):
        return all(is_repeatable(each, also) for each in error.exceptions)
    if not isinstance(error, Exception):
        return False
    notes = getattr(error, "__notes__", ())
    return (
        isinstance(error, _REPEATABLE)
        or is_from_lost_block(error)
        or any(isinstance(note, RepeatableNote) for note in notes)
    )


def may_campaign_again(error: BaseException, also: tuple[type[Exception], ...] = ()) -> bool:
    """Return whether a campaign that failed with this, before there was a lease, may be repeated.

    After an unknown outcome, too: its claim is abandoned, and nothing was done under it.
    """
    return is_repeatable(error, also) or isinstance(error, OutcomeUnknownError)
