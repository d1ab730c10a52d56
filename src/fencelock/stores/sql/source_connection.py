"""One connection to a source on a server, whichever client it has: what its synchronous and asynchronous kinds share.

Promise: it opens with its first request, and anew once the server has ended it, or in a forked child; a large batch of
renewals is waited for longer than a single request. Never: an idle connection used that is none any more.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from fencelock.protocol.source_requests import Renew

RENEWAL_S = 0.0001
"""What each lease of a batch adds to the patience: an idle server renews 10 000 in 0.2 s."""


class SourceProtocol(Protocol):
    """What is said over the connection."""

    def begin_anew(self) -> None:
        """Take note that the connection is another one from here on."""


Native = TypeVar("Native")
Talk = TypeVar("Talk", bound=SourceProtocol)


class ServerSourceConnection(Generic[Native, Talk]):
    """What both kinds of connection know: whether there is one, and what is said over it."""

    def __init__(
        self,
        conversation: Talk,
        request_timeout_s: float,
        is_alive: Callable[[Native], bool],
        close_one: Callable[[Native], None],
    ) -> None:
        self._conversation = conversation
        self._patience_s = request_timeout_s
        self._is_alive = is_alive
        self._close_one = close_one
        self._native: Native | None = None

    def _alive(self) -> Native | None:
        """Return the connection, if there is one still; what is said next begins anew if not."""
        if self._native is not None and self._is_alive(self._native):
            return self._native
        self.close()
        self._conversation.begin_anew()
        return None

    def _patience_for(self, request: Any) -> float:
        """Return how long an answer is waited for, in seconds."""
        if type(request) is Renew:
            return self._patience_s + RENEWAL_S * len(request.leases)
        return self._patience_s

    def close(self) -> None:
        """Close the connection; never raises."""
        if self._native is not None:
            self._close_one(self._native)
            self._native = None
