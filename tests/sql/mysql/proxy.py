"""A TCP proxy that knows where MySQL's requests and replies begin and end, and can lose exactly one of them.

It is PostgreSQL's, but for the wire: a *request* is one command of a client, but for the one by which it says goodbye;
its *reply* ends with the last result of it: a CALL has several. What a client says of itself when it has connected
belongs to the exchange that opens the connection, and is none.
"""

import asyncio
import struct

from tests.sql.postgres.proxy import Proxy, Request, _Wire

COM_QUIT, COM_QUERY = 1, 3
OPENING = ("SET NAMES ", "COMMIT")
"""How the commands begin by which a client settles in."""
OK, ERROR, END = 0x00, 0xFF, 0xFE
MORE_RESULTS = 0x0008
MAX_END_BYTES = 9
"""A packet that begins as the end of rows does, and is longer, is a row."""


class MySQLProxy(Proxy):
    """A proxy before the MySQL server that listens on `server_port` of 127.0.0.1. Use it in a `with` block."""

    opening = OPENING

    async def _read_opening(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Return nothing: here the server speaks first."""
        return b""

    async def _pass_requests(self, wire: _Wire, reader: asyncio.StreamReader) -> None:
        while True:
            body, packet = await _read_packet(reader)
            await self._flowing.wait()
            if wire.is_started and body[0] != COM_QUIT and not await self._note_command(wire, body):
                return
            wire.server.write(packet)
            await wire.server.drain()

    async def _note_command(self, wire: _Wire, body: bytes) -> bool:
        """Count a client's command; return whether the server shall see it."""
        text = body[1:].decode(errors="replace") if body[0] == COM_QUERY else ""
        if text.startswith(self.opening):
            wire.unanswered.append(Request(0))
            return True
        request = self._begin(wire)
        request.statements.append(text)
        return await self._let_through(wire, request)

    async def _pass_replies(self, wire: _Wire, reader: asyncio.StreamReader) -> None:
        ending = _Ending()
        while True:
            body, packet = await _read_packet(reader)
            await self._flowing.wait()
            fault = wire.unanswered[0].fault if wire.unanswered else None
            if fault is not None and fault.kind == "hold reply" and not fault.has_happened:
                await fault.hold()
            is_lost = fault is not None and fault.kind == "drop reply"
            if not is_lost:
                wire.client.write(packet)
                await wire.client.drain()
            if not wire.is_started:
                # The handshake ends with the first packet that says OK.
                wire.is_started = body[0] == OK
                continue
            if not ending.is_reached_by(body):
                continue
            if wire.unanswered.popleft().number:
                self._counts["round trips"] += 1
            if is_lost:
                wire.reset()
                assert fault is not None
                fault.strike()
                return


class _Ending:
    """Finds the last packet of a reply."""

    def __init__(self) -> None:
        self._ends_of_rows = 0
        self._is_in_rows = False

    def is_reached_by(self, body: bytes) -> bool:
        """Take up the next packet, and tell whether the reply ends with it."""
        if body[0] == ERROR:
            self._is_in_rows = False
            return True
        if not self._is_in_rows:
            if body[0] == OK:
                return not _status_of_ok(body) & MORE_RESULTS
            self._is_in_rows, self._ends_of_rows = True, 0
            return False
        if body[0] != END or len(body) >= MAX_END_BYTES:
            return False
        # One ends the columns, the other the rows.
        self._ends_of_rows += 1
        if self._ends_of_rows == 1:
            return False
        self._is_in_rows = False
        return not struct.unpack_from("<H", body, 3)[0] & MORE_RESULTS


def _status_of_ok(body: bytes) -> int:
    """Return the server's status, which two numbers of various lengths precede."""
    position = 1
    for _ in range(2):
        position += {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(body[position], 1)
    status: int = struct.unpack_from("<H", body, position)[0]
    return status


async def _read_packet(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the next packet's body, and all its bytes."""
    head = await reader.readexactly(4)
    body = await reader.readexactly(int.from_bytes(head[:3], "little"))
    return body, head + body
