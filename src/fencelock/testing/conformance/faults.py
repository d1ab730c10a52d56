"""A store that loses replies, for checks of how a client reacts."""

from collections.abc import Iterable
from dataclasses import replace

from fencelock import Finding
from fencelock.errors import OutcomeUnknownError
from fencelock.protocol import (
    BlockSpent,
    Capabilities,
    Channel,
    SourceConnection,
    SourceReply,
    SourceRequest,
    SourceStore,
)


class LostReplies:
    """Wrap a store and lose the first reply to each of the given kinds of request.

    A BlockSpent reply is never lost, because that request has changed nothing yet.
    """

    def __init__(self, store: SourceStore, kinds: Iterable[type]) -> None:
        # This wrapper loses replies in a thread, even if the store's own client uses asyncio.
        self.capabilities: Capabilities = replace(store.capabilities, speaks_asyncio=False)
        self.url = store.url
        self.to_lose = set(kinds)
        self._store = store

    def connect(self, *, request_timeout_s: float) -> SourceConnection:
        """Return a connection that loses replies."""
        return LossyConnection(self, self._store.connect(request_timeout_s=request_timeout_s))

    def listen(self, lock: str, claim: str) -> Channel:
        """Open the store's own channel."""
        return self._store.listen(lock, claim)

    def install(self) -> None:
        """Install the store."""
        self._store.install()

    def examine(self) -> list[Finding]:
        """Return the store's findings."""
        return self._store.examine()


class LossyConnection:
    """A connection that loses the first reply of each kind."""

    def __init__(self, store: LostReplies, connection: SourceConnection) -> None:
        self._store = store
        self._connection = connection

    def perform(self, request: SourceRequest) -> SourceReply:
        """Perform the request, and lose the reply if it is the first of its kind."""
        reply = self._connection.perform(request)
        if type(request) in self._store.to_lose and not isinstance(reply, BlockSpent):
            self._store.to_lose.discard(type(request))
            raise OutcomeUnknownError(f"the reply to {type(request).__name__} was lost on purpose")
        return reply

    def close(self) -> None:
        """Close the store's connection."""
        self._connection.close()
