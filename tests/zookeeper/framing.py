"""The framing of ZooKeeper's protocol: where requests and replies begin and end, so that a proxy can lose just one.

Every message is a length of four bytes, followed by that many bytes. The first message of each side opens the session.
Every later request begins with its number and its kind, every reply with the number. Pings, logins and watch events
have negative numbers, and no fault hits them. Pings are not counted.
"""

import struct
from asyncio import StreamReader

from fencelock_lab.proxy import Frame, Framing, Proxy

CREATE, DELETE, EXISTS, GET, SET, CHILDREN, SYNC, MULTI, CREATE2 = 1, 2, 3, 4, 5, 8, 9, 14, 15
AUTH, CLOSE = 100, -11
PING = -2
NAMES = {
    CREATE: "create", DELETE: "delete", EXISTS: "exists", GET: "get", SET: "set", CHILDREN: "get_children",
    SYNC: "sync", MULTI: "multi", CREATE2: "create", AUTH: "auth", CLOSE: "close",
}  # fmt: skip


class ZooKeeperFraming(Framing):
    """Requests and replies of one session."""

    def __init__(self) -> None:
        self._has_request = False
        self._has_reply = False

    async def request(self, reader: StreamReader) -> Frame:
        """Read a message of the client."""
        message = await _read_message(reader)
        if not self._has_request:
            self._has_request = True
            return Frame(message)
        number, kind = struct.unpack_from(">ii", message, 4)
        if number == PING:
            return Frame(message)
        is_part = number >= 0
        return Frame(message, is_part, is_part, name=NAMES.get(kind, str(kind)))

    async def reply(self, reader: StreamReader) -> Frame:
        """Read a message of the server."""
        message = await _read_message(reader)
        if not self._has_reply:
            self._has_reply = True
            return Frame(message)
        (number,) = struct.unpack_from(">i", message, 4)
        return Frame(message, number >= 0, number >= 0)


class ZooKeeperProxy(Proxy):
    """A proxy before the ZooKeeper server that listens on `port`."""

    def new_framing(self) -> Framing:
        return ZooKeeperFraming()


async def _read_message(reader: StreamReader) -> bytes:
    """Return the next message with its length."""
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big"))
