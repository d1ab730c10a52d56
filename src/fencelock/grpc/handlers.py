"""A handler inside of its call's context: the four kinds of calls, for both APIs.

Promise: the handler runs with the call's sequencer as the current one, each step of a stream by itself. Its messages go
out after the marks. Never: a thread or a task left with another call's sequencer.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from typing import Any, NamedTuple

import grpc

from fencelock._remote.carried import CarriedSequencer
from fencelock._remote.faults import RemoteFault
from fencelock.grpc.context import FencedContext

_ARITIES = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}
"""The name of a handler's function, by whether its requests and its responses are streams."""
_END = object()


class IncomingCall(NamedTuple):
    """What the metadata of a call say: a sequencer, or why the call is refused."""

    method: str
    carried: CarriedSequencer | None = None
    refusal: RemoteFault | None = None

    def context(self, native: Any) -> FencedContext:
        """Return the context for the handler."""
        return FencedContext(native, self.method, self.carried, self.refusal)


def fenced(handler: Any, call: IncomingCall) -> Any:
    """Return the handler with a function that runs its own one inside of the call's context."""
    name = _ARITIES[handler.request_streaming, handler.response_streaming]
    behavior = getattr(handler, name)
    answer = _wrapper_of(behavior, is_stream=handler.response_streaming)(behavior, call)
    make = getattr(grpc, f"{name}_rpc_method_handler")
    return make(wraps(behavior)(answer), handler.request_deserializer, handler.response_serializer)


def _wrapper_of(behavior: Any, *, is_stream: bool) -> Callable[[Any, IncomingCall], Any]:
    """Return what wraps the function. gRPC's asyncio takes functions of both APIs, and tells them apart like this."""
    if inspect.isasyncgenfunction(behavior):
        return _async_stream
    if inspect.iscoroutinefunction(behavior):
        return _coroutine
    return _stream if is_stream else _function


def _function(behavior: Any, call: IncomingCall) -> Any:
    def answer(request: Any, native: Any) -> Any:
        context = call.context(native)
        with context.answering():
            return context.step(behavior, request, context)

    return answer


def _stream(behavior: Any, call: IncomingCall) -> Any:
    def answer(request: Any, native: Any) -> Iterator[Any]:
        context = call.context(native)
        with context.answering():
            messages = iter(context.step(behavior, request, context))
            try:
                while (message := context.step(next, messages, _END)) is not _END:
                    context.begin()
                    yield message
            finally:
                if hasattr(messages, "close"):
                    context.step(messages.close)

    return answer


def _coroutine(behavior: Any, call: IncomingCall) -> Any:
    async def answer(request: Any, native: Any) -> Any:
        context = call.context(native)
        async with context.answering_async():
            return await context.step_async(behavior, request, context)

    return answer


def _async_stream(behavior: Any, call: IncomingCall) -> Any:
    async def answer(request: Any, native: Any) -> AsyncIterator[Any]:
        context = call.context(native)
        async with context.answering_async():
            messages = behavior(request, context)
            try:
                while (message := await context.step_async(anext, messages, _END)) is not _END:
                    await context.begin_async()
                    yield message
            finally:
                await context.step_async(messages.aclose)

    return answer
