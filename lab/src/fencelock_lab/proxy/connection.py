"""One connection of a client through a proxy, and the connection to the server that belongs to it.

Promise: an end loses no byte that came before it; a reset loses all that was not sent yet.
"""

import asyncio
import socket
import struct
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from fencelock_lab.proxy.framing import Framing

if TYPE_CHECKING:
    from fencelock_lab.proxy.request import Request

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ProxiedConnection:
    """A connection that a client has opened."""

    def __init__(self, client: socket.socket, framing: Framing) -> None:
        self.framing = framing
        self.task: asyncio.Task[None] | None = None
        self.current: Request | None = None
        """The request that has begun and is not at its end."""
        self.unanswered: deque[Request] = deque()
        self._socket = client
        self._client: Stream | None = None
        self._server: Stream | None = None

    @property
    def client(self) -> Stream:
        """The side of the client."""
        assert self._client is not None
        return self._client

    @property
    def server(self) -> Stream:
        """The side of the server."""
        assert self._server is not None
        return self._server

    async def open_client(self) -> None:
        """Begin to read what the client sends."""
        # asyncio does it for the sockets that it made: without it a reply in pieces waits 40 ms for the client's ACK.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client = _unbuffered(await asyncio.open_connection(sock=self._socket))

    async def open_server(self, address: tuple[str, int], timeout_s: float, retry_s: float) -> None:
        """Connect to the server; a server that refuses is asked again for a while.

        A member of a cluster that is down may start in a moment, and its peer believes to be connected already: it
        would take a lost connection for a lost member.
        """
        deadline = time.monotonic() + timeout_s
        while self._server is None:
            try:
                self._server = _unbuffered(await asyncio.open_connection(*address))
            except ConnectionRefusedError:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(retry_s)

    def reset(self) -> None:
        """End both sides; the client sees a reset, without what was not sent to it yet."""
        with suppress(OSError):  # The client's end may have closed the socket a round of the loop ago.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.close()
        if self.task is not None and self._server is None:
            self.task.cancel()  # It waits for the client's first bytes, or for the server.

    def close(self) -> None:
        """End both sides."""
        for stream in (self._client, self._server):
            if stream is not None:
                stream[1].transport.abort()
        if self._client is None:
            self._socket.close()


def _unbuffered(stream: Stream) -> Stream:
    # `drain` then waits until every byte is with the kernel: an end loses none that came before.
    stream[1].transport.set_write_buffer_limits(0)
    return stream
