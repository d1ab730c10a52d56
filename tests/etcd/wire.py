"""A TCP proxy before one etcd member that can lose what passes in one direction, and cut all connections.

It knows nothing of HTTP/2: a test says what is to be lost, and when that has happened.
"""

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from tests.helpers import DEADLINE_S

Direction = Literal["requests", "replies"]
CHUNK_BYTES = 65_536
QUIET_S = 0.05


class Wire:
    """A proxy before the member that listens on `server_port` of 127.0.0.1. Use it in a `with` block."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.losing: Direction | None = None
        self.lost_bytes = 0
        self._sockets: set[socket.socket] = set()
        self._is_open = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def lose(self, direction: Direction) -> None:
        """Lose all that passes in this direction from now on."""
        self.losing, self.lost_bytes = direction, 0

    def is_quiet(self) -> bool:
        """Tell whether something was lost, and nothing more came for a moment: whatever was to be said was said."""
        lost_bytes = self.lost_bytes
        time.sleep(QUIET_S)
        return 0 < lost_bytes == self.lost_bytes

    def cut(self) -> None:
        """End all connections; new ones lose nothing."""
        self.losing = None
        for one in list(self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while self._is_open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port), timeout=DEADLINE_S)
            server.settimeout(None)
            self._sockets |= {client, server}
            for source, target, direction in ((client, server, "requests"), (server, client, "replies")):
                threading.Thread(target=self._pass_on, args=(source, target, direction), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, direction: Direction) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if self.losing == direction:
                    self.lost_bytes += len(data)
                else:
                    target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            self._sockets.discard(one)
            one.close()
