"""A call that gRPC's own threads serve, while its caller does something else or a loop runs.

Promise: nobody waits for it without a bound, even if those threads have died. Then its channel is discarded.
"""

import asyncio
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc

from fencelock._threads import do_nothing
from fencelock.stores.etcd.connection.channels import EtcdAttempt, EtcdChannel, EtcdChannels
from fencelock.stores.etcd.connection.forks import GATE
from fencelock.stores.helper_threads import in_helper_thread

if TYPE_CHECKING:
    from collections.abc import Callable

LATE_S = 1.0
"""How much later than its timeout the end of a call in the background may be told."""


class EtcdCallError(grpc.RpcError):  # type: ignore[misc]
    """How a call in the background ended without an answer. gRPC's own error is the call, and takes the call's lock."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        """Return the status, as gRPC's errors do."""
        return self._code

    def details(self) -> str:
        """Return what the server, or gRPC, said of it."""
        return self._details


class EtcdBegunCall:
    """A call in the background, which gRPC's threads serve.

    Promise: nobody waits for it without a bound, even if those threads have died. Then its channel is discarded.
    """

    def __init__(self, channels: EtcdChannels, attempt: EtcdAttempt) -> None:
        self._channels = channels
        self._request_timeout_s = attempt.request_timeout_s
        self._answer: Any = None
        self._failure: tuple[grpc.StatusCode, str] | None = None
        self.is_over = False
        self._notify: Callable[[], object] = do_nothing
        in_helper_thread(partial(self._begin, attempt))

    def _begin(self, attempt: EtcdAttempt) -> None:
        self._under_way = GATE.enter()
        try:
            self._channel, self._future = self._channels.begin(attempt.member, lambda channel: _begin(channel, attempt))
        except BaseException:
            GATE.leave(self._under_way)
            raise
        # Keeps this object, and with it the channel, until the answer.
        self._future.add_done_callback(self._end)

    def _end(self, future: Any) -> None:
        """Take the answer; called in a thread of gRPC's."""
        if (code := future.code()) is grpc.StatusCode.OK:
            self._answer = future.result(0)
        else:
            self._failure = code, future.details()
        GATE.leave(self._under_way)
        # In this order: a waiter sets `_notify` first, and then looks whether the call is over.
        self.is_over = True
        self._notify()

    @property
    def error(self) -> EtcdCallError | None:
        """Why a call that is over has no answer. Made anew, because a raised error would keep this object."""
        return None if self._failure is None else EtcdCallError(*self._failure)

    def result(self) -> Any:
        """Wait for the answer, and return it; a grpc.RpcError if there is none."""
        answered: SimpleQueue[None] = SimpleQueue()
        self._notify = partial(answered.put, None)
        if not self.is_over:
            try:
                answered.get(timeout=self._request_timeout_s + LATE_S)
            except Empty:
                self._give_up()
        return self._result()

    async def result_async(self) -> Any:
        """The same on the running loop; a cancelled task cancels the call."""
        answered = asyncio.Event()
        self._notify = partial(_set_answered, asyncio.get_running_loop(), answered)
        if not self.is_over:
            try:
                async with asyncio.timeout(self._request_timeout_s + LATE_S):
                    await answered.wait()
            except TimeoutError:
                self._give_up()
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self._result()

    def cancel(self) -> None:
        """End the call, without waiting for that."""
        # In a helper thread: a signal handler that raises inside gRPC would leave a lock of its channel taken.
        in_helper_thread(self._future.cancel)

    def _result(self) -> Any:
        if self._failure is not None:
            raise EtcdCallError(*self._failure)
        return self._answer

    def _give_up(self) -> None:
        self._failure = grpc.StatusCode.CANCELLED, "no thread of gRPC's has served the call"
        self.cancel()
        # Never closed: `close` would wait for the thread that has not served this call.
        self._channel.keep()
        self._channels.discard(self._channel)
        GATE.leave(self._under_way)


def _begin(channel: EtcdChannel, attempt: EtcdAttempt) -> Any:
    call = channel.callable(attempt.method)
    return call.future(attempt.request, timeout=attempt.request_timeout_s, metadata=attempt.metadata)


def _set_answered(loop: asyncio.AbstractEventLoop, answered: asyncio.Event) -> None:
    """Wake a loop that waits for an answer; a loop that was closed meanwhile does not wait."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(answered.set)
