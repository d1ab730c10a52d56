"""kazoo's client for a source or a guard: one session in one thread, and what its errors mean.

Promise: watches and changes of state are told in the thread that reads the socket, before the reply that follows them
there, so that whoever has a reply knows all that ZooKeeper said before it. A session whose timeout is not the one that
was asked for is refused. A server that falls silent is left for the next one within a fifth of the timeout. Every
send is noted, which is what `touched_ms` rests on. Errors become those of the tree, with `definite` true to the fact.
Never: a password, a session's or a user's, in a log.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

from kazoo import exceptions as said
from kazoo.client import CLOSED_STATES, KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import CloseInstance
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from fencelock.errors import ConfigError, FencelockError, OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.stores.errors import ErrorMapper
from fencelock.stores.zookeeper.connection.forks import FORKS
from fencelock.stores.zookeeper.connection.kazoo_connection import (
    LOG,
    MAX_HELD,
    PINGS_PER_TIMEOUT,
    KazooConnection,
    KazooHandler,
)
from fencelock.stores.zookeeper.connection.url import ZooKeeperConnectionInfo

MIN_ATTEMPT_S = 0.5
"""A server gets as long as a touch takes to come round to make a connection, or to answer on it, and no less than this;
then the next one is tried. kazoo would wait for the whole timeout.
"""
RETRY_S, MAX_RETRY_S = 0.02, 0.5
"""Between two rounds over the servers while none can be reached."""
_MS_PER_S = 1000


class ZooKeeperTimeoutError(Exception):
    """The servers did not answer in time; never leaves this package."""


class ZooKeeperClient(KazooClient):
    """One session's client, made by `open_client`. What is asked for in a `with client:` block is sent at its end."""

    def __init__(self, place: ZooKeeperConnectionInfo, timeout_ms: int) -> None:
        self.place = place
        self.timeout_ms = timeout_ms
        self.refusal: FencelockError | None = None
        """Why this session is not to be used; the servers would keep it for another time than was asked for."""
        self.connection_retry = KazooRetry(max_tries=-1, delay=RETRY_S, max_delay=MAX_RETRY_S, ignore_expire=False)
        self.attempt_s = max(timeout_ms / PINGS_PER_TIMEOUT / _MS_PER_S, MIN_ATTEMPT_S)
        super().__init__(
            timeout=timeout_ms / _MS_PER_S,
            handler=KazooHandler(self.attempt_s),
            connection_retry=self.connection_retry,
            logger=LOG,
            **place.settings(),
        )
        self._session_timeout = timeout_ms  # kazoo's own rounding of seconds may be off by one.
        self._connection = KazooConnection(self, place)
        self._held = threading.local()
        self._settle_ms = place.tick_ms // 2
        self._older_ms = self._newer_ms = 0

    def on_connected(self, sent_ms: int, granted_ms: int) -> None:
        """Take note of a session that was made, or found again: the leader itself counts from this moment."""
        if granted_ms <= 0:
            return  # The servers know the session no more.
        self._older_ms = self._newer_ms = sent_ms
        if granted_ms != self.timeout_ms:
            bound = "minSessionTimeout" if granted_ms > self.timeout_ms else "maxSessionTimeout"
            self.refusal = ConfigError(
                f"{self.place.url}: a session of {self.timeout_ms / _MS_PER_S:g} s was asked for, and the servers keep "
                f"it for {granted_ms / _MS_PER_S:g} s instead, their {bound}: ask for a ttl within their limits. If "
                f"you asked for none, say their tickTime in the URL, tick_ms=…: it is taken for {self.place.tick_ms} ms"
            )

    def touch(self, now_ms: int) -> None:
        """Take note of something that is sent."""
        if now_ms - self._newer_ms >= self._settle_ms:
            self._older_ms, self._newer_ms = self._newer_ms, now_ms

    def touched_ms(self, sent_ms: int) -> int:
        """Return when the session was last touched so long before a request that the leader knew of it by then.

        A follower tells its leader of the sessions that it has heard from at the leader's next ping, which comes every
        half tick. A server that dies before that takes its own knowledge along.
        """
        return self._newer_ms if self._newer_ms <= sent_ms - self._settle_ms else self._older_ms

    def __enter__(self) -> None:
        """Hold back what this thread asks for, to the end of the block."""
        self._held.requests = []

    def __exit__(self, *exc: object) -> None:
        """Hand over what was held back, and wake the client's thread once: a wake costs as much as a request."""
        requests, self._held.requests = self._held.requests, None
        for first in range(0, len(requests), MAX_HELD):
            self._hand_over(requests[first : first + MAX_HELD])

    def _hand_over(self, requests: list[tuple[Any, Any]]) -> None:
        if self.client_state in CLOSED_STATES:
            for request, result in requests:
                super()._call(request, result)  # Which says what is wrong.
            return
        self._queue.extend(requests)
        try:
            # The thread takes one request for each byte.
            self._connection.wake(len(requests))
        except OSError:
            for _, result in requests:
                result.set_exception(said.ConnectionClosedError("the client was closed"))

    def _call(self, request: Any, result: Any) -> Any:
        held = getattr(self._held, "requests", None)
        if held is None:
            return super()._call(request, result)
        held.append((request, result))
        return None

    def end(self, request_timeout_s: float) -> None:
        """End the session, and wait so long at most. kazoo's own `stop` would wait for a server that is silent, and for
        its thread: at the interpreter's end there may be none to wait with.
        """
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._queue.append((CloseInstance, None))
        self._connection.wake(1)
        self._connection.connection_stopped.wait(request_timeout_s)

    def is_running(self) -> bool:
        """Tell whether its thread still looks for servers."""
        return not self._connection.connection_stopped.is_set()

    def forget_watcher(self, path: str | None, watcher: Any) -> None:
        """Tell a watcher no more of a node. kazoo keeps each until there is something to be told, which at a lock that
        is held for long may be never.
        """
        watchers = self._data_watchers.get(path)
        if watchers is not None:
            watchers.discard(watcher)

    def sockets(self) -> Iterator[Any]:
        """Yield what a forked child inherits of it."""
        connection = self._connection
        for one in (connection._socket, connection._read_sock, connection._write_sock):  # noqa: SLF001 - its own
            if one is not None:
                yield one

    def wait_connected(self, request_timeout_s: float) -> None:
        """Wait for a connection; SourceUnavailableError if there is none in time."""
        if not self._live.is_set() and not self._live.wait(request_timeout_s):
            if self.client_state == KeeperState.AUTH_FAILED:
                raise refused(said.AuthFailedError(), self.place)
            raise SourceUnavailableError(
                f"{self.place.url} cannot be reached: no server answered in {request_timeout_s:g} s"
            )
        if self.refusal is not None:
            raise self.refusal


