"""The sequencer of the request that this thread or task is answering.

Promise: `sequencer()` is one function for every protocol. It works in whatever runs in a copy of the request's context:
tasks, and the threads in which asynchronous frameworks run synchronous handlers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fencelock._remote.carried import CarriedSequencer
from fencelock._remote.faults import RefusedRequestError, token_required
from fencelock.errors import ConfigError


class _NoRequest:
    """Outside of any request that a middleware or an interceptor has seen."""


_NO_REQUEST = _NoRequest()
_CURRENT: ContextVar[CarriedSequencer | _NoRequest | None] = ContextVar("fencelock_sequencer", default=_NO_REQUEST)


@contextmanager
def carrying(carried: CarriedSequencer | None) -> Iterator[None]:
    """A block that answers a request with this sequencer, or one without."""
    before = _CURRENT.set(carried)
    try:
        yield
    finally:
        _CURRENT.reset(before)


def sequencer() -> CarriedSequencer:
    """Return the sequencer of the request that is being answered; guards take it as a lease.

    A request without one is answered "token required", if nothing handles the error. ConfigError outside of a request,
    or where no middleware or interceptor of fencelock has seen it.
    """
    carried = _CURRENT.get()
    if isinstance(carried, _NoRequest):
        raise ConfigError(
            "no request is being answered here: add fencelock's middleware or interceptor to the application, and pass "
            "the sequencer on to threads that you start yourself. A WebSocket is not fenced"
        )
    if carried is None:
        raise RefusedRequestError(token_required())
    return carried


def has_token() -> bool:
    """Return whether the request that is being answered came with a sequencer: False outside of a request too."""
    return isinstance(_CURRENT.get(), CarriedSequencer)
