"""A worker's own network: a TCP proxy on 127.0.0.1 that can hold back, delay and lose what goes through it.

Promise: bytes arrive unchanged and in their order, or not at all. What a partition held back arrives when it heals, as
TCP sends it again. A lost reply is one that the server has sent: the request was carried out, and its sender is not
told. Never: a server reached that the URL does not name.
"""

import socket
import struct
import threading
import time
from contextlib import suppress
from urllib.parse import SplitResult, parse_qs, parse_qsl, quote, urlencode, urlsplit

_CHUNK_BYTES = 65536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_PORTS = {
    "etcd": 2379,
    "mariadb": 3306,
    "mysql": 3306,
    "postgres": 5432,
    "postgresql": 5432,
    "zookeeper": 2181,
}
_NAMED = {"etcd": {"tls", "ca", "cert", "key"}, "zookeeper": {"tls", "ca", "cert", "key", "sasl"}}
"""Parameters with which a client checks the server's name, which a proxy does not have."""


class Proxy:
    """Passes connections on to one server. Its threads end with the process."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._held_until = 0.0
        self._delayed_until = 0.0
        self._delay_s = 0.0
        self._is_reply_to_drop = self._is_request_to_drop = False
        self._age = 0
        """How often all connections were cut."""
        self._start(self._accept)

    def partition(self, seconds: float) -> None:
        """Let nothing through for so long."""
        self._held_until = time.monotonic() + seconds

    def delay(self, seconds: float) -> None:
        """Hold each piece up by a tenth of this time, for all of it."""
        self._delay_s = seconds / 10
        self._delayed_until = time.monotonic() + seconds

    def drop(self, *, is_request: bool = False) -> None:
        """Lose the next reply, or the next request, and its connection."""
        if is_request:
            self._is_request_to_drop = True
        else:
            self._is_reply_to_drop = True

    def cut(self) -> None:
        """End each connection with its next piece of data, which still arrives."""
        self._age += 1

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            self._start(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        self._wait()
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start(self._pass, client, server, False)
        self._pass(server, client, True)

    def _pass(self, origin: socket.socket, goal: socket.socket, is_reply: bool) -> None:
        """Pass on what comes from one side, until a side ends; then end both."""
        age = self._age
        with suppress(OSError):
            while data := origin.recv(_CHUNK_BYTES):
                self._wait()
                if self._drops(is_reply):
                    for one in (origin, goal):
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    break
                goal.sendall(data)
                if age != self._age:
                    break
        for one in (origin, goal):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _drops(self, is_reply: bool) -> bool:
        """Return whether this piece is to be lost; the order is spent then."""
        if is_reply:
            is_dropped, self._is_reply_to_drop = self._is_reply_to_drop, False
        else:
            is_dropped, self._is_request_to_drop = self._is_request_to_drop, False
        return is_dropped

    def _wait(self) -> None:
        """Wait for as long as the network is cut, or as it is slow."""
        if self._delayed_until > time.monotonic():
            time.sleep(self._delay_s)
        while (left := self._held_until - time.monotonic()) > 0:
            time.sleep(left)

    @staticmethod
    def _start(function: object, *arguments: object) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()  # type: ignore[arg-type]


def address_of(url: str | None) -> tuple[str, int] | None:
    """Return the one host and port that a URL names; None where there is no network, more than one host, or a client
    that would notice.
    """
    parts = urlsplit(url or "")
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or "," in parts.netloc or not parts.hostname:
        return None
    if _NAMED.get(scheme, set()) & parse_qs(parts.query, keep_blank_values=True).keys():
        return None
    return parts.hostname, parts.port or _PORTS[scheme]


def by_way_of(proxy: Proxy, url: str) -> str:
    """Return the URL that leads to the same place by way of the proxy."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    host, query = "127.0.0.1", parts.query
    if parts.scheme.lower() in {"postgres", "postgresql"}:
        # libpq checks a certificate against the host's name, and connects to the address.
        host, query = _by_address(parts)
    return parts._replace(netloc=f"{user}{at}{host}:{proxy.port}", query=query).geturl()


def _by_address(parts: SplitResult) -> tuple[str, str]:
    words = dict(parse_qsl(parts.query)) | {"hostaddr": "127.0.0.1"}
    host = parts.hostname or ""
    return (f"[{host}]" if ":" in host else host), urlencode(words, quote_via=quote)
