"""Callers of the service: channels of a lease, of both APIs, with the same methods."""

from typing import Any

import grpc
import grpc.aio

import fencelock.grpc
from tests.grpc.services import LoopThread, path_of
from tests.support.helpers import DEADLINE_S


class Caller:
    """A channel of a lease, for blocking code."""

    def __init__(self, lease: Any, target: str, **more: Any) -> None:
        self.channel = fencelock.grpc.channel(lease, target, **more)

    def seal(self) -> None:
        fencelock.grpc.seal(self.channel)

    def call(self, method: str, request: bytes = b"", **more: Any) -> Any:
        return self.channel.unary_unary(path_of(method))(request, **{"timeout": DEADLINE_S} | more)

    def upload(self, method: str, *requests: bytes) -> Any:
        return self.channel.stream_unary(path_of(method))(iter(requests), timeout=DEADLINE_S)

    def download(self, method: str) -> list[bytes]:
        got: list[bytes] = []
        self.download_into(got, method)
        return got

    def download_into(self, got: list[bytes], method: str) -> None:
        got.extend(self.channel.unary_stream(path_of(method))(b"", timeout=DEADLINE_S))

    def chat(self, method: str, *requests: bytes) -> list[bytes]:
        return list(self.channel.stream_stream(path_of(method))(iter(requests), timeout=DEADLINE_S))

    def close(self) -> None:
        self.channel.close()


class AsyncCaller(Caller):
    """The same for asyncio, in a thread of its own."""

    def __init__(self, lease: Any, target: str, **more: Any) -> None:
        self.thread = LoopThread()

        async def opened() -> Any:
            return fencelock.grpc.async_channel(lease, target, **more)

        try:
            self.channel = self.thread.run(opened())
        except BaseException:
            self.thread.close()
            raise

    def seal(self) -> None:
        self.thread.run(fencelock.grpc.async_seal(self.channel))

    def call(self, method: str, request: bytes = b"", **more: Any) -> Any:
        async def called() -> Any:
            return await self.channel.unary_unary(path_of(method))(request, **{"timeout": DEADLINE_S} | more)

        return self.thread.run(called())

    def upload(self, method: str, *requests: bytes) -> Any:
        async def uploaded() -> Any:
            call = self.channel.stream_unary(path_of(method))(timeout=DEADLINE_S)
            for request in requests:
                await call.write(request)
            await call.done_writing()
            return await call

        return self.thread.run(uploaded())

    def download_into(self, got: list[bytes], method: str) -> None:
        async def downloaded() -> None:
            async for message in self.channel.unary_stream(path_of(method))(b"", timeout=DEADLINE_S):
                got.append(message)

        self.thread.run(downloaded())

    def chat(self, method: str, *requests: bytes) -> list[bytes]:
        async def chatted() -> list[bytes]:
            call = self.channel.stream_stream(path_of(method))(timeout=DEADLINE_S)
            got = []
            for request in requests:
                await call.write(request)
                got.append(await call.read())
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            return got

        return self.thread.run(chatted())

    def close(self) -> None:
        self.thread.run(self.channel.close())
        del self.channel
        self.thread.close()


CALLERS = {"channel": Caller, "async-channel": AsyncCaller}
