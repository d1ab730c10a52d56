"""How the bytes of one connection fall into requests and replies.

Promise: the data of all frames together are the bytes of the stream. A framing belongs to one connection, and may keep
what it has seen of it.
"""

from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass

CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Frame:
    """One message, or a piece of the stream if its protocol's messages are not told apart."""

    data: bytes
    is_part: bool = False
    """Whether it belongs to a request that faults may hit, or to the reply of one."""
    is_last: bool = False
    """Whether the request, or the reply, ends with it."""
    is_counted: bool = True
    """Whether its request is numbered; one that opens a connection only has a reply."""
    name: str = ""
    """The name under which the message is counted."""
    letter: str = ""
    """The message in the summary of its request."""
    statement: str | None = None
    """The SQL text in it."""


class Framing:
    """Bytes as they come, without requests or replies. A protocol's framing is a subclass."""

    async def opening(self, reader: StreamReader, writer: StreamWriter) -> bytes:
        """Talk to the client before there is a connection to the server; return what the server receives first."""
        return b""

    async def request(self, reader: StreamReader) -> Frame:
        """Read the client's next message; EOFError at the end."""
        return await self._chunk(reader)

    async def reply(self, reader: StreamReader) -> Frame:
        """Read the server's next message; EOFError at the end."""
        return await self._chunk(reader)

    async def _chunk(self, reader: StreamReader) -> Frame:
        data = await reader.read(CHUNK_BYTES)
        if not data:
            raise EOFError
        return Frame(data)
