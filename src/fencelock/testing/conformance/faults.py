"""Faults for checks of how a client reacts: a store that loses replies, and threads that do not start."""

import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import CodeType
from unittest.mock import patch

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


class StartFaults:
    """What `failing_starts` has done so far."""

    def __init__(self, number: int | None) -> None:
        self.failed: list[str] = []
        """The names of the threads that did not start."""
        self._number = number
        self._started = 0
        self._kinds: set[tuple[str, CodeType]] = set()

    def strikes(self, thread: threading.Thread, caller: CodeType) -> bool:
        """Return whether this start, asked for by `caller`, has to fail."""
        self._started += 1
        # Numbers are left out, so that all threads of a pool are of one kind.
        kind = re.sub(r"\d+", "", thread.name), caller
        is_first = kind not in self._kinds
        self._kinds.add(kind)
        return is_first if self._number is None else self._started == self._number


@contextmanager
def failing_starts(number: int | None = None) -> Iterator[StartFaults]:
    """Fail starts of threads in this block as a limit on threads does, in every thread of the process.

    With a number, the start of that number fails. Without one, the first start of each kind of thread fails: a kind is
    the place that starts it, and its name.
    """
    start, faults = threading.Thread.start, StartFaults(number)

    def fail_or_start(thread: threading.Thread) -> None:
        if faults.strikes(thread, sys._getframe(1).f_code):  # noqa: SLF001 - documented, and the caller tells the kinds apart
            faults.failed.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with patch.object(threading.Thread, "start", fail_or_start):
        yield faults
