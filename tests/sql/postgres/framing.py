"""The framing of PostgreSQL's protocol: where requests and replies begin and end, so that a proxy can lose exactly one.

The proxy passes on every byte unchanged, except that it declines an offer of encryption. A *request* is what a client
sends up to a Query or Sync message; its *reply* ends with the server's ReadyForQuery. Together they are one round trip.
The exchange that opens a connection is not counted.
"""

import struct
from asyncio import StreamReader, StreamWriter

from fencelock_lab.proxy import Frame, Framing, Proxy

CANCEL, ENCRYPT_TLS, ENCRYPT_GSS = 80877102, 80877103, 80877104
"""What the first packet of a connection may hold in the place of a protocol's version."""

CLIENT_MESSAGES = {b"Q": "Query", b"P": "Parse", b"B": "Bind", b"D": "Describe", b"E": "Execute", b"S": "Sync"}
"""The messages of a client that are counted by name."""

COPY_MESSAGES = (b"d", b"c", b"f")
"""A client's data to a COPY, their end, their failure: parts of the request that began the COPY."""
TERMINATE = b"X"


class PostgresFraming(Framing):
    """Requests and replies of one connection."""

    def __init__(self) -> None:
        self._is_started = False
        self._is_copying = False

    async def opening(self, reader: StreamReader, writer: StreamWriter) -> bytes:
        """Return the first packet that asks for a connection, or for a cancellation; decline encryption before it."""
        while True:
            head = await reader.readexactly(8)
            length, code = struct.unpack("!ii", head)
            packet = head + await reader.readexactly(length - 8)
            if code not in (ENCRYPT_TLS, ENCRYPT_GSS):
                return packet
            writer.write(b"N")

    async def request(self, reader: StreamReader) -> Frame:
        """Read a message of the client."""
        kind, body, message = await _read_message(reader)
        if not self._is_started or kind == TERMINATE:
            return Frame(message)
        if kind in COPY_MESSAGES:
            self._is_copying = True
            return Frame(message)
        name = CLIENT_MESSAGES.get(kind, "")
        was_copying, self._is_copying = self._is_copying, False
        if was_copying and kind == b"S":
            # It ends the data, not a request: a server in COPY did not answer the Sync before the data.
            return Frame(message, name=name)
        statement = _sql(kind, body) if kind in (b"Q", b"P") else None
        return Frame(message, True, kind in (b"Q", b"S"), name=name, letter=kind.decode(), statement=statement)

    async def reply(self, reader: StreamReader) -> Frame:
        """Read a message of the server."""
        kind, _, message = await _read_message(reader)
        was_started, self._is_started = self._is_started, self._is_started or kind == b"Z"
        return Frame(message, was_started, was_started and kind == b"Z")


class PostgresProxy(Proxy):
    """A proxy before the PostgreSQL server that listens on `port`."""

    def new_framing(self) -> Framing:
        return PostgresFraming()


async def _read_message(reader: StreamReader) -> tuple[bytes, bytes, bytes]:
    """Return the next message's kind, its body, and all its bytes."""
    head = await reader.readexactly(5)
    body = await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
    return head[:1], body, head + body


def _sql(kind: bytes, body: bytes) -> str:
    """Return the text of a Query, or of a Parse, in which the statement's own name comes first."""
    return body.split(b"\0")[0 if kind == b"Q" else 1].decode()
