"""Channels of a lease for asyncio.

Promise: as for blocking code. gRPC's asyncio takes one interceptor for each kind of call.
"""

from collections.abc import AsyncIterator, Generator, Sequence
from typing import Any

import grpc
import grpc.aio

from fencelock._api.credentials import LeaseLike
from fencelock.grpc.clients.rules import CallRules, OwnSeal, key_in
from fencelock.grpc.clients.targets import Options, open_channel
from fencelock.grpc.method_and_metadata import SEAL_METHOD


def async_channel(
    lease: LeaseLike,
    target: str,
    credentials: grpc.ChannelCredentials | None = None,
    *,
    options: Options = (),
    compression: grpc.Compression | None = None,
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
    insecure: bool = False,
    independent: bool = False,
) -> grpc.aio.Channel:
    """Open a channel of `grpc.aio` as `channel` does. `interceptors` are the caller's own, outside of the lease's.

    Its calls raise what those of `channel` raise, and `grpc.aio.AioRpcError` for a status of the handler's own. `async
    with` closes it.
    """
    sealing = Sealing(CallRules(lease, target, options, independent=independent))
    ours = [kind(sealing) for kind in (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)]
    more = {"compression": compression, "interceptors": [*interceptors, *ours]}
    channel: grpc.aio.Channel = open_channel(grpc.aio, target, credentials, options, insecure=insecure, **more)
    sealing.call = channel.unary_unary(SEAL_METHOD)
    return channel


async def async_seal(channel: grpc.aio.Channel) -> None:
    """Seal a service before its first call, as `seal` does. `channel` is of `fencelock.grpc.async_channel`."""
    await channel.unary_unary(SEAL_METHOD)(b"")


class Sealing:
    """The seal before the first call of a channel, and the channel's rules."""

    def __init__(self, rules: CallRules) -> None:
        self.rules = rules
        self.call: Any = None

    async def first(self, details: Any) -> None:
        """Seal the service before the first call, unless another task or channel of the lease does."""
        if not self.rules.is_sealed():
            async with self.rules.turn(details.timeout):
                # Asked again: another task may have sealed the service while this one waited for its turn.
                if not self.rules.is_sealed():
                    more = {"credentials": details.credentials, "wait_for_ready": details.wait_for_ready}
                    await self.call(OwnSeal(), timeout=details.timeout, **more)


class _Interceptor:
    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing

    async def _begin(
        self, continuation: Any, details: Any, request: Any, *, is_awaited: bool = False
    ) -> "AsyncFencedCall":
        rules = self._sealing.rules
        if details.method not in (SEAL_METHOD, SEAL_METHOD.encode()):
            await self._sealing.first(details)
            return await self._send(continuation, details, request, is_seal=False, is_awaited=is_awaited)
        rules.check_may_seal()
        if isinstance(request, OwnSeal):
            return await self._send(continuation, details, b"", is_seal=True, is_awaited=True)
        async with rules.turn(details.timeout):
            return await self._send(continuation, details, request, is_seal=True, is_awaited=True)

    async def _send(
        self, continuation: Any, details: Any, request: Any, *, is_seal: bool, is_awaited: bool
    ) -> "AsyncFencedCall":
        rules = self._sealing.rules
        method = details.method if isinstance(details.method, str) else details.method.decode()
        with rules.sending(details.metadata) as metadata:
            native = await continuation(_with_metadata(details, metadata), request)
            call = AsyncFencedCall(native, rules, key_in(metadata), method, is_seal=is_seal)
            if is_awaited:
                await call
        return call


def _with_metadata(details: Any, metadata: list[tuple[str, str | bytes]]) -> grpc.aio.ClientCallDetails:
    """Return the details of a call with other metadata; an interceptor of the caller's may have made them its way."""
    sent = grpc.aio.Metadata(*metadata)
    return grpc.aio.ClientCallDetails(
        details.method, details.timeout, sent, details.credentials, details.wait_for_ready
    )


class AsyncFencedCall:
    """A call as gRPC returns it, whose response and messages are judged before they are given out."""

    def __init__(self, native: Any, rules: CallRules, key: str | None, method: str, *, is_seal: bool) -> None:
        self.native = native
        self._rules = rules
        self._key = key
        self._method = method
        self._is_seal = is_seal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.response().__await__()

    async def response(self) -> Any:
        """Return the response; raise what the call's status means."""
        try:
            response = await self.native
        except grpc.aio.AioRpcError as error:
            raise self._rules.error(error, key=self._key, method=self._method, is_seal=self._is_seal) from error
        await self._check_end()
        return response

    async def messages(self) -> AsyncIterator[Any]:
        """Yield the messages of a stream, the first one after the marks that came before it were seen."""
        is_believed = False
        messages = aiter(self.native)
        while True:
            try:
                message = await anext(messages)
            except StopAsyncIteration:
                break
            except grpc.aio.AioRpcError as error:
                raise self._rules.error(error, key=self._key, method=self._method, is_seal=False) from error
            if not is_believed:
                await self._check_begin()
                is_believed = True
            yield message
        await self._check_end()

    async def _check_begin(self) -> None:
        try:
            self._rules.check_answer(await self.native.initial_metadata(), method=self._method, is_seal=False)
        except BaseException:
            # Nobody reads the rest of a stream whose beginning is not believed.
            self.native.cancel()
            raise

    async def _check_end(self) -> None:
        received = (await self.native.initial_metadata(), await self.native.trailing_metadata())
        self._rules.check_answer(*received, method=self._method, is_seal=self._is_seal)


class _UnaryUnary(_Interceptor, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return (await self._begin(continuation, client_call_details, request, is_awaited=True)).native


class _UnaryStream(_Interceptor, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return (await self._begin(continuation, client_call_details, request)).messages()


class _StreamUnary(_Interceptor, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        # Not awaited here: the caller may have to write its requests first.
        return await self._begin(continuation, client_call_details, request_iterator)


class _StreamStream(_Interceptor, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return (await self._begin(continuation, client_call_details, request_iterator)).messages()
