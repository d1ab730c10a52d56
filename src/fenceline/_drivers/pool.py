"""A few idle connections to one source, for whichever thread comes next.

Promise: a connection serves one request at a time; one that saw an exception is closed, not kept. There is no lock
here, so neither a signal handler nor a fork can find one taken.
"""

from collections import deque
from typing import Any

from fenceline._flows.requests import SourceReply
from fenceline.errors import ConfigError
from fenceline.stores.contract import SourceConnection, SourceStore

MAX_IDLE_CONNECTIONS = 4


class Pool:
    """Performs requests on pooled connections, each waiting `patience_s` at most for a store that is busy."""

    def __init__(self, store: SourceStore, patience_s: float) -> None:
        self._store = store
        self._patience_s = patience_s
        self._idle: deque[SourceConnection] = deque()
        self._is_closed = False

    def perform(self, request: Any) -> SourceReply:
        """Answer one request of a source, on a connection of its own for that time."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            reply = connection.perform(request)
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < MAX_IDLE_CONNECTIONS and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def _connect(self) -> SourceConnection:
        if self._is_closed:
            raise ConfigError(f"{self._store.url} was closed: connect() again")
        return self._store.connect(patience_s=self._patience_s)

    def close(self) -> None:
        """Close the idle connections, and each busy one at the end of its request."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()
