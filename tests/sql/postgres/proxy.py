"""A TCP proxy that knows where PostgreSQL's requests and replies begin and end, and can lose exactly one of them.

It passes every byte on as it is, but for the offer of encryption, which it declines. A *request* is what a client sends
up to a Query or Sync message; its *reply* ends with the server's ReadyForQuery: together they are one round trip. The
exchange that opens a connection is none. Requests of all connections are numbered in the order in which they begin.

The proxy runs in a thread of its own. Its methods may be called from any other one, and have taken effect when they
return.
"""

import asyncio
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from fencelock_lab.servers.server import reserve_port
from tests.helpers import DEADLINE_S

CANCEL, ENCRYPT_TLS, ENCRYPT_GSS = 80877102, 80877103, 80877104
"""What the first packet of a connection may hold in the place of a protocol's version."""

CLIENT_MESSAGES = {b"Q": "Query", b"P": "Parse", b"B": "Bind", b"D": "Describe", b"E": "Execute", b"S": "Sync"}
"""The messages of a client that are counted by name."""

COPY_MESSAGES = (b"d", b"c", b"f")
"""A client's data to a COPY, their end, their failure: parts of the request that began the COPY."""

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
REMEMBERED_REQUESTS = 10_000
ROUNDS_TO_BEGIN = 10
"""Of the loop: what was accepted at the last moment has begun by then, and can be ended."""

Kind = Literal["drop request", "drop reply", "hold request", "hold reply"]

Result = TypeVar("Result")


class Fault:
    """What shall happen to one request."""

    def __init__(self, kind: Kind, loop: asyncio.AbstractEventLoop) -> None:
        self.kind = kind
        self._loop = loop
        self._happened = threading.Event()
        self._released = asyncio.Event()

    @property
    def has_happened(self) -> bool:
        """Whether the request came, and was dropped or held."""
        return self._happened.is_set()

    def wait(self, timeout: float = DEADLINE_S) -> None:
        """Wait until it has happened."""
        assert self._happened.wait(timeout), f"no request came to {self.kind} within {timeout} s"

    def release(self) -> None:
        """Let what is held go on; before it has happened: hold nothing."""
        self._loop.call_soon_threadsafe(self._released.set)

    def strike(self) -> None:
        self._happened.set()

    async def hold(self) -> None:
        self._happened.set()
        await self._released.wait()


@dataclass
class Request:
    """One request as it passed."""

    number: int
    messages: str = ""
    """The first letters of its messages: PBDES."""
    statements: list[str] = field(default_factory=list)
    """The SQL texts in it. An execution of what was prepared earlier has none."""
    fault: Fault | None = None


class _Wire:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        for writer in (client, server):
            # `drain` then waits until every byte is with the kernel: an end loses none that came before.
            writer.transport.set_write_buffer_limits(0)
        self.is_started = False
        self.current: Request | None = None
        self.is_copying = False
        self.unanswered: deque[Request] = deque()

    def reset(self) -> None:
        """End both connections; the client sees a reset, without what was not sent to it yet."""
        with suppress(OSError):  # The client's end may have closed the socket a round of the loop ago.
            self.client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.close()

    def close(self) -> None:
        """End both connections, as the end of one side ends the other."""
        self.client.transport.abort()
        self.server.transport.abort()


