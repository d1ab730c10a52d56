"""kazoo's connection and what it waits with: every reply and every word of a change in one thread, in their order.

Promise: requests that are handed over together leave in one piece, and whatever has arrived is taken in at once: each
call of the system lets another thread go first, and a wake costs as much as a request. What is sent is noted, since the
time left rests on it. A server that falls silent is left within a fifth of the timeout.
Never: a password, a session's or a user's, in a log.
"""

import logging
import math
import select
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect

from fencelock.clock import boottime_ms
from fencelock.stores.zookeeper.connection.url import ZooKeeperConnectionInfo

if TYPE_CHECKING:
    from fencelock.stores.zookeeper.connection.client import ZooKeeperClient

PINGS_PER_TIMEOUT = 10
"""A session that is not used is touched this often, and one touch that stays without an answer ends the connection."""
SHORTEST_WAIT_S = 0.25
"""kazoo draws its waits around a ping at random; in one that is shorter a busy server may not answer."""
MAX_HELD = 500
"""Requests that are handed over in one go."""
READ_AHEAD = 16_384
"""Bytes that are taken from a socket at once: a whole record of TLS."""
NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""A socket has nothing to be read, or takes nothing more, at this moment."""
_MS_PER_S = 1000
LOG = logging.getLogger("fencelock.kazoo")
# Below that, kazoo logs requests with all that is in them, credentials and passwords of sessions included.
LOG.setLevel(logging.WARNING)
# Who has configured no logging is not to find each lost connection on the standard error.
LOG.addHandler(logging.NullHandler())


class KazooHandler(SequentialThreadingHandler):
    """Runs every callback where it arises, so that nothing is told late or out of order."""

    def __init__(self, attempt_s: float) -> None:
        super().__init__()
        self._attempt_s = attempt_s

    def start(self) -> None:
        """No thread is needed."""

    def stop(self) -> None:
        """No thread was started."""

    def dispatch_callback(self, callback: Any) -> None:
        """Tell a watcher, at once."""
        try:
            callback.func(*callback.args)
        except Exception:
            LOG.exception("a watcher of ZooKeeper's failed")

    def select(self, *args: Any) -> Any:
        """Wait for the sockets. kazoo's own way makes an epoll and drops it again, several times for each request."""
        reading, writing, _, wait_s = args
        if reading and wait_s is not None:
            wait_s = max(wait_s, SHORTEST_WAIT_S)
        waiting = select.poll()
        for one in reading:
            waiting.register(one, select.POLLIN)
        for one in writing:
            waiting.register(one, select.POLLOUT)
        found = waiting.poll(None if wait_s is None else math.ceil(wait_s * _MS_PER_S))
        ready = {descriptor for descriptor, _ in found}
        return [one for one in reading if one.fileno() in ready], [one for one in writing if one.fileno() in ready], []

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect to one server."""
        return super().create_connection(*args, **{**kwargs, "timeout": self._attempt_s})


class KazooConnection(ConnectionHandler):
    """kazoo's connection, which notes when it touched its session, and does so more often."""

    def __init__(self, client: "ZooKeeperClient", place: ZooKeeperConnectionInfo) -> None:
        self._place = place
        # A dictionary of kazoo's own, which completes it.
        sasl = dict(place.sasl) if place.sasl is not None else None
        super().__init__(client, client.connection_retry, logger=LOG, sasl_options=sasl)
        self._arrived = b""
        self._leaving: bytearray | None = None

    def zk_loop(self) -> None:
        """Run until the client is stopped. kazoo leaves it to whoever has stopped it, and waited, to close the pipe."""
        try:
            super().zk_loop()
        finally:
            self.close()

    def wake(self, requests: int) -> None:
        """Have the thread take so many requests; OSError once it is closed."""
        writing = self._write_sock
        if writing is None:
            raise ConnectionAbortedError
        writing.sendall(b"\0" * requests)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        sent_ms = boottime_ms()
        reply = super()._invoke(min(timeout, self.client.attempt_s), request, xid)
        if isinstance(request, Connect):
            self.client.on_connected(sent_ms, reply[0].time_out)
        return reply

    def _connect(self, *where: Any) -> tuple[float, float]:
        self._arrived, self._leaving = b"", None
        _, connect_timeout = super()._connect(*where)
        # kazoo pings after half of this, and leaves the server if the next ping finds the last one unanswered.
        return 2 * self.client.timeout_ms / PINGS_PER_TIMEOUT, connect_timeout

    def _read_socket(self, read_timeout: float) -> Any:
        """Take in whatever has arrived, which may be more than one message."""
        told = super()._read_socket(read_timeout)
        while self._arrived and told is None:
            told = super()._read_socket(read_timeout)
        return told

    def _read(self, length: int, timeout: float) -> bytes:
        if len(self._arrived) < length:
            with self._socket_error_handling(), suppress(*NOT_YET):
                self._arrived += self._socket.recv(READ_AHEAD)
        taken, self._arrived = self._arrived[:length], self._arrived[length:]
        # What is missing is waited for.
        return taken + bytes(super()._read(length - len(taken), timeout))

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """Send all that was handed over in one piece."""
        self._leaving = bytearray()
        for _ in self._read_sock.recv(MAX_HELD, socket.MSG_PEEK):
            super()._send_request(read_timeout, connect_timeout)
        leaving, self._leaving = self._leaving, None
        if leaving:
            self._write(bytes(leaving), connect_timeout)

    def _write(self, msg: bytes, timeout: float) -> None:
        if self._leaving is not None:
            self._leaving += msg
            return
        sent = 0
        with self._socket_error_handling(), suppress(*NOT_YET):
            sent = self._socket.send(msg)
        if sent < len(msg):
            super()._write(msg[sent:], timeout)

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        self.client.touch(boottime_ms())
        super()._submit(request, timeout, xid)