def open_client(place: ZooKeeperConnectionInfo, timeout_ms: int, request_timeout_s: float) -> ZooKeeperClient:
    """Return a client that is connected; see `connect`."""
    client = ZooKeeperClient(place, timeout_ms)
    connect(client, request_timeout_s)
    return client


def connect(client: ZooKeeperClient, request_timeout_s: float) -> None:
    """Connect a new client; SourceUnavailableError if that takes too long, ConfigError if its session would be kept for
    another time than was asked for. Then it is closed already.
    """
    FORKS.add(client)
    try:
        client.start_async()
        client.wait_connected(request_timeout_s)
    except BaseException:
        FORKS.close(client)
        raise


def answers(results: list[Any], request_timeout_s: float) -> list[Any]:
    """Return what came of requests that were sent together, each a value or the error that the servers answered.

    A lost connection is raised, as an end of patience is: then the outcome of each of them is unknown.
    """
    give_up_s = time.monotonic() + request_timeout_s
    found = []
    # They are answered in their order: who waits for the last is woken once.
    for result in reversed(results):
        if not result.ready() and not result.wait(max(0.0, give_up_s - time.monotonic())):
            raise ZooKeeperTimeoutError
    for result in results:
        error = result.exception
        if isinstance(error, UNKNOWN):
            raise anew(error)
        found.append(result.value if error is None else error)
    return found


def anew(error: Exception) -> Exception:
    """Return an error as this one, to be raised. This one is kept by its result, and that by the frames that it would
    come through: see `stores/errors.py`.
    """
    return type(error)(*error.args)


UNKNOWN = (
    said.ConnectionLoss,
    said.OperationTimeoutError,
    said.SessionExpiredError,
    said.SessionMovedError,
    said.ConnectionClosedError,
    KazooTimeoutError,
)
"""Errors after which nobody knows whether a request was done."""


def mapping_errors(place: ZooKeeperConnectionInfo) -> ErrorMapper:
    """Return a block in which what comes out of a request that was sent is raised as what it means."""
    return ErrorMapper(lambda error: map_error(error, place))


def map_error(error: BaseException, place: ZooKeeperConnectionInfo) -> SourceError | None:
    """Return what an exception out of a request that was sent means; None: it is not ZooKeeper's."""
    if isinstance(error, ZooKeeperTimeoutError):
        return OutcomeUnknownError(f"{place.url} did not answer in time: whether it did what was asked is unknown")
    if isinstance(error, UNKNOWN):
        what = type(error).__name__
        return OutcomeUnknownError(f"{place.url} broke off ({what}): whether it did what was asked is unknown")
    if isinstance(error, said.ZookeeperError):
        return refused(error, place)
    return None


def refused(error: said.ZookeeperError, place: ZooKeeperConnectionInfo) -> SourceError:
    """Return what a server means that answers with an error, and so has done nothing."""
    if isinstance(error, said.NoAuthError | said.AuthFailedError | said.InvalidACLError):
        return SourceError(
            f"{place.url} does not permit it ({type(error).__name__}): name a user in the URL who may, or have the "
            f"access lists changed"
        )
    if isinstance(error, said.NotReadOnlyCallError):
        return SourceUnavailableError(f"{place.url} takes no writes now: its server has lost the others")
    return SourceError(f"{place.url} refused: {type(error).__name__}")
