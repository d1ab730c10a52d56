"""What the two SQL guards share: the codec's base, their own connections, and those of callers and frameworks.

Promise: the guard opens a connection of its own, or takes an idle one, with the first request. A failed request leaves
no transaction open, and a block has the connection until its end is requested. The transaction of a caller or a
framework is only used: never begun, committed or rolled back.
Never ends a transaction in another process than the one that began it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from fencelock.errors import FencelockError, GuardError, UnsupportedError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.protocol.guard_requests import Begin, Finish, Open
from fencelock.stores.errors import GUARD_PART, check_schema_number, raise_mapped

SCHEMA_NUMBER = 3
UNKNOWN_MS = 30_000
"""The idle limit of a guarded transaction whose lease's time left is unknown here: a lease's default ttl."""


class GuardCodecBase:
    """Encodes each request of `protocol/guard_requests.py` as a generator of round trips."""

    ENCODERS: ClassVar[dict[type, Callable[[Any, Any], Generator[Any, Any, Any]]]]

    def operations(self, request: Any) -> Generator[Any, Any, Any]:
        """Return a generator that yields each round trip, is sent its answer, and returns the reply."""
        return self.ENCODERS[type(request)](self, request)


def check_guard_schema(rows: Sequence[Sequence[Any]]) -> None:
    """Raise SchemaError unless the database has the guard's schema of this version: its number is the first value."""
    check_schema_number("the database", GUARD_PART, rows[0][0] if rows else None, SCHEMA_NUMBER)


def begun_meanwhile(key: str) -> GuardError:
    """Return the error for a caller's transaction that cannot see what another one has kept under a key since."""
    return GuardError(
        f"{key!r} was begun in another transaction after this one had begun: roll this one back, and begin it again"
    )


class BlockState(ABC):
    """Part of a client library's connection that a guard gives to blocks: which of them has it now."""

    is_in_block = False
    is_over = False
    """Whether the block has ended. The guard's own requests go on; they do not ask."""
    attempt: GuardError | None = None
    """The block's attempt to end its own transaction: remembered, since the block may catch the error."""
    savepoint_hint = "use SAVEPOINT"

    def give_to_block(self) -> None:
        """Hand the open transaction to a block."""
        self.is_in_block = True
        self.is_over = False
        self.attempt = None

    def take_back(self) -> None:
        """Take the connection back from the block."""
        self.is_over = True
        self.is_in_block = False

    def check_not_over(self) -> None:
        """Raise GuardError if a late thread or task uses the connection of a block that has ended (G11)."""
        if self.is_over:
            raise GuardError(
                "the guarded block of this connection has ended, and nothing was sent: a connection, and what was made "
                "of it, belongs to its block. End each thread and task that uses it before the block ends"
            )

    def is_referred_to_inside(self) -> bool:
        """Return whether anybody refers to a part of it through which one can write, if not to the whole."""
        return False

    def refuse(self, how: str) -> None:
        """Raise GuardError if a block tries to end its own transaction, or if somebody does so after the block."""
        self.check_not_over()
        if self.is_in_block:
            self.attempt = GuardError(
                f"the block tried to end its own guarded transaction ({how}): nothing of the block was written. The "
                f"end of the block commits, and an exception out of it rolls back; inside it {self.savepoint_hint}"
            )
            raise self.attempt

    if TYPE_CHECKING:

        @property
        def closed(self) -> bool:
            """Whether the connection is closed: the client library's own attribute."""

    @abstractmethod
    def problem(self) -> GuardError | None:
        """Return why a block that ended without an exception cannot be committed."""


Native = TypeVar("Native", bound=BlockState)
AnyCodec = TypeVar("AnyCodec", bound=GuardCodecBase)


