"""The framing of MySQL's protocol: where requests and replies begin and end, so that a proxy can lose exactly one.

A *request* is one command of a client, except those without a reply: COM_QUIT and COM_STMT_CLOSE. Its *reply* ends with
the command's last result, because a CALL has several; that of COM_STMT_PREPARE lists parameters and columns. The
commands that a client sends to set up a new connection are not counted.
"""

import struct
from asyncio import StreamReader
from collections import deque

from fencelock_lab.proxy import Frame, Framing, Proxy

COM_QUIT, COM_QUERY, COM_STMT_PREPARE, COM_STMT_CLOSE = 0x01, 0x03, 0x16, 0x19
OPENING = ("SET NAMES ", "COMMIT")
"""How the commands begin that a client sends to set up a new connection."""
OK, ERROR, END = 0x00, 0xFF, 0xFE
MORE_RESULTS = 0x0008
MAX_END_BYTES = 9
"""A packet that begins as the end of rows does, and is longer, is a row."""


class MySQLFraming(Framing):
    """Requests and replies of one connection."""

    def __init__(self, opening: tuple[str, ...]) -> None:
        self._opening = opening
        self._is_started = False
        self._ending = _Ending()
        self._unanswered: deque[int] = deque()

    async def request(self, reader: StreamReader) -> Frame:
        """Read a packet of the client."""
        body, packet = await _read_packet(reader)
        if not self._is_started or body[0] in (COM_QUIT, COM_STMT_CLOSE):
            return Frame(packet)
        self._unanswered.append(body[0])
        text = body[1:].decode(errors="replace") if body[0] in (COM_QUERY, COM_STMT_PREPARE) else ""
        return Frame(packet, True, True, is_counted=not text.startswith(self._opening), statement=text)

    async def reply(self, reader: StreamReader) -> Frame:
        """Read a packet of the server."""
        body, packet = await _read_packet(reader)
        if not self._is_started:
            # The handshake ends with the first packet that says OK.
            self._is_started = body[0] == OK
            return Frame(packet)
        # A server that ends an idle connection says why, unasked.
        is_prepared = bool(self._unanswered) and self._unanswered[0] == COM_STMT_PREPARE
        is_last = self._ending.is_reached_by_prepared(body) if is_prepared else self._ending.is_reached_by(body)
        if is_last and self._unanswered:
            self._unanswered.popleft()
        return Frame(packet, True, is_last)


class MySQLProxy(Proxy):
    """A proxy before the MySQL server that listens on `port`."""

    opening = OPENING

    def new_framing(self) -> Framing:
        return MySQLFraming(self.opening)


class _Ending:
    """Finds the last packet of a reply."""

    def __init__(self) -> None:
        self._ends_of_rows = 0
        self._is_in_rows = False
        self._lists_left = 0

    def is_reached_by_prepared(self, body: bytes) -> bool:
        """Note the next packet of the reply to a PREPARE, and return whether the reply ends with it."""
        if body[0] == ERROR:
            return True
        if self._lists_left == 0:
            # The numbers of columns and of parameters. A list of each follows, with an end, unless it is empty.
            self._lists_left = sum(number > 0 for number in struct.unpack_from("<HH", body, 5))
        elif body[0] == END and len(body) < MAX_END_BYTES:
            self._lists_left -= 1
        return self._lists_left == 0

    def is_reached_by(self, body: bytes) -> bool:
        """Note the next packet, and return whether the reply ends with it."""
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


async def _read_packet(reader: StreamReader) -> tuple[bytes, bytes]:
    """Return the next packet's body, and all its bytes."""
    head = await reader.readexactly(4)
    body = await reader.readexactly(int.from_bytes(head[:3], "little"))
    return body, head + body
