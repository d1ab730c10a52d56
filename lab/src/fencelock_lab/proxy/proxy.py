"""A TCP proxy on 127.0.0.1 before one server: it holds, delays, counts and loses what passes.

Promise: bytes arrive unchanged and in their order, or not at all. What a partition holds back arrives when it heals, as
TCP sends it again. A dropped reply is one that the server has sent: the request was carried out, and its sender does
not learn it. Requests of all connections are numbered in the order in which they begin.

The proxy runs in a thread of its own, which ends with the process. Its methods may be called from any other thread,
and have taken effect when they return.
"""

import asyncio
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Self, TypeVar

from fencelock_lab.proxy.connection import ProxiedConnection
from fencelock_lab.proxy.framing import Frame, Framing
from fencelock_lab.proxy.request import DEADLINE_S, FaultKind, Request, RequestFault
from fencelock_lab.proxy.urls import HOST, through
from fencelock_lab.proxy.weather import Direction, Weather

REMEMBERED_REQUESTS = 10_000
_RETRY_S, _QUIET_S = 0.02, 0.05
_ROUNDS_TO_BEGIN = 10
"""Rounds of the loop after which a connection that was just accepted has begun, and can be ended."""

Result = TypeVar("Result")


class Proxy:
    """A proxy before the server that listens on `port` of `host`. A context manager; or `start` and `close` it.

    For `connect_timeout_s` it waits for a server that refuses connections.
    """

    def __init__(self, port: int, host: str = HOST, *, connect_timeout_s: float = 0.0) -> None:
        self._server = (host, port)
        self._connect_timeout_s = connect_timeout_s
        # The port stays the proxy's own while it refuses connections.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind((HOST, 0))
        self.port: int = self._reserved.getsockname()[1]
        self.piece_bytes: int | None = None
        """How many bytes are passed on at a time; None: as many as came."""
        self.drip_s = 0.0
        """How long it waits after each byte of a reply."""
        self.sent: Counter[str] = Counter()
        """How many messages of each name clients have sent."""
        self._weather = Weather()
        self._counts: Counter[str] = Counter()
        self._begun = 0
        self._faults: dict[int, RequestFault] = {}
        self._requests: deque[Request] = deque(maxlen=REMEMBERED_REQUESTS)
        self._connections: dict[asyncio.Task[None], ProxiedConnection] = {}
        self._listener: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self) -> Self:
        """Accept connections."""
        self._thread.start()
        self.accept()
        return self

    def close(self) -> None:
        """End all connections, and accept no more."""
        self.refuse()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()
        self._reserved.close()

    def new_framing(self) -> Framing:
        """Return the framing of a new connection; a protocol's proxy returns its own."""
        return Framing()

    def url(self, server_url: str) -> str:
        """Return the URL with this proxy in the server's place."""
        return through(server_url, [self.port])

    # --- what has passed ----------------------------------------------------------------------------------------------
    @property
    def counts(self) -> Counter[str]:
        """How many "requests", "round trips" and "connections" there were until now, and messages of each name."""
        return self._call(lambda: self._counts + self.sent)

    @property
    def requests(self) -> list[Request]:
        """The last requests that began, oldest first."""
        return self._call(lambda: list(self._requests))

    # --- faults of single requests ------------------------------------------------------------------------------------
    def drop_reply(self, nth: int = 1) -> RequestFault:
        """Lose the reply of the nth request from now: the server ends it, the client meets a reset before any byte."""
        return self._plan("drop reply", nth)

    def drop_request(self, nth: int = 1) -> RequestFault:
        """Lose the nth request from now: no byte of it reaches the server, and both sides lose their connection."""
        return self._plan("drop request", nth)

    def hold_request(self, nth: int = 1) -> RequestFault:
        """Keep the nth request from now from the server until it is released."""
        return self._plan("hold request", nth)

    def hold_reply(self, nth: int = 1) -> RequestFault:
        """Keep the reply of the nth request from now from the client until it is released."""
        return self._plan("hold reply", nth)

    def forget_faults(self) -> None:
        """Let no request meet a fault that was planned before."""
        self._call(self._faults.clear)

    def _plan(self, kind: FaultKind, nth: int) -> RequestFault:
        assert nth >= 1, "requests are counted from 1"
        fault = RequestFault(kind, self._loop)

        def note() -> None:
            self._faults[self._begun + nth] = fault

        self._call(note)
        return fault

    # --- faults of connections ----------------------------------------------------------------------------------------
    def drop_next(self, direction: Direction) -> None:
        """Lose the next bytes that come in this direction on any connection, and reset that connection."""
        self._call(lambda: self._weather.drop_next(direction))

    def lose(self, direction: Direction) -> None:
        """Lose all that passes in this direction from now on, until the connections are cut."""
        self._call(lambda: self._weather.lose(direction))

    @property
    def lost_bytes(self) -> int:
        """How many bytes were lost since `lose`."""
        return self._weather.lost_bytes

    def is_quiet(self) -> bool:
        """Return whether something was lost and nothing more came for a moment: the sender has sent all it will."""
        lost_bytes = self.lost_bytes
        time.sleep(_QUIET_S)
        return 0 < lost_bytes == self.lost_bytes

    def cut(self) -> None:
        """Reset every connection; new ones lose nothing."""
        self._call(self._reset_all)

    def refuse(self) -> None:
        """Refuse new connections, as a port does on which nobody listens. Open ones stay."""
        if (listener := self._listener) is not None:
            self._listener = None
            self._call(lambda: self._loop.remove_reader(listener))
            listener.close()

    def accept(self) -> None:
        """Accept connections again."""
        if self._listener is None:
            listener = socket.create_server((HOST, self.port))
            listener.setblocking(False)
            self._call(lambda: self._loop.add_reader(listener, self._accept_one, listener))
            self._listener = listener

    def freeze(self, is_held: Callable[[Framing], bool] = lambda _: True) -> None:
        """Pass nothing on in either direction, of the connections that `is_held` chooses. New ones are accepted."""
        self._call(lambda: self._weather.freeze(is_held))

    def thaw(self) -> None:
        """Pass on what was held, and all that comes."""
        self._call(self._weather.thaw)

    def partition(self, seconds: float) -> None:
        """Let nothing through for so long."""
        self._call(lambda: self._weather.partition(seconds))

    def delay(self, seconds: float) -> None:
        """Hold each piece up by a tenth of this time, for all of it."""
        self._call(lambda: self._weather.delay(seconds))

    def _call(self, function: Callable[[], Result]) -> Result:
        """Run `function` in the proxy's thread."""

        async def run() -> Result:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(DEADLINE_S)

    # --- the proxy's thread -------------------------------------------------------------------------------------------
    def _reset_all(self) -> None:
        self._weather.lose(None)
        for connection in self._connections.values():
            connection.reset()

    async def _end(self) -> None:
        for _ in range(_ROUNDS_TO_BEGIN):
            await asyncio.sleep(0)
        for task, connection in self._connections.items():
            connection.reset()
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # The loop's next round closes what they have aborted.

    def _accept_one(self, listener: socket.socket) -> None:
        # Not asyncio's own server: one that is closed just after it accepted leaves that connection open for good.
        with suppress(OSError):
            client, _ = listener.accept()
            connection = ProxiedConnection(client, self.new_framing())
            task = self._loop.create_task(self._serve(connection))
            connection.task = task
            self._connections[task] = connection
            task.add_done_callback(self._connections.pop)

    async def _serve(self, connection: ProxiedConnection) -> None:
        try:
            # When one side ends, the other one is ended too.
            with suppress(EOFError, OSError, asyncio.CancelledError):
                await connection.open_client()
                await self._pass_until_end(connection)
        finally:
            connection.close()

    async def _pass_until_end(self, connection: ProxiedConnection) -> None:
        framing = connection.framing
        first = await framing.opening(*connection.client)
        await self._weather.wait(framing)
        await connection.open_server(self._server, self._connect_timeout_s, _RETRY_S)
        self._counts["connections"] += 1
        try:
            if first:
                await self._send(connection.server[1], first)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_requests(connection))
                group.create_task(self._pass_replies(connection))
        except* (EOFError, OSError):
            pass
        finally:
            connection.close()
            for request in connection.unanswered:
                # The server ended without a reply, so the reply is lost in any case.
                if request.fault is not None and request.fault.kind == "drop reply":
                    request.fault.strike()

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        size = self.piece_bytes or max(1, len(data))
        for begin in range(0, len(data), size):
            writer.write(data[begin : begin + size])
            await writer.drain()

    async def _send_reply(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        while data and self.drip_s:
            await self._send(writer, data[:1])
            data = data[1:]
            await asyncio.sleep(self.drip_s)
        await self._send(writer, data)

    def _is_dropped(self, direction: Direction, connection: ProxiedConnection) -> bool:
        """Reset the connection if the next bytes in this direction are to be lost, and return whether they are."""
        is_dropped = self._weather.takes_along(direction)
        if is_dropped:
            connection.reset()
        return is_dropped

    async def _pass_requests(self, connection: ProxiedConnection) -> None:
        reader, writer = connection.client[0], connection.server[1]
        while True:
            frame = await connection.framing.request(reader)
            await self._weather.wait(connection.framing)
            if self._is_dropped("requests", connection):
                return
            if frame.name:
                self.sent[frame.name] += 1
            if frame.is_part and not await self._note_request(connection, frame):
                return
            if not self._weather.is_lost("requests", frame):
                await self._send(writer, frame.data)

    async def _note_request(self, connection: ProxiedConnection, frame: Frame) -> bool:
        """Count a part of a request; return whether the server is to see it."""
        request = connection.current or self._begin(connection, frame)
        if connection.current is None and not await self._let_through(connection, request):
            return False
        connection.current = None if frame.is_last else request
        request.messages += frame.letter
        if frame.statement is not None:
            request.statements.append(frame.statement)
        return True

    def _begin(self, connection: ProxiedConnection, frame: Frame) -> Request:
        request = Request(0)
        if frame.is_counted:
            self._begun += 1
            self._counts["requests"] += 1
            request = Request(self._begun, fault=self._faults.pop(self._begun, None))
            self._requests.append(request)
        connection.unanswered.append(request)
        return request

    async def _let_through(self, connection: ProxiedConnection, request: Request) -> bool:
        fault = request.fault
        if fault is not None and fault.kind == "hold request":
            await fault.hold()
        if fault is not None and fault.kind == "drop request":
            connection.reset()
            fault.strike()
            return False
        return True

    async def _pass_replies(self, connection: ProxiedConnection) -> None:
        reader, writer = connection.server[0], connection.client[1]
        while True:
            frame = await connection.framing.reply(reader)
            await self._weather.wait(connection.framing)
            if self._is_dropped("replies", connection):
                return
            fault = connection.unanswered[0].fault if connection.unanswered and frame.is_part else None
            if fault is not None and fault.kind == "hold reply" and not fault.has_happened:
                await fault.hold()
            is_dropped = fault is not None and fault.kind == "drop reply"
            if not is_dropped and not self._weather.is_lost("replies", frame):
                await self._send_reply(writer, frame.data)
            if frame.is_last and connection.unanswered and connection.unanswered.popleft().number:
                self._counts["round trips"] += 1
            if frame.is_last and is_dropped:
                assert fault is not None
                connection.reset()
                fault.strike()
                return
