"""A guard's connection to a store without triggers: for the caller's thread, and for a loop.

Promise: both send what the codec yields, and nothing else; the twins differ in how they wait. After a failure nothing
is pending. Never: a request repeated here that may have been executed.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fencelock.errors import GuardError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.optimistic.guard_codec import OptimisticGuardCodec

Codec = TypeVar("Codec", bound=OptimisticGuardCodec)


class OptimisticConnectionBase(Generic[Codec]):
    """What both kinds of connection share. `send` performs one step of the codec, and `end` gives back what it uses."""

    def __init__(self, codec: Codec, send: Callable[[Any], Any], end: Callable[[], object] = lambda: None) -> None:
        self.codec = codec
        self._send = send
        self._end = end

    @property
    def native(self) -> Any:
        """The object that `guard.transaction` yields."""
        return self.codec.work

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return None: an error that leaves a block is a FencelockError already, or the user's own."""
        return None

    def close(self) -> None:
        """Discard the pending writes."""
        self.codec.forget()
        self._end()


class OptimisticConnection(OptimisticConnectionBase[Codec]):
    """Answers a guard's requests, for one thread at a time."""

    def perform(self, request: Any) -> Any:
        """Answer one request; after a failure nothing is pending."""
        try:
            return run_generator(self.codec.operations(request), self._send)
        except BaseException:
            self.rollback()
            raise

    def rollback(self) -> None:
        """Discard the pending writes."""
        self.close()


class AsyncOptimisticConnection(OptimisticConnectionBase[Codec]):
    """Answers a guard's requests, for one task at a time."""

    async def perform(self, request: Any) -> Any:
        """Answer one request; after a failure nothing is pending."""
        try:
            return await run_generator_async(self.codec.operations(request), self._send)
        except BaseException:
            await self.rollback()
            raise

    async def rollback(self) -> None:
        """Discard the pending writes."""
        self.close()
