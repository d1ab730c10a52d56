"""What a store must be, for ours and for anybody's: the contract between drivers and stores.

Promise of a source's connection: `perform` answers one request in one round trip and one transaction, or raises an
error of the tree whose `definite` is true to the fact. Promise of a guard's connection: between Begin and Commit every
request runs in one transaction, and leaving it by an exception rolls it back. Capabilities are declared, never
discovered by an error.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fencelock.errors import GuardError
from fencelock.model import Finding
from fencelock.protocol.source_requests import SourceReply, SourceRequest

if TYPE_CHECKING:
    from fencelock.protocol.guard_requests import GuardReply, GuardRequest


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a source can do: the range and step of its ttl in milliseconds, whether waiters are told of a release,
    whether its client speaks asyncio, so that it is an AsyncSourceStore too, and how many connections the callers of
    one process may have at a time (None: any number, since they cost nothing).
    """

    ttl_min_ms: int
    ttl_max_ms: int
    ttl_step_ms: int
    notifies: bool
    speaks_asyncio: bool = False
    max_connections: int | None = None


class SourceConnection(Protocol):
    """One client connection, used by one thread at a time; any thread may be the next."""

    def perform(self, request: SourceRequest) -> SourceReply:
        """Answer one request, or raise. After an exception the caller discards the connection."""

    def close(self) -> None:
        """Give the connection back to the system; never raises."""


class AsyncSourceConnection(Protocol):
    """One client connection, used by one task of one loop at a time."""

    async def perform(self, request: Any) -> SourceReply:
        """Answer one request, or raise. After an exception, a cancellation included, the caller closes it."""

    def close(self) -> None:
        """Give the connection back to the system without waiting; never raises."""


class Channel(Protocol):
    """Where one waiting claim hears that its turn may have come; made before the claim looks for the last time."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when something was told."""

    def drain(self) -> None:
        """Forget what was told until now."""

    def close(self) -> None:
        """Stop listening; never raises."""


class SourceStore(Protocol):
    """A source of tokens behind one URL. Making one opens nothing."""

    capabilities: Capabilities
    url: str

    def connect(self, *, request_timeout_s: float) -> SourceConnection:
        """Return a connection whose requests wait `request_timeout_s` at most for a store that is busy or slow."""

    def listen(self, lock: str, claim: str) -> Channel:
        """Open the channel of one waiting claim."""

    def install(self) -> None:
        """Make the schema if the store has none; safe when run concurrently, and again."""

    def examine(self) -> list[Finding]:
        """Return what in this source's set-up would break the promise, for `fencelock doctor`."""


class AsyncSourceStore(SourceStore, Protocol):
    """A source whose client speaks asyncio as well, as its capabilities say."""

    def connect_async(self, *, request_timeout_s: float) -> AsyncSourceConnection:
        """Return a connection for the running loop, whose requests wait `request_timeout_s` at most."""


class GuardConnection(Protocol):
    """One client connection of a guard, used by one thread at a time."""

    @property
    def native(self) -> Any:
        """The client's own object, which `guard.transaction` yields."""

    def perform(self, request: "GuardRequest") -> "GuardReply":
        """Answer one request; anything but success leaves no transaction open."""

    def rollback(self) -> None:
        """Undo the open transaction, if there is one that is not the caller's own; never raises."""

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return what an exception out of the user's block means in the guard's words; None: it is the user's own."""

    def close(self) -> None:
        """Roll back what is open and give the connection back; never raises."""


class AsyncGuardConnection(Protocol):
    """One client connection of a guard, used by one task at a time."""

    @property
    def native(self) -> Any:
        """The client's own object, which `guard.transaction` yields."""

    async def perform(self, request: "GuardRequest") -> "GuardReply":
        """Answer one request; anything but success, a cancellation included, leaves no transaction open."""

    async def rollback(self) -> None:
        """Undo the open transaction, if there is one that is not the caller's own; never raises an Exception."""

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return what an exception out of the user's block means in the guard's words; None: it is the user's own."""

    def close(self) -> None:
        """Give the connection back without waiting; one that is in a transaction is ended. Never raises."""


class GuardStore(Protocol):
    """A place that keeps marks and enforces them. Making one opens nothing."""

    url: str
    """The one spelling of where it is: equal for every URL that means the same place."""
    speaks_asyncio: bool
    """Whether its client speaks asyncio, so that it is an AsyncGuardStore too."""

    def connect(self) -> GuardConnection:
        """Return a connection of the guard's own; any error of opening it comes with its first request."""

    def caller_connection(self, native: Any) -> GuardConnection:
        """Speak over the caller's connection, which is inside a transaction; GuardError if it is not."""

    def install(self) -> None:
        """Make the schema, if the place has none and makes none at first use; safe when run concurrently, and again."""

    def examine(self) -> list[Finding]:
        """Return what in this resource's set-up would break the promise, for `fencelock doctor`."""


class FrameworkConnection(GuardConnection, Protocol):
    """A framework's connection, whose transactions the framework begins and ends.

    It answers what may be asked in the caller's own transaction, Present as its first statement.
    """

    def prepare(self) -> None:
        """Make the session ready to present a token, before the transaction begins."""

    def restore(self) -> None:
        """Leave nothing in the session, once the transaction has ended, well or not."""

    def map_commit_error(self, error: BaseException) -> GuardError | None:
        """Return what a failed COMMIT means in the guard's words, if the server itself has said that it failed."""


@runtime_checkable
class SQLGuardStore(GuardStore, Protocol):
    """A guarded place that frameworks reach too, through whichever DB-API driver they have."""

    def framework_connection(self, connection: Any, driver: Any, paramstyle: str) -> FrameworkConnection:
        """Speak through a framework's connection: `connection` has DB-API cursors, whose parameters are written in
        `paramstyle`; `driver` is the driver's own connection, perhaps an asynchronous one.
        """


class AsyncGuardStore(GuardStore, Protocol):
    """A guarded place whose client speaks asyncio as well."""

    def connect_async(self) -> AsyncGuardConnection:
        """Return a connection for the running loop; any error of opening it comes with its first request."""

    def async_caller_connection(self, native: Any) -> AsyncGuardConnection:
        """Speak over the caller's asynchronous connection, as `caller_connection` does over a synchronous one."""
