"""kazoo's connection and handler: one thread handles every reply and every event, in order.

Promise: requests that are handed over together are sent in one piece, and everything that has arrived is read at once:
each system call lets another thread run first, and a wake costs as much as a request. Every send is noted, because the
time left is counted from it. A silent server is left within a fifth of the timeout.
Never: a password, a session's or a user's, in a log.
"""

import logging
import math
import select
import socket
import ssl
from contextlib import suppress
from typing import Any, Protocol

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.retry import ForceRetryError

from fencelock.clock import boottime_ms
from fencelock.stores.zookeeper.connection.url import ZooKeeperConnectionInfo

PINGS_PER_TIMEOUT = 10
"""An unused session is touched this often, and one touch without an answer ends the connection."""
SHORTEST_WAIT_S = 0.25
"""kazoo draws its waits around a ping at random; a busy server may not answer within a shorter one."""
MAX_HELD = 500
"""Requests that are handed over together at most."""
READ_AHEAD = 16_384
"""Bytes that are read from a socket at once: a whole TLS record."""
NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""The socket has nothing to read, or accepts nothing more, at this moment."""
_MS_PER_S = 1000
LOG = logging.getLogger("fencelock.kazoo")
# Below this level kazoo logs whole requests, credentials and passwords of sessions included.
LOG.setLevel(logging.WARNING)
# A program that has not configured logging must not find each lost connection on its standard error.
LOG.addHandler(logging.NullHandler())


class SessionClient(Protocol):
    """What the connection needs of its client."""

    timeout_ms: int
    attempt_s: float
    connection_retry: Any

    def on_connected(self, sent_ms: int, granted_ms: int) -> None:
        """Note a session that was made, or found again."""

    def touch(self, now_ms: int) -> None:
        """Note that something is sent."""

    def on_all_refused(self) -> None:
        """Note that no server runs: each has refused the connection, or its name has no address."""


class KazooHandler(SequentialThreadingHandler):
    """Runs every callback in the thread in which it arises, so that nothing is told late or out of order."""

    def __init__(self, attempt_s: float, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self.attempt_s = attempt_s
        self._tls = tls
        self.has_refused = False
        """Whether the server has refused the connection in the present attempt."""

    def start(self) -> None:
        """Start nothing: no thread is needed."""

    def stop(self) -> None:
        """Stop nothing: no thread was started."""

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watcher, at once."""
        try:
            callback.func(*callback.args)
        except Exception:
            LOG.exception("a ZooKeeper watcher failed")

    def select(self, *args: Any) -> Any:
        """Wait for the sockets. kazoo's own `select` makes and drops an epoll object several times for each request."""
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
        """Connect to one server. kazoo's own TLS would trust the system's authorities too, whatever file is named."""
        try:
            plain = super().create_connection(*args, **{**kwargs, "timeout": self.attempt_s})
            return plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=kwargs["hostname"])
        except ConnectionRefusedError:
            self.has_refused = True
            raise


class KazooConnection(ConnectionHandler):
    """kazoo's connection, which notes when it touched its session, and does so more often."""

    def __init__(self, client: SessionClient, info: ZooKeeperConnectionInfo) -> None:
        self._info = info
        # A copy, because kazoo adds to the dictionary.
        sasl = dict(info.sasl) if info.sasl is not None else None
        super().__init__(client, client.connection_retry, logger=LOG, sasl_options=sasl)
        self._received = b""
        self._outgoing: bytearray | None = None
        self._have_all_refused = False

    def zk_loop(self) -> None:
        """Run until the client is stopped, then close the pipe; kazoo leaves that to its `stop`, which nobody calls."""
        try:
            super().zk_loop()
        finally:
            self.close()

    def _connect_loop(self, retry: Any) -> Any:
        """Try each server once."""
        self._have_all_refused = True
        try:
            return super()._connect_loop(retry)
        except ForceRetryError:
            if self._have_all_refused:
                self.client.on_all_refused()
            raise

    def _connect_attempt(self, *where: Any) -> Any:
        self.handler.has_refused = False
        try:
            return super()._connect_attempt(*where)
        finally:
            self._have_all_refused &= self.handler.has_refused

    def wake(self, requests: int) -> None:
        """Make the thread take so many requests; OSError once the connection is closed."""
        writing = self._write_sock
        if writing is None:
            raise ConnectionAbortedError
        writing.sendall(b"\0" * requests)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        # Before it is sent: the leader counts the session's timeout from some later moment.
        sent_ms = boottime_ms()
        reply = super()._invoke(min(timeout, self.client.attempt_s), request, xid)
        if isinstance(request, Connect):
            self.client.on_connected(sent_ms, reply[0].time_out)
        return reply

    def _connect(self, *where: Any) -> tuple[float, float]:
        # What was read ahead on the former connection answers nothing on this one.
        self._received, self._outgoing = b"", None
        _, connect_timeout = super()._connect(*where)
        # kazoo pings after half of this, and leaves the server if the next ping finds the last one unanswered.
        return 2 * self.client.timeout_ms / PINGS_PER_TIMEOUT, connect_timeout

    def _read_socket(self, read_timeout: float) -> Any:
        """Read everything that has arrived, which may be more than one message."""
        reply = super()._read_socket(read_timeout)
        while self._received and reply is None:
            reply = super()._read_socket(read_timeout)
        return reply

    def _read(self, length: int, timeout: float) -> bytes:
        if len(self._received) < length:
            with self._socket_error_handling(), suppress(*NOT_YET):
                self._received += self._socket.recv(READ_AHEAD)
        taken, self._received = self._received[:length], self._received[length:]
        # kazoo waits for the missing bytes.
        return taken + bytes(super()._read(length - len(taken), timeout))

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """Send everything that was handed over in one piece."""
        self._outgoing = bytearray()
        # Only peeked: kazoo takes one byte off the pipe for each request that it sends.
        for _ in self._read_sock.recv(MAX_HELD, socket.MSG_PEEK):
            super()._send_request(read_timeout, connect_timeout)
        outgoing, self._outgoing = self._outgoing, None
        if outgoing:
            self._write(bytes(outgoing), connect_timeout)

    def _write(self, msg: bytes, timeout: float) -> None:
        if self._outgoing is not None:
            self._outgoing += msg
            return
        sent = 0
        with self._socket_error_handling(), suppress(*NOT_YET):
            sent = self._socket.send(msg)
        if sent < len(msg):
            super()._write(msg[sent:], timeout)

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        # Before it is sent, so that the time left is never counted from a later moment than the server's.
        self.client.touch(boottime_ms())
        super()._submit(request, timeout, xid)
