"""A proxy that knows where requests and replies of HTTP/1.1 begin and end, and remembers the requests.

It understands bodies with a Content-Length, as the service and its clients write them. `seen` holds each whole request:
whoever sends one again is the network's duplicate.
"""

import socket
from asyncio import StreamReader

from fencelock_lab.proxy import Frame, Framing, Proxy
from fencelock_lab.servers.server import HOST
from tests.support.helpers import DEADLINE_S


class HTTPFraming(Framing):
    """Requests and replies of one connection."""

    def __init__(self, seen: list[bytes]) -> None:
        self._seen = seen

    async def request(self, reader: StreamReader) -> Frame:
        """Read a request."""
        data = await _read_message(reader)
        self._seen.append(data)
        return Frame(data, True, True)

    async def reply(self, reader: StreamReader) -> Frame:
        """Read a reply."""
        return Frame(await _read_message(reader), True, True)


class HTTPProxy(Proxy):
    """A proxy before the service that listens on `port`."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.seen: list[bytes] = []

    def new_framing(self) -> Framing:
        return HTTPFraming(self.seen)


def send_again(port: int, request: bytes) -> int:
    """Send a whole request to the service itself, and return the status of the answer."""
    with socket.create_connection((HOST, port), DEADLINE_S) as line, line.makefile("rb") as answer:
        line.sendall(request)
        return int(answer.readline().split()[1])


async def _read_message(reader: StreamReader) -> bytes:
    """Return the next message with its body; EOFError at the end."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:-2])
    return head + await reader.readexactly(int(fields.get(b"content-length", b"0")))
