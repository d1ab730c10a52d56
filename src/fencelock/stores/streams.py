"""How a connection of an event loop ends at once: asyncio's own ways wait for a loop that may be closed, or a parent's.

Promise: neither function waits or raises. Never: a loop of the parent touched in a forked child.
"""

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any


def abort(writer: asyncio.StreamWriter, loop: asyncio.AbstractEventLoop) -> None:
    """Close a connection of this loop without waiting, also when the loop is closed."""
    with suppress(Exception):
        writer.transport.abort()
    if loop.is_closed():
        _end_without_loop(writer.transport)


def drop(writer: asyncio.StreamWriter) -> None:
    """Close only the descriptor, in a forked child: the transport and the loop are the parent's."""
    os.close(socket_of(writer).detach())


def socket_of(writer: asyncio.StreamWriter) -> socket.socket:
    """Return the socket itself; asyncio wraps it in a TransportSocket."""
    wrapped = writer.get_extra_info("socket")
    return getattr(wrapped, "_sock", wrapped)  # type: ignore[no-any-return]


def _end_without_loop(transport: Any) -> None:
    """Close the socket of a closing transport whose loop no longer runs its callbacks."""
    inner = vars(getattr(transport, "_ssl_protocol", transport)).get("_transport", transport)
    with suppress(Exception):
        inner._call_connection_lost(None)  # noqa: SLF001 - a closed loop offers no public way
