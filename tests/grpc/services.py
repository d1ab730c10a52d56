"""A service with a guarded SQLite file, on servers of both APIs."""

import asyncio
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

import fencelock
import fencelock.aio
import fencelock.grpc
from fencelock.grpc import sequencer
from tests.support.helpers import DEADLINE_S

SERVICE = "test.Reports"
LOCK = "nightly"
RESOURCE = "reports"
INSERT = "INSERT INTO reports VALUES (?)"
THREADS = 2
"""Of a server's pool."""
Result = TypeVar("Result")


def path_of(method: str) -> str:
    return f"/{SERVICE}/{method}"


class LoopThread:
    """An event loop in a thread, for what is asyncio's in a test that is not."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def close(self) -> None:
        self.run(self._cancel_others())
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_others(self) -> None:
        """End the tasks that gRPC leaves: the one of a stream of requests waits for more after the call has failed."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Handlers:
    """The methods of the service, as blocking code."""

    def __init__(self, url: str) -> None:
        self.guard: Any = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
        self.other: Any = fencelock.guard(url, resource="other", lock=LOCK)
        self.seen: list[tuple[str, Any]] = []
        self.may_end = threading.Event()
        """What the method `Held` waits for after its commit."""

    def _insert(self, body: bytes) -> None:
        with self.guard.transaction(sequencer()) as connection:
            connection.execute(INSERT, (body.decode(),))

    def put(self, request: bytes, context: Any) -> bytes:
        self.seen.append(("Put", context.invocation_metadata()))
        self._insert(request)
        return b"done"

    def put_all(self, requests: Iterable[bytes], _context: Any) -> bytes:
        return b"%d" % sum(1 for _ in map(self._insert, requests))

    def rows(self, _request: bytes, _context: Any) -> Iterator[bytes]:
        with self.guard.transaction(sequencer()) as connection:
            for (body,) in connection.execute("SELECT body FROM reports").fetchall():
                yield body.encode()

    def chat(self, requests: Iterable[bytes], _context: Any) -> Iterator[bytes]:
        for request in requests:
            self._insert(request)
            yield request

    def held(self, request: bytes, _context: Any) -> bytes:
        self._insert(request)
        self.seen.append(("Held", request))
        assert self.may_end.wait(DEADLINE_S)
        return b"done"

    def once(self, request: bytes, _context: Any) -> bytes:
        job = fencelock.grpc.once(request)
        with self.guard.transaction(sequencer(), once=job) as connection:
            connection.execute(INSERT, (request.decode(),))
            job.result = f"stored {request.decode()}"
        self.seen.append(("Once", request))
        assert self.may_end.wait(DEADLINE_S)
        return job.result.encode()

    def unguarded(self, request: bytes, _context: Any) -> bytes:
        self.seen.append(("Unguarded", fencelock.grpc.has_token()))
        return request

    def replay(self, request: bytes, context: Any) -> bytes:
        """Answer a call that was done before by hand, as a handler does that keeps its answers elsewhere."""
        context.set_trailing_metadata((("fencing-replayed", "?1"),))
        return request

    def leave_open(self, request: bytes, _context: Any) -> bytes:
        """Return inside of a guarded block, which something else would end after the answer."""
        self._insert(request)
        sequencer().enter_guarded(object())
        return request

    def unguarded_refusal(self, request: bytes, context: Any) -> None:
        context.abort(grpc.StatusCode[request.decode()], "said without a guard")

    def unguarded_rows(self, _request: bytes, _context: Any) -> Iterator[bytes]:
        yield b"not fenced"

    def late_guard(self, _request: bytes, _context: Any) -> Iterator[bytes]:
        yield from self.rows(b"", None)
        with self.other.transaction(sequencer()):
            raise AssertionError("this resource comes after the answer's beginning")

    def refuse(self, request: bytes, context: Any) -> None:
        self._insert(request)
        context.set_trailing_metadata((("reason", "own"),))
        context.abort(grpc.StatusCode.UNAVAILABLE if request == b"relayed" else grpc.StatusCode.NOT_FOUND, RELAYED)

    def fail(self, request: bytes, _context: Any) -> None:
        self._insert(request)
        raise RuntimeError("the handler is broken")

    def in_group(self, request: bytes, _context: Any) -> bytes:
        """Raise what a guard raises as a TaskGroup does."""
        try:
            self._insert(request)
        except fencelock.FencelockError as error:
            raise ExceptionGroup("one of several", [error]) from error
        return request


RELAYED = "failed to connect to all addresses; last error: of another service"


