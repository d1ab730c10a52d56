"""kazoo's client for a source or a guard: one session in one thread, and how a forked child lets go of it.

Promise: the thread that reads the socket tells watches and changes of state, before the reply that follows them there.
So a thread that has a reply knows everything that ZooKeeper sent before it. A session is refused if the servers keep it
for another timeout than the requested one. The client leaves a silent server for the next one within a fifth of the
timeout. Every send is noted: `touched_ms` relies on it.
Never: a password, a session's or a user's, in a log.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from kazoo import exceptions as kazoo_errors
from kazoo.client import CLOSED_STATES, KazooClient
from kazoo.protocol.serialization import CloseInstance
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from fencelock._threads import mapping_start_failures
from fencelock.errors import ConfigError, FencelockError, SourceUnavailableError
from fencelock.stores.forks import Forks
from fencelock.stores.zookeeper.connection.errors import (
    OUTCOME_UNKNOWN,
    ZooKeeperTimeoutError,
    copy_error,
    map_refusal,
)
from fencelock.stores.zookeeper.connection.kazoo_connection import (
    LOG,
    MAX_HELD,
    PINGS_PER_TIMEOUT,
    KazooConnection,
    KazooHandler,
)
from fencelock.stores.zookeeper.connection.url import ZooKeeperConnectionInfo

MAX_REQUEST_BYTES = 1_000_000
"""A server drops the connection of a client that sends more than its jute.maxbuffer, which is 1 048 575 by default."""
MIN_ATTEMPT_S = 0.5
"""The shortest time that a server gets to accept a connection, or to answer on it, before the next server is tried.

It gets a tenth of the session's timeout if that is longer; kazoo would wait for the whole timeout.
"""
MAX_FIRST_ATTEMPT_S = 1.0
"""The same before the first answer of any server: a program that has just started waits no longer for a silent one."""
RETRY_S, MAX_RETRY_S = 0.02, 0.5
"""The pause between two rounds over the servers while none can be reached."""
CLOSE_S = 1.0
"""How long the end of a session is awaited; the servers end one that they do not hear from by its timeout."""
_MS_PER_S = 1000


class ZooKeeperClient(KazooClient):
    """One session's client, made by `open_client`. A `with client:` block sends its requests together at its end."""

    def __init__(self, info: ZooKeeperConnectionInfo, timeout_ms: int) -> None:
        self.info = info
        self.timeout_ms = timeout_ms
        self.refusal: FencelockError | None = None
        """Why this session must not be used: the servers keep it for another time than the requested one."""
        self.connection_retry = KazooRetry(max_tries=-1, delay=RETRY_S, max_delay=MAX_RETRY_S, ignore_expire=False)
        self._attempt_s = max(timeout_ms / PINGS_PER_TIMEOUT / _MS_PER_S, MIN_ATTEMPT_S)
        self.attempt_s = min(self._attempt_s, MAX_FIRST_ATTEMPT_S)
        super().__init__(
            timeout=timeout_ms / _MS_PER_S,
            handler=KazooHandler(self.attempt_s, info.tls and info.tls.context(info.url)),
            connection_retry=self.connection_retry,
            logger=LOG,
            **info.settings(),
        )
        self._session_timeout = timeout_ms  # kazoo's own rounding of seconds may be off by one.
        self._connection = KazooConnection(self, info)
        self._held = threading.local()
        self._settle_ms = info.tick_ms // 2
        self._older_ms = self._newer_ms = 0
        self._first_round = threading.Event()
        """Set once a server has answered, or all have refused the connection; that is `_is_refused`."""
        self._is_refused = False

    def on_connected(self, sent_ms: int, granted_ms: int) -> None:
        """Note a session that was made, or found again: the leader itself counts its timeout from this moment."""
        self._first_round.set()
        self.attempt_s = self.handler.attempt_s = self._attempt_s
        if granted_ms <= 0:
            return  # The servers no longer know the session.
        self._older_ms = self._newer_ms = sent_ms
        if granted_ms != self.timeout_ms:
            bound = "minSessionTimeout" if granted_ms > self.timeout_ms else "maxSessionTimeout"
            self.refusal = ConfigError(
                f"{self.info.url}: a session of {self.timeout_ms / _MS_PER_S:g} s was asked for, and the servers keep "
                f"it for {granted_ms / _MS_PER_S:g} s instead, their {bound}: ask for a ttl within their limits. If "
                f"you asked for none, write their tickTime into the URL, tick_ms=…: fencelock assumes "
                f"{self.info.tick_ms} ms"
            )

    def on_all_refused(self) -> None:
        """Note that no server runs."""
        if not self._first_round.is_set():
            self._is_refused = True
            self._first_round.set()

    def touch(self, now_ms: int) -> None:
        """Note that something is sent."""
        # Two times suffice: the newest one, and one that is older by half a tick, see `touched_ms`.
        if now_ms - self._newer_ms >= self._settle_ms:
            self._older_ms, self._newer_ms = self._newer_ms, now_ms

    def touched_ms(self, sent_ms: int) -> int:
        """Return the last touch of the session that the leader knew of when a request was sent.

        A follower tells its leader which sessions it has heard from at the leader's next ping, every half tick. The
        knowledge of a server that dies before that is lost.
        """
        return self._newer_ms if self._newer_ms <= sent_ms - self._settle_ms else self._older_ms

    def __enter__(self) -> None:
        """Hold this thread's requests back until the end of the block."""
        self._held.requests = []

    def __exit__(self, *exc: object) -> None:
        """Hand over the requests that were held back, and wake the client's thread once.

        A wake costs as much as a request.
        """
        requests, self._held.requests = self._held.requests, None
        for first in range(0, len(requests), MAX_HELD):
            self._hand_over(requests[first : first + MAX_HELD])

    def _hand_over(self, requests: list[tuple[Any, Any]]) -> None:
        if self.client_state in CLOSED_STATES:
            for request, result in requests:
                super()._call(request, result)  # It sets the fitting error.
            return
        self._queue.extend(requests)
        try:
            # The thread takes one request for each byte.
            self._connection.wake(len(requests))
        except OSError:
            for _, result in requests:
                result.set_exception(kazoo_errors.ConnectionClosedError("the client was closed"))

    def _call(self, request: Any, result: Any) -> Any:
        held = getattr(self._held, "requests", None)
        if held is None:
            return super()._call(request, result)
        held.append((request, result))
        return None

    def end(self, request_timeout_s: float) -> None:
        """End the session, and wait so long at most.

        kazoo's own `stop` would wait for a silent server, and for its thread, which may not exist at the interpreter's
        end.
        """
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._queue.append((CloseInstance, None))
        self._connection.wake(1)
        if self._first_round.is_set():  # Otherwise its thread waits for a silent server, and there is no session.
            self._connection.connection_stopped.wait(request_timeout_s)
        if not self.is_running():
            # Its thread closes the pipe at its end, but may never have been started.
            self._connection.close()

    def is_running(self) -> bool:
        """Return whether its thread still looks for servers."""
        return not self._connection.connection_stopped.is_set()

    def forget_watcher(self, path: str | None, watcher: Any) -> None:
        """Tell a watcher no more of a node.

        kazoo keeps each watcher until it has something to tell, which may be never at a lock that is held for long.
        """
        watchers = self._data_watchers.get(path)
        if watchers is not None:
            watchers.discard(watcher)

    def sockets(self) -> Iterator[Any]:
        """Yield the sockets that a forked child inherits."""
        connection = self._connection
        for one in (connection._socket, connection._read_sock, connection._write_sock):  # noqa: SLF001 - its own
            if one is not None:
                yield one

    def wait_connected(self, request_timeout_s: float) -> None:
        """Wait for a connection; SourceUnavailableError if there is none in time.

        The first connection is refused at once where no server runs. A client that had a connection waits for the
        servers' restart, because its session may still live.
        """
        if not self._live.is_set() and not self._becomes_live(request_timeout_s):
            if self.client_state == KeeperState.AUTH_FAILED:
                raise map_refusal(kazoo_errors.AuthFailedError(), self.info)
            raise SourceUnavailableError(
                f"{self.info.url} cannot be reached: no server answered in {request_timeout_s:g} s"
            )
        if self.refusal is not None:
            raise self.refusal

    def _becomes_live(self, request_timeout_s: float) -> bool:
        give_up_s = time.monotonic() + request_timeout_s
        if not self._first_round.wait(request_timeout_s):
            return False
        if self._is_refused:
            raise SourceUnavailableError(f"{self.info.url} cannot be reached: no server runs there")
        return self._live.wait(max(0.0, give_up_s - time.monotonic()))  # type: ignore[no-any-return]


