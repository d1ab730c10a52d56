"""A TCP proxy that knows where ZooKeeper's requests and replies begin and end, counts them, and can lose just one.

Every message is a length of four bytes and as many bytes more. The first that each side sends opens the session; after
it a request begins with its number and its kind, a reply with the number. Pings have a number of their own and, like
the opening, are passed on uncounted.
"""

import socket
import struct
import threading
from collections import Counter
from contextlib import suppress
from types import TracebackType
from typing import Self

from fencelock_lab.servers.server import reserve_port

CREATE, DELETE, EXISTS, GET, SET, CHILDREN, SYNC, MULTI, CREATE2 = 1, 2, 3, 4, 5, 8, 9, 14, 15
AUTH, CLOSE = 100, -11
PING = -2
NAMES = {
    CREATE: "create", DELETE: "delete", EXISTS: "exists", GET: "get", SET: "set", CHILDREN: "get_children",
    SYNC: "sync", MULTI: "multi", CREATE2: "create", AUTH: "auth", CLOSE: "close",
}  # fmt: skip


class Loss:
    """One request or one reply that is to be lost, with its connection: the `nth` of all from now on."""

    def __init__(self, kind: str, nth: int) -> None:
        self.kind = kind
        self.left = nth
        self.number: int | None = None
        self.has_happened = threading.Event()


class ZooKeeperProxy:
    """A proxy before the server that listens on `server_port` of 127.0.0.1. Use it in a `with` block."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self.sent: Counter[str] = Counter()
        """How many requests of each kind have come."""
        self.connections = 0
        self.piece: int | None = None
        """How many bytes are passed on at a time; None: whole messages."""
        self._flowing = threading.Event()
        self._flowing.set()
        self._loss: Loss | None = None
        self._mutex = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listening = socket.socket()

    def __enter__(self) -> Self:
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listening.bind(("127.0.0.1", self.port))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        self.thaw()
        self.cut()
        self._reserved.close()

    def url(self, url: str) -> str:
        """Return the URL of the same source through the proxy."""
        scheme, _, rest = url.partition("://")
        login, at, rest = rest.rpartition("@")
        _, slash, path = rest.partition("/")
        return f"{scheme}://{login}{at}127.0.0.1:{self.port}{slash}{path}"

    def lose(self, kind: str, nth: int) -> Loss:
        """Lose the nth `request` or `reply` from now on."""
        loss = Loss(kind, nth)
        with self._mutex:
            self._loss = loss
        return loss

    def freeze(self) -> None:
        """Pass on nothing more, in either direction."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Pass on what comes, and what came meanwhile."""
        self._flowing.set()

    def cut(self) -> None:
        """End every connection."""
        with self._mutex:
            ending = list(self._open)
        for each in ending:
            _end(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._mutex:
                    self._open |= {client, server}
                    self.connections += 1
                for source, target, note in ((client, server, self._is_lost_request), (server, client, self._is_lost)):
                    threading.Thread(target=self._pass, args=(source, target, note), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_lost: object) -> None:
        is_first = True
        with suppress(OSError), source, target:
            while (message := _read(source)) is not None:
                self._flowing.wait()
                if not is_first and is_lost(message[4:]):  # type: ignore[operator]
                    break
                is_first = False
                size = self.piece or len(message)
                for first in range(0, len(message), size):
                    target.sendall(message[first : first + size])
            _end(source)
            _end(target)
        with self._mutex:
            self._open -= {source, target}

    def _is_lost_request(self, body: bytes) -> bool:
        number, kind = struct.unpack_from(">ii", body)
        if number == PING:
            return False
        with self._mutex:
            self.sent[NAMES.get(kind, str(kind))] += 1
            loss = self._loss
            if loss is None or kind == AUTH or loss.number is not None:
                return False
            loss.left -= 1
            if loss.left:
                return False
            loss.number = number
            if loss.kind == "request":
                self._happened(loss)
                return True
        return False

    def _is_lost(self, body: bytes) -> bool:
        (number,) = struct.unpack_from(">i", body)
        with self._mutex:
            loss = self._loss
            if loss is None or loss.kind != "reply" or loss.number != number:
                return False
            self._happened(loss)
        return True

    def _happened(self, loss: Loss) -> None:
        self._loss = None
        loss.has_happened.set()


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


def _read(source: socket.socket) -> bytes | None:
    """Return the next message with its length, None at the end."""
    head = _read_exactly(source, 4)
    if head is None:
        return None
    body = _read_exactly(source, int.from_bytes(head, "big"))
    return None if body is None else head + body


def _read_exactly(source: socket.socket, size: int) -> bytes | None:
    found = b""
    while len(found) < size:
        piece = source.recv(size - len(found))
        if not piece:
            return None
        found += piece
    return found