class AsyncHandlers(Handlers):
    """The same for asyncio."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.guard = fencelock.aio.guard(url, resource=RESOURCE, lock=LOCK)
        self.other = fencelock.aio.guard(url, resource="other", lock=LOCK)

    async def _insert(self, body: bytes) -> None:  # type: ignore[override]
        async with self.guard.transaction(sequencer()) as connection:
            connection.execute(INSERT, (body.decode(),))

    async def put(self, request: bytes, context: Any) -> bytes:  # type: ignore[override]
        self.seen.append(("Put", context.invocation_metadata()))
        await self._insert(request)
        return b"done"

    async def put_all(self, requests: Any, _context: Any) -> bytes:  # type: ignore[override]
        count = 0
        async for request in requests:
            await self._insert(request)
            count += 1
        return b"%d" % count

    async def rows(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:  # type: ignore[override]
        async with self.guard.transaction(sequencer()) as connection:
            rows = connection.execute("SELECT body FROM reports").fetchall()
        for (body,) in rows:
            yield body.encode()

    async def chat(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        while (request := await context.read()) is not grpc.aio.EOF:
            await self._insert(request)
            await context.write(request)

    async def held(self, request: bytes, _context: Any) -> bytes:  # type: ignore[override]
        await self._insert(request)
        self.seen.append(("Held", request))
        await asyncio.to_thread(self.may_end.wait, DEADLINE_S)
        return b"done"

    async def once(self, request: bytes, _context: Any) -> bytes:  # type: ignore[override]
        job = fencelock.grpc.once(request)
        async with self.guard.transaction(sequencer(), once=job) as connection:
            connection.execute(INSERT, (request.decode(),))
            job.result = f"stored {request.decode()}"
        self.seen.append(("Once", request))
        await asyncio.to_thread(self.may_end.wait, DEADLINE_S)
        return job.result.encode()

    async def unguarded(self, request: bytes, context: Any) -> bytes:  # type: ignore[override]
        return super().unguarded(request, context)

    async def leave_open(self, request: bytes, _context: Any) -> bytes:  # type: ignore[override]
        await self._insert(request)
        sequencer().enter_guarded(object())
        return request

    async def unguarded_refusal(self, request: bytes, context: Any) -> None:  # type: ignore[override]
        await context.abort(grpc.StatusCode[request.decode()], "said without a guard")

    async def unguarded_rows(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:  # type: ignore[override]
        yield b"not fenced"

    async def late_guard(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:  # type: ignore[override]
        async for row in self.rows(b"", None):
            yield row
        async with self.other.transaction(sequencer()):
            raise AssertionError("this resource comes after the answer's beginning")

    async def refuse(self, request: bytes, context: Any) -> None:  # type: ignore[override]
        await self._insert(request)
        code = grpc.StatusCode.UNAVAILABLE if request == b"relayed" else grpc.StatusCode.NOT_FOUND
        await context.abort(code, RELAYED, (("reason", "own"),))

    async def fail(self, request: bytes, _context: Any) -> None:  # type: ignore[override]
        await self._insert(request)
        raise RuntimeError("the handler is broken")

    async def in_group(self, request: bytes, _context: Any) -> bytes:  # type: ignore[override]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._insert(request))
        return request


ARITIES = {
    "unary_unary": (
        *("Put", "Held", "Once", "Unguarded", "UnguardedRefusal", "Replay", "LeaveOpen", "Refuse", "Fail", "InGroup"),
    ),
    "unary_stream": ("Rows", "UnguardedRows", "LateGuard"),
    "stream_unary": ("PutAll",),
    "stream_stream": ("Chat",),
}


def function_of(method: str) -> str:
    """Return the name of a method's function: `put_all` for PutAll."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()


def generic(handlers: Handlers) -> grpc.GenericRpcHandler:
    """Return the service's methods as gRPC takes them: bytes in, bytes out."""
    methods = {
        method: getattr(grpc, f"{arity}_rpc_method_handler")(getattr(handlers, function_of(method)))
        for arity, names in ARITIES.items()
        for method in names
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


class Service:
    """A running service: its handlers, its threads and its address."""

    def __init__(self, handlers: Handlers, pool: ThreadPoolExecutor, port: int) -> None:
        self.handlers = handlers
        self.pool = pool
        self.port = port
        self.target = f"127.0.0.1:{port}"


@contextmanager
def served(handlers: Handlers, interceptors: Iterable[Any] | None = None, **more: Any) -> Iterator[Service]:
    """Serve the handlers on a server of blocking code. `more` is for the interceptor."""
    pool = ThreadPoolExecutor(THREADS)
    ours = [fencelock.grpc.FencingInterceptor([handlers.guard], **more)]
    server = grpc.server(pool, interceptors=ours if interceptors is None else list(interceptors))
    server.add_generic_rpc_handlers((generic(handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Service(handlers, pool, port)
    finally:
        handlers.may_end.set()
        server.stop(None).wait()
        pool.shutdown()


@contextmanager
def served_async(handlers: Handlers, interceptors: Iterable[Any] | None = None, **more: Any) -> Iterator[Service]:
    """Serve the handlers, of either API, on a server of asyncio. `more` is for the interceptor."""
    thread = LoopThread()
    ours = [fencelock.grpc.AsyncFencingInterceptor([handlers.guard], **more)]

    pool = ThreadPoolExecutor(THREADS)

    async def start() -> tuple[Any, int]:
        server = grpc.aio.server(pool, interceptors=ours if interceptors is None else list(interceptors))
        server.add_generic_rpc_handlers((generic(handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    server, port = thread.run(start())
    try:
        yield Service(handlers, pool, port)
    finally:
        handlers.may_end.set()
        thread.run(server.stop(None))
        del server
        thread.close()
        pool.shutdown()


SERVERS: dict[str, Callable[..., Any]] = {
    "server": lambda url, **more: served(Handlers(url), **more),
    "async-server": lambda url, **more: served_async(AsyncHandlers(url), **more),
    "async-server-of-functions": lambda url, **more: served_async(Handlers(url), **more),
}


def bodies(path: Path) -> list[str]:
    """Return what the resource's table holds."""
    with closing(sqlite3.connect(path)) as connection:
        return [body for (body,) in connection.execute("SELECT body FROM reports")]


def two_holders(source: fencelock.Source) -> tuple[fencelock.Sequencer, fencelock.Sequencer]:
    """Return the sequencers of a holder that is frozen, and of its successor."""
    holders = []
    for _ in range(2):
        lease = source.lock(LOCK).acquire()
        assert lease is not None
        holders.append(lease.sequencer)
        source.break_lock(LOCK, reason="the holder is frozen")
    return holders[0], holders[1]