class GuardConnectionBase(ABC, Generic[Native, AnyCodec]):
    """The state of a connection of the guard's own."""

    def __init__(
        self,
        codec: AnyCodec,
        take: Callable[[], Any],
        give_back: Callable[[Native], None],
        is_ours: Callable[[Any], bool],
    ) -> None:
        self._codec = codec
        self._take = take
        self._give_back = give_back
        self._is_ours = is_ours
        self._native: Native | None = None

    @property
    def native(self) -> Native:
        """The connection that `guard.transaction` yields."""
        assert self._native is not None, "a request comes first"
        return self._native

    def _before(self, request: Any) -> None:
        """Before a block's end take the connection back, and raise the reason not to commit."""
        native = self._native
        if isinstance(request, Begin) and native is not None and native.closed:
            # A commit that was not confirmed left it so. What became of it can be read on another one only.
            self._native = None
            self._give_back(native)
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

    def _map(self, error: BaseException, request: Any) -> FencelockError | None:
        return None if isinstance(error, FencelockError) else self._map_request_error(error, request)

    @abstractmethod
    def _map_request_error(self, error: BaseException, request: Any) -> FencelockError | None:
        """Map an error of a request; None leaves it as it is."""

    @abstractmethod
    def map_error(self, error: BaseException) -> GuardError | None:
        """Map an error in the user's block; None leaves the user's error as it is."""


class BlockingGuardConnection(GuardConnectionBase[Native, AnyCodec]):
    """A synchronous connection. It serves one thread at a time; any thread may be the next."""

    def perform(self, request: Any) -> Any:
        """Answer one request; a failure leaves no transaction open."""
        try:
            self._before(request)
            reply = run_generator(self._codec.operations(request), self._exchange)
            self._after(request)
        except BaseException as error:
            self.rollback()
            raise_mapped(self._map(error, request), error)
            raise
        return reply

    @abstractmethod
    def _exchange(self, trip: Any) -> Any:
        """Make one round trip, and return its answer."""

    @abstractmethod
    def rollback(self) -> None:
        """Roll back the open transaction, if there is one; never raises."""


class AsyncioGuardConnection(GuardConnectionBase[Native, AnyCodec]):
    """An asynchronous connection, for one task at a time."""

    async def perform(self, request: Any) -> Any:
        """Answer one request; a failure leaves no transaction open."""
        try:
            self._before(request)
            reply = await run_generator_async(self._codec.operations(request), self._exchange)
            self._after(request)
        except BaseException as error:
            await self._undo(error)
            raise_mapped(self._map(error, request), error)
            raise
        return reply

    @abstractmethod
    async def _exchange(self, trip: Any) -> Any:
        """Make one round trip, and return its answer."""

    async def _undo(self, _: BaseException) -> None:
        """Leave no transaction open after an error."""
        await self.rollback()

    @abstractmethod
    async def rollback(self) -> None:
        """Roll back the open transaction, if there is one; never raises an Exception."""


class CallerConnectionBase(ABC):
    """A connection whose transaction belongs to a caller or a framework."""

    def __init__(self, native: Any, codec: GuardCodecBase) -> None:
        self.native = native
        self._codec = codec

    def _map(self, error: BaseException) -> FencelockError | None:
        return None if isinstance(error, FencelockError) else self._map_request_error(error)

    @abstractmethod
    def _map_request_error(self, error: BaseException) -> FencelockError | None:
        """Map an error of a request; None leaves it as it is."""

    @abstractmethod
    def map_error(self, error: BaseException) -> GuardError | None:
        """Map an error that the guard's triggers raised; None leaves the caller's error as it is."""

    def close(self) -> None:  # noqa: B027 - doing nothing is its meaning
        """Do nothing: the connection is its owner's."""


class BlockingCallerConnection(CallerConnectionBase):
    """A synchronous connection of a caller or a framework."""

    def perform(self, request: Any) -> Any:
        """Answer one request; the owner's transaction stays open in any case."""
        try:
            return run_generator(self._codec.operations(request), self._exchange)
        except BaseException as error:
            raise_mapped(self._map(error), error)
            raise

    @abstractmethod
    def _exchange(self, trip: Any) -> Any:
        """Make one round trip, and return its answer."""

    def rollback(self) -> None:
        """Do nothing: the transaction is its owner's."""


class AsyncioCallerConnection(CallerConnectionBase):
    """An asynchronous connection of a caller."""

    async def perform(self, request: Any) -> Any:
        """Answer one request; the owner's transaction stays open in any case."""
        try:
            return await run_generator_async(self._codec.operations(request), self._exchange)
        except BaseException as error:
            raise_mapped(self._map(error), error)
            raise

    @abstractmethod
    async def _exchange(self, trip: Any) -> Any:
        """Make one round trip, and return its answer."""

    async def rollback(self) -> None:
        """Do nothing: the transaction is its owner's."""
