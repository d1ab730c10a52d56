"""A guard's own connection to a server, whichever client it has: what the stores' connections do alike.

Promise: a connection is opened, or taken from the idle ones, by its first request; anything but success of a request
leaves no transaction open; a block has the connection until its end is asked for. Never: a transaction ended by another
process than the one that began it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

from fencelock.errors import FencelockError, GuardError, UnsupportedError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.protocol.guard_requests import Finish, Open
from fencelock.stores.errors import raise_mapped


class BlockConnection(Protocol):
    """A connection that is lent to blocks."""

    @property
    def closed(self) -> bool:
        """Whether it is none any more."""

    def give_to_block(self) -> None:
        """Hand the open transaction over to a block."""

    def take_back(self) -> None:
        """Have it back."""

    def problem(self) -> GuardError | None:
        """Return why the block, which ended well, cannot be committed."""


class GuardCodec(Protocol):
    """What is said for each request."""

    def operations(self, request: Any) -> Generator[Any, Any, Any]:
        """Yield what goes in one trip each, and return the reply."""


Native = TypeVar("Native", bound=BlockConnection)
AnyCodec = TypeVar("AnyCodec", bound=GuardCodec)


class GuardConnectionBase(ABC, Generic[Native, AnyCodec]):
    """What both kinds of connection know of their state."""

    def __init__(
        self,
        speech: AnyCodec,
        take: Callable[[], Any],
        give_back: Callable[[Native], None],
        is_ours: Callable[[Any], bool],
    ) -> None:
        self._codec = speech
        self._take = take
        self._give_back = give_back
        self._is_ours = is_ours
        self._native: Native | None = None

    @property
    def native(self) -> Native:
        """The connection that `guard.transaction` yields."""
        assert self._native is not None, "a request comes first"
        return self._native

    def _check(self, request: Any) -> None:
        """Take the connection back before a block's end, and raise what keeps it from being committed."""
        native = self._native
        if not isinstance(request, Finish) or native is None:
            return
        if not self._is_ours(native) and not native.closed:
            raise UnsupportedError(
                "the connection of a guarded transaction was inherited by fork: only the process that opened it ends it"
            )
        native.take_back()
        if (problem := native.problem()) is not None:
            raise problem

    def _after(self, request: Any) -> None:
        if isinstance(request, Open):
            self.native.give_to_block()

    @abstractmethod
    def _meaning(self, error: BaseException, request: Any) -> FencelockError | None:
        """Return what the error of a request means; None: it is as it should be."""


class BlockingGuardConnection(GuardConnectionBase[Native, AnyCodec]):
    """A synchronous connection. One thread at a time; any thread may be the next."""

    def perform(self, request: Any) -> Any:
        """Answer one request; anything but success leaves no transaction open."""
        try:
            self._check(request)
            reply = run_generator(self._codec.operations(request), self._exchanged)
            self._after(request)
        except BaseException as error:
            self.rollback()
            raise_mapped(self._meaning(error, request), error)
            raise
        return reply

    @abstractmethod
    def _exchanged(self, said: Any) -> Any:
        """Say one thing, and return what was answered."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo the open transaction, if there is one; never raises."""


class AsyncioGuardConnection(GuardConnectionBase[Native, AnyCodec]):
    """An asynchronous connection, for one task at a time."""

    async def perform(self, request: Any) -> Any:
        """Answer one request; anything but success leaves no transaction open."""
        try:
            self._check(request)
            reply = await run_generator_async(self._codec.operations(request), self._exchanged)
            self._after(request)
        except BaseException as error:
            await self._undo(error)
            raise_mapped(self._meaning(error, request), error)
            raise
        return reply

    @abstractmethod
    async def _exchanged(self, said: Any) -> Any:
        """Say one thing, and return what was answered."""

    async def _undo(self, _: BaseException) -> None:
        """Leave no transaction open after an error."""
        await self.rollback()

    @abstractmethod
    async def rollback(self) -> None:
        """Undo the open transaction, if there is one; never raises an Exception."""