class Proxy:
    """A proxy before the server that listens on `server_port` of 127.0.0.1. Use it in a `with` block."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._counts: Counter[str] = Counter()
        self._begun = 0
        self._faults: dict[int, Fault] = {}
        self._requests: deque[Request] = deque(maxlen=REMEMBERED_REQUESTS)
        self._wires: set[_Wire] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._flowing = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postgres-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._flowing.set()
        self.accept()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        self.cut()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()
        self._reserved.close()

    # What a test asks for

    def url(self, server_url: str) -> str:
        """Return the address `server_url` with this proxy in the server's place."""
        parts = urlsplit(server_url)
        place = parts.netloc.replace(f":{self._server_port}", f":{self.port}")
        assert place != parts.netloc, f"{server_url} is not the server behind this proxy"
        return urlunsplit(parts._replace(netloc=place))

    @property
    def counts(self) -> Counter[str]:
        """How many of each were seen until now: "requests", "round trips", "connections", and messages by name.

        A statement is an "Execute" or a "Query" message.
        """
        return self._call(self._counts.copy)

    @property
    def requests(self) -> list[Request]:
        """The last requests that began, oldest first."""
        return self._call(lambda: list(self._requests))

    def drop_reply(self, nth: int = 1) -> Fault:
        """Lose the reply of the nth request from now: the server ends it, the client meets a reset before any byte."""
        return self._plan("drop reply", nth)

    def drop_request(self, nth: int = 1) -> Fault:
        """Lose the nth request from now: no byte of it reaches the server, and both sides lose their connection."""
        return self._plan("drop request", nth)

    def hold_request(self, nth: int = 1) -> Fault:
        """Keep the nth request from now from the server until it is released."""
        return self._plan("hold request", nth)

    def hold_reply(self, nth: int = 1) -> Fault:
        """Keep the reply of the nth request from now from the client until it is released."""
        return self._plan("hold reply", nth)

    def cut(self) -> None:
        """Reset every connection."""
        self._call(lambda: [wire.reset() for wire in self._wires])

    def refuse(self) -> None:
        """Refuse new connections, as a port does on which nobody listens. Open ones stay."""
        if (listener := self._listener) is not None:
            self._listener = None
            self._call(lambda: self._loop.remove_reader(listener))
            listener.close()

    def accept(self) -> None:
        """Accept connections again."""
        if self._listener is None:
            listener = socket.create_server(("127.0.0.1", self.port))
            listener.setblocking(False)
            self._call(lambda: self._loop.add_reader(listener, self._accept_one, listener))
            self._listener = listener

    def freeze(self) -> None:
        """Pass nothing on, in either direction. New connections are accepted, and hear nothing."""
        self._call(self._flowing.clear)

    def thaw(self) -> None:
        """Pass on what was kept, and all that comes."""
        self._call(self._flowing.set)

    def _plan(self, kind: Kind, nth: int) -> Fault:
        assert nth >= 1, "requests are counted from 1"
        fault = Fault(kind, self._loop)

        def note() -> None:
            self._faults[self._begun + nth] = fault

        self._call(note)
        return fault

    def _call(self, function: Callable[[], Result]) -> Result:
        """Run `function` in the proxy's thread."""

        async def run() -> Result:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(DEADLINE_S)

    # The proxy's thread

    async def _end(self) -> None:
        for _ in range(ROUNDS_TO_BEGIN):
            await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # What they have aborted is closed in the loop's next round.

    def _accept_one(self, listener: socket.socket) -> None:
        # Not asyncio's own server: one that is closed just after it accepted leaves that connection open for good.
        with suppress(OSError):
            client, _ = listener.accept()
            task = self._loop.create_task(self._connected(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connected(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client)
        try:
            # Whichever side ends, the other ends too.
            with suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening = await self._read_opening(reader, writer)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        wire = _Wire(writer, server_writer)
        self._wires.add(wire)
        self._counts["connections"] += 1
        try:
            server_writer.write(opening)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_requests(wire, reader))
                group.create_task(self._pass_replies(wire, server_reader))
        except* (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._wires.discard(wire)
            wire.close()
            for request in wire.unanswered:
                # The server ended without a reply, so that one is lost in any case.
                if request.fault is not None and request.fault.kind == "drop reply":
                    request.fault.strike()

    async def _read_opening(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Return the first packet that asks for a connection, or for a cancellation; decline encryption before it."""
        while True:
            head = await reader.readexactly(8)
            length, code = struct.unpack("!ii", head)
            packet = head + await reader.readexactly(length - 8)
            await self._flowing.wait()
            if code not in (ENCRYPT_TLS, ENCRYPT_GSS):
                return packet
            writer.write(b"N")

    async def _pass_requests(self, wire: _Wire, reader: asyncio.StreamReader) -> None:
        while True:
            kind, body, message = await _read_message(reader)
            await self._flowing.wait()
            if wire.is_started and kind != b"X" and not await self._note_request(wire, kind, body):
                return
            wire.server.write(message)
            await wire.server.drain()

    async def _note_request(self, wire: _Wire, kind: bytes, body: bytes) -> bool:
        """Count a client's message; return whether the server shall see it."""
        if kind in COPY_MESSAGES:
            wire.is_copying = True
            return True
        if kind in CLIENT_MESSAGES:
            self._counts[CLIENT_MESSAGES[kind]] += 1
        was_copying, wire.is_copying = wire.is_copying, False
        if was_copying and kind == b"S":
            # It ends the data, not a request: a server in COPY did not answer the Sync before the data.
            return True
        request = wire.current or self._begin(wire)
        if wire.current is None and not await self._let_through(wire, request):
            return False
        wire.current = None if kind in (b"Q", b"S") else request
        request.messages += kind.decode()
        if kind in (b"Q", b"P"):
            request.statements.append(_sql(kind, body))
        return True

    def _begin(self, wire: _Wire) -> Request:
        self._begun += 1
        self._counts["requests"] += 1
        request = Request(self._begun, fault=self._faults.pop(self._begun, None))
        self._requests.append(request)
        wire.unanswered.append(request)
        return request

    async def _let_through(self, wire: _Wire, request: Request) -> bool:
        fault = request.fault
        if fault is not None and fault.kind == "hold request":
            await fault.hold()
        if fault is not None and fault.kind == "drop request":
            wire.reset()
            fault.strike()
            return False
        return True

    async def _pass_replies(self, wire: _Wire, reader: asyncio.StreamReader) -> None:
        while True:
            kind, _, message = await _read_message(reader)
            await self._flowing.wait()
            fault = wire.unanswered[0].fault if wire.unanswered else None
            if fault is not None and fault.kind == "hold reply" and not fault.has_happened:
                await fault.hold()
            is_lost = fault is not None and fault.kind == "drop reply"
            if not is_lost:
                wire.client.write(message)
                await wire.client.drain()
            if kind == b"Z" and wire.is_started:
                wire.unanswered.popleft()
                self._counts["round trips"] += 1
            if kind == b"Z" and is_lost:
                wire.reset()
                fault.strike()
                return
            wire.is_started = wire.is_started or kind == b"Z"


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes, bytes]:
    """Return the next message's kind, its body, and all its bytes."""
    head = await reader.readexactly(5)
    body = await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
    return head[:1], body, head + body


def _sql(kind: bytes, body: bytes) -> str:
    """Return the text of a Query, or of a Parse, in which the statement's own name comes first."""
    return body.split(b"\0")[0 if kind == b"Q" else 1].decode()
