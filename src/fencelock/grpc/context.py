"""One call to a service: the context that its handler gets, and what is told to the client besides the answer.

Promise: the client is told of each mark that has admitted the call, before the first message of a stream or at the end
of the call, also with an error. An error of a guard ends the call with a status that says which one it is. Inside the
handler, and in each step of its stream, `sequencer()` is this call's. Never: a token shown to the handler's metadata.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import grpc

from fencelock._remote.carried import CarriedSequencer
from fencelock._remote.current import carrying
from fencelock._remote.faults import RefusedRequestError, RemoteFault, fault_of
from fencelock._remote.fields import MARK_FIELD, TOKEN_FIELD, encode_marks
from fencelock.errors import ConfigError
from fencelock.grpc.method_and_metadata import Metadata
from fencelock.grpc.statuses import encode_status

Result = TypeVar("Result")
_FIRST_SERVER_ERROR = 500
_CURRENT: ContextVar["FencedContext"] = ContextVar("fencelock_grpc_call")
logger = logging.getLogger("fencelock")


class FencedContext:
    """gRPC's own context of a call, which adds the marks to what is sent. Handlers use it as they use that one."""

    def __init__(self, native: Any, method: str, carried: CarriedSequencer | None, refusal: RemoteFault | None) -> None:
        self.method = method
        self._native = native
        self._carried = carried
        self._refusal = refusal
        self._trailing: Metadata = ()
        self._has_begun = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    # --- what the handler calls ---------------------------------------------------------------------------------------
    def invocation_metadata(self) -> Metadata:
        """Return the metadata of the call without its token, which handlers may log."""
        return tuple(pair for pair in self._native.invocation_metadata() or () if pair[0] != TOKEN_FIELD)

    def send_initial_metadata(self, initial_metadata: Iterable[tuple[str, str | bytes]]) -> Any:
        """Send the metadata, and the marks that have admitted the call so far."""
        self._has_begun = True
        return self._native.send_initial_metadata((*initial_metadata, *self._marks(is_success=True)))

    def set_trailing_metadata(self, trailing_metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Set the metadata that are sent at the end of the call, beside the marks."""
        self._trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> Metadata:
        """Return the metadata that the handler has set."""
        return self._trailing

    def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Iterable[tuple[str, str | bytes]] = ()
    ) -> Any:
        """End the call with an error; for asyncio, to be awaited."""
        self._trailing = tuple(trailing_metadata) or self._trailing
        self.end(is_success=False)
        return self._native.abort(code, details)

    def abort_with_status(self, status: grpc.Status) -> Any:
        """End the call with a status; for asyncio, to be awaited."""
        return self.abort(status.code, status.details, status.trailing_metadata or ())

    async def write(self, message: Any) -> None:
        """Send one message of a stream, the first one after the marks."""
        await self.begin_async()
        await self._native.write(message)

    # --- what the interceptor calls -----------------------------------------------------------------------------------
    def step(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call something of the handler's, with this call's sequencer as the current one."""
        before = _CURRENT.set(self)
        try:
            with carrying(self._carried):
                return work(*arguments)
        finally:
            _CURRENT.reset(before)

    async def step_async(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Call something of the handler's and await it, with this call's sequencer as the current one."""
        before = _CURRENT.set(self)
        try:
            with carrying(self._carried):
                return await work(*arguments)
        finally:
            _CURRENT.reset(before)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A block that runs the handler, and ends the call with a status if a guard refuses it."""
        try:
            self._check()
            yield
            self._check_end()
        except BaseException as error:
            if (status := self._status_of(error)) is None:
                self.end(is_success=False)
                raise
            # gRPC's own `abort` always raises: the line below is for calls that went well.
            self.abort(*status)
        self.end(is_success=True)

    @asynccontextmanager
    async def answering_async(self) -> AsyncIterator[None]:
        """The same for a handler of asyncio."""
        try:
            self._check()
            yield
            self._check_end()
        except BaseException as error:
            if (status := self._status_of(error)) is None:
                self.end(is_success=False)
                raise
            # gRPC's own `abort` always raises: the line below is for calls that went well.
            await self.abort(*status)
        self.end(is_success=True)

    def begin(self) -> Any:
        """Tell the marks before the first message of a stream."""
        return None if self._has_begun else self.send_initial_metadata(())

    async def begin_async(self) -> None:
        """Tell the marks before the first message of a stream."""
        if inspect.isawaitable(sending := self.begin()):
            await sending

    def end(self, *, is_success: bool) -> None:
        """Tell the marks at the end of the call."""
        self._native.set_trailing_metadata((*self._trailing, *self._marks(is_success=is_success)))

    def _check(self) -> None:
        if self._refusal is not None:
            raise RefusedRequestError(self._refusal)

    def _check_end(self) -> None:
        if self._carried is not None:
            self._carried.check_no_block_is_open()

    def _marks(self, *, is_success: bool) -> Metadata:
        marks = self._carried.begin_answer(is_success=is_success) if self._carried is not None else ()
        return ((MARK_FIELD, encode_marks(marks)),) if marks else ()

    def _status_of(self, error: BaseException) -> tuple[grpc.StatusCode, str, Metadata] | None:
        """Return the status that the client is told of an error; None if it is not about the call."""
        fault = fault_of(error, self._carried)
        if fault is None:
            return None
        if fault.status >= _FIRST_SERVER_ERROR:
            logger.error("%s ends with %s", self.method, fault.kind, exc_info=error)
        code, text, details = encode_status(fault)
        return code, text, (*self._trailing, details)


def current_call() -> FencedContext:
    """Return the call that is being answered; ConfigError outside of one that an interceptor of fencelock has seen."""
    if (call := _CURRENT.get(None)) is None:
        raise ConfigError("no call is being answered here: give the server fencelock's interceptor")
    return call


grpc.ServicerContext.register(FencedContext)
