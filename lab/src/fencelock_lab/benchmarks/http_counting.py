"""A proxy that counts the HTTP requests of all its clients."""

from asyncio import StreamReader

from fencelock_lab.proxy.framing import CHUNK_BYTES, Frame, Framing
from fencelock_lab.proxy.proxy import Proxy

_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


class HttpCounter(Proxy):
    """A proxy before one HTTP server."""

    def new_framing(self) -> Framing:
        """Return what tells requests apart."""
        return _HttpFraming()

    @property
    def number(self) -> int:
        """How many requests have passed."""
        return sum(self.sent.values())


class _HttpFraming(Framing):
    """Requests whose bodies have the length that their heads say; one by one on a connection."""

    def __init__(self) -> None:
        self._left_bytes = 0

    async def request(self, reader: StreamReader) -> Frame:
        """Read the head of a request, which is counted, or a piece of its body."""
        if self._left_bytes:
            data = await reader.read(min(self._left_bytes, CHUNK_BYTES))
            if not data:
                raise EOFError
            self._left_bytes -= len(data)
            return Frame(data)
        head = await reader.readuntil(_END)
        lines = head.lower().splitlines()
        self._left_bytes = sum(int(line.removeprefix(_LENGTH)) for line in lines if line.startswith(_LENGTH))
        return Frame(head, name=head.partition(b" ")[0].decode())