def open_client(info: ZooKeeperConnectionInfo, timeout_ms: int, request_timeout_s: float) -> ZooKeeperClient:
    """Return a connected client; see `connect`."""
    client = ZooKeeperClient(info, timeout_ms)
    connect(client, request_timeout_s)
    return client


def connect(client: ZooKeeperClient, request_timeout_s: float) -> None:
    """Connect a new client.

    SourceUnavailableError if that takes too long or its thread cannot be started, ConfigError if the servers would keep
    its session for another time than the requested one; after either the client is closed.
    """
    # Before it starts: a child that is forked while it connects has to drop its sockets.
    FORKS.add(client)
    try:
        with mapping_start_failures():
            client.start_async()
        client.wait_connected(request_timeout_s)
    except BaseException:
        FORKS.close(client)
        raise


def answers(results: list[Any], request_timeout_s: float) -> list[Any]:
    """Return the answers of requests that were sent together, each a value or the error that the servers answered.

    A lost connection or a timeout is raised: then the outcome of each request is unknown.
    """
    give_up_s = time.monotonic() + request_timeout_s
    found = []
    # The answers come in order: a thread that waits for the last one first is woken only once.
    for result in reversed(results):
        if not result.ready() and not result.wait(max(0.0, give_up_s - time.monotonic())):
            raise ZooKeeperTimeoutError
    for result in results:
        error = result.exception
        if isinstance(error, OUTCOME_UNKNOWN):
            raise copy_error(error)
        found.append(result.value if error is None else error)
    return found


# --- forks ------------------------------------------------------------------------------------------------------------
def _close(client: ZooKeeperClient) -> None:
    with suppress(Exception):
        client.end(CLOSE_S)


def _drop(client: ZooKeeperClient) -> None:
    for inherited in client.sockets():
        with suppress(OSError):
            inherited.close()


FORKS: Forks[ZooKeeperClient] = Forks(close=_close, drop=_drop)
"""The clients that this process has opened; a forked child drops them, see `stores/forks.py`."""
