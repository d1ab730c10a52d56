"""Every kind of call carries the token to the guard in its handler, which admits or refuses it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

import fencelock
from fencelock.errors import ConfigError, StaleTokenError
from fencelock.grpc import sequencer
from tests.grpc.callers import Caller
from tests.grpc.services import LOCK, RESOURCE, SERVERS, THREADS, Service, bodies, path_of
from tests.support.helpers import wait_until_async

KINDS: dict[str, Callable[[Caller], object]] = {
    "unary": lambda caller: caller.call("Put", b"late"),
    "client-stream": lambda caller: caller.upload("PutAll", b"late", b"later"),
    "server-stream": lambda caller: caller.download("Rows"),
    "both-streams": lambda caller: caller.chat("Chat", b"late"),
    "task-group": lambda caller: caller.call("InGroup", b"late"),
}


def outranked(source: fencelock.Source, lease: fencelock.Lease, data: Path) -> int:
    """Have another holder seal the resource; return its token."""
    source.break_lock(LOCK, reason="the holder is frozen")
    newer = source.lock(LOCK).acquire()
    assert newer is not None
    fencelock.guard(f"sqlite:///{data}", resource=RESOURCE, lock=LOCK).seal(newer)
    assert newer.token > lease.token
    return newer.token


@pytest.mark.parametrize("service", SERVERS, indirect=True)
def test_each_kind_of_call_is_admitted(caller: Caller, data: Path):
    assert caller.call("Put", b"1") == b"done"
    assert caller.upload("PutAll", b"2", b"3") == b"2"
    assert caller.chat("Chat", b"4", b"5") == [b"4", b"5"]
    assert caller.download("Rows") == [b"1", b"2", b"3", b"4", b"5"]
    assert bodies(data) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("service", SERVERS, indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stale_token_is_refused(
    caller: Caller, kind: str, source: fencelock.Source, lease: fencelock.Lease, data: Path
):
    caller.call("Put", b"in time")
    mark = outranked(source, lease, data)
    with pytest.raises(StaleTokenError) as caught:
        KINDS[kind](caller)
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (lease.token, mark, RESOURCE)
    assert bodies(data) == ["in time"]


@pytest.mark.parametrize("service", SERVERS, indirect=True)
def test_a_thread_keeps_no_sequencer_of_an_earlier_call(lease: fencelock.Lease, service: Service):
    caller = Caller(lease, service.target)
    for kind in KINDS.values():
        kind(caller)
    caller.close()
    for _ in range(THREADS):
        with pytest.raises(ConfigError, match="no request is being answered"):
            service.pool.submit(sequencer).result()


def test_asyncio_has_further_forms_of_calls(lease: fencelock.Lease, service: Service):
    async def call_in_all_forms() -> None:
        async with fencelock.grpc.async_channel(lease, service.target) as channel:
            assert await channel.stream_unary(path_of("PutAll"))(iter([b"1", b"2"])) == b"2"
            chat = channel.stream_stream(path_of("Chat"))(iter([b"3"]))
            assert [message async for message in chat] == [b"3"]
            assert await chat.code() is grpc.StatusCode.OK
            rows = channel.unary_stream(path_of("Rows"))(b"")
            assert [await rows.read() for _ in range(4)] == [b"1", b"2", b"3", grpc.aio.EOF]
            put = channel.unary_unary(path_of("Put"))(b"4")
            assert "fencing-mark" in dict(await put.trailing_metadata())

    asyncio.run(call_in_all_forms())


def test_a_cancelled_task_is_cancelled(lease: fencelock.Lease, service: Service):
    async def cancel() -> None:
        async with fencelock.grpc.async_channel(lease, service.target) as channel:
            call = channel.unary_unary(path_of("Held"))(b"1")
            await wait_until_async(lambda: service.handlers.seen)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(cancel())
    service.handlers.may_end.set()
    lease.release()


class Noting(grpc.aio.UnaryUnaryClientInterceptor):
    """A caller's own interceptor, which makes the details of a call in its way."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        self.seen += [key for key, _ in client_call_details.metadata or ()]
        fields = {name: getattr(client_call_details, name) for name in client_call_details._fields}
        return await continuation(SimpleNamespace(**fields | {"metadata": (("x-noted", "1"),)}), request)


def test_a_callers_own_interceptors_do_not_see_the_token(lease: fencelock.Lease, service: Service):
    noting = Noting()

    async def call() -> None:
        async with fencelock.grpc.async_channel(lease, service.target, interceptors=[noting]) as channel:
            assert await channel.unary_unary(path_of("Put"))(b"1", metadata=(("x-own", "1"),)) == b"done"

    asyncio.run(call())
    assert noting.seen == ["x-own"]
    ((_, metadata),) = service.handlers.seen
    assert "x-noted" in [pair[0] for pair in metadata]
