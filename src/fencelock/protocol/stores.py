"""What every store must be: the contract between drivers and stores.

Promise of a source's connection: `perform` answers one request, and decides about each lock in one atomic step, or
raises an error of fencelock's whose `definite` is correct. Promise of a guard's connection: between Begin and Commit
every request runs in one transaction, and an exception rolls it back. Capabilities are declared, never discovered by
an error.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from fencelock.errors import GuardError
from fencelock.model import Finding
from fencelock.protocol.source_requests import SourceReply, SourceRequest

if TYPE_CHECKING:
    from fencelock.protocol.guard_requests import GuardReply, GuardRequest


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a source can do: the range and step of its ttl in milliseconds, whether it notifies waiters of a release,
    whether its client speaks asyncio (then it is an AsyncSourceStore too), and how many connections the callers of one
    process may have at a time (None: any number, because they cost nothing).

    `clock` says by which clock another process learns that a lease has expired (H1): the store's own, read inside its
    decisions; the time that the store states in its replies, which the holder writes down (`dated`: some seconds
    later); or the observer's own, once it has seen the lease unchanged for its ttl. A wrong clock of the last two costs
    exclusion, never a guarded write.
    """

    ttl_min_ms: int
    ttl_max_ms: int
    ttl_step_ms: int
    notifies: bool
    speaks_asyncio: bool = False
    max_connections: int | None = None
    clock: Literal["store", "dated", "observer"] = "store"


@dataclass(frozen=True, slots=True)
class GuardCapabilities:
    """What a guarded store can do, for the command, `doctor`, the tables of the docs and the API.

    `enforced_by` says who refuses a writer that presents no token: the store itself, its access control if an operator
    sets it up as `policy` prints it, or nobody. `spans_resources`: one step may write the marks and data of several
    resources. `keeps_open`: a transaction stays open between its statements, so that it is a CallerGuardStore.
    `seal_is_durable`: an acknowledged seal outlives a crash or failover of the store. `first_seal_creates`: the first
    seal of a resource creates its mark; elsewhere `protect` does, and a mark that is missing admits nobody.
    `max_writes` and `max_request_bytes` limit one block (None: the store has no limit of its own).
    """

    enforced_by: Literal["store", "policy", "nobody"]
    speaks_asyncio: bool = False
    spans_resources: bool = True
    keeps_open: bool = True
    seal_is_durable: bool = True
    first_seal_creates: bool = True
    max_writes: int | None = None
    max_request_bytes: int | None = None


class SourceConnection(Protocol):
    """One client connection, used by one thread at a time; any thread may be the next."""

    def perform(self, request: SourceRequest) -> SourceReply:
        """Answer one request, or raise. After an exception the caller discards the connection."""

    def close(self) -> None:
        """Close the connection; never raises."""


class AsyncSourceConnection(Protocol):
    """One client connection, used by one task of one loop at a time."""

    async def perform(self, request: Any) -> SourceReply:
        """Answer one request, or raise. After an exception, a cancellation included, the caller closes it."""

    def close(self) -> None:
        """Close the connection without waiting; never raises."""


class Channel(Protocol):
    """Notifies one waiting claim that its turn may have come. The flow opens it before the claim's next poll."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the channel is notified."""

    def drain(self) -> None:
        """Forget the notifications so far."""

    def close(self) -> None:
        """Stop listening; never raises."""


class SourceStore(Protocol):
    """A source of tokens behind one URL. Making one opens nothing."""

    capabilities: Capabilities
    url: str

    def connect(self, *, request_timeout_s: float) -> SourceConnection:
        """Return a connection whose requests wait at most `request_timeout_s` for a store that is busy or slow."""

    def listen(self, lock: str, claim: str) -> Channel:
        """Open the channel of one waiting claim."""

    def install(self) -> None:
        """Create the schema if the store has none; safe to run concurrently and repeatedly."""

    def examine(self) -> list[Finding]:
        """Return the problems of this source's setup that break its guarantees, for `fencelock doctor`."""


class AsyncSourceStore(SourceStore, Protocol):
    """A source whose client also speaks asyncio; its capabilities declare that."""

    def connect_async(self, *, request_timeout_s: float) -> AsyncSourceConnection:
        """Return a connection for the running loop, whose requests wait `request_timeout_s` at most."""


class LostBlockNote(str):
    """The note on an error that left a block whose connection had ended inside it: nothing of it was written."""

    __slots__ = ()


class GuardConnection(Protocol):
    """One client connection of a guard, used by one thread at a time."""

    @property
    def native(self) -> Any:
        """The client's own object, which `guard.transaction` yields."""

    def perform(self, request: "GuardRequest") -> "GuardReply":
        """Answer one request; if it raises, no transaction is open afterwards."""

    def rollback(self) -> None:
        """Roll back the open transaction, unless it is the caller's own; never raises."""

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return the GuardError that an exception from the user's block stands for; None: it is the user's own.

        If the connection ended inside the block, the user's own gets a LostBlockNote.
        """

    def close(self) -> None:
        """Roll back the open transaction and give the connection back; never raises."""


class AsyncGuardConnection(Protocol):
    """One client connection of a guard, used by one task at a time."""

    @property
    def native(self) -> Any:
        """The client's own object, which `guard.transaction` yields."""

    async def perform(self, request: "GuardRequest") -> "GuardReply":
        """Answer one request; if it raises, or is cancelled, no transaction is open afterwards."""

    async def rollback(self) -> None:
        """Roll back the open transaction, unless it is the caller's own; never raises an Exception."""

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return the GuardError that an exception from the user's block stands for; None: it is the user's own."""

    def close(self) -> None:
        """Give the connection back without waiting, or close it if it is in a transaction; never raises."""


class GuardStore(Protocol):
    """A store that keeps marks and enforces them. Making one opens nothing."""

    url: str
    """The canonical URL: equal for all URLs of the same store."""
    capabilities: GuardCapabilities
    """If its client speaks asyncio, it is an AsyncGuardStore too."""

    def connect(self) -> GuardConnection:
        """Return a connection of the guard's own; an error in opening it is raised by its first request."""

    def install(self) -> None:
        """Create the schema, unless the first use does; safe to run concurrently and repeatedly."""

    def examine(self) -> list[Finding]:
        """Return the problems of this resource's setup that break its guarantees, for `fencelock doctor`."""


class CallerGuardStore(GuardStore, Protocol):
    """A guarded store whose transactions stay open, so that a caller's own can be used (`keeps_open`)."""

    def caller_connection(self, native: Any) -> GuardConnection:
        """Return a connection that uses the caller's own, which is inside a transaction; GuardError if it is not."""


class ProvableGuardStore(GuardStore, Protocol):
    """A guarded store that a server may serve which does not keep what the guard relies on, such as conditions."""

    def prove(self) -> None:
        """Try what the guard relies on; UnsupportedError if the server does not keep it. Changes no mark and no data.

        Each process calls it before it first seals a resource or changes a mark there, in any thread, and again only
        until it has succeeded once.
        """


class FrameworkConnection(GuardConnection, Protocol):
    """A framework's connection, whose transactions the framework begins and ends.

    It answers the requests that belong into the caller's own transaction; Present is that transaction's first
    statement. Unpresent is its last one before COMMIT, and the database answers it, not the driver: GuardError unless
    the transaction is still the one that presented, and has not failed.
    """

    def prepare(self) -> None:
        """Make the session ready to present a token, before the transaction begins."""

    def restore(self) -> None:
        """Remove everything from the session after the transaction has ended, committed or not."""

    def map_commit_error(self, error: BaseException) -> GuardError | None:
        """Return the GuardError that a failed COMMIT stands for, if the server itself reported the failure."""


@runtime_checkable
class SQLGuardStore(CallerGuardStore, Protocol):
    """A guarded database that frameworks also reach, through a DB-API driver of their choice."""

    has_transactional_ddl: bool
    """Whether a caller's transaction may protect tables: DDL does not commit it, and ends with it."""

    def repair(self) -> None:
        """Create again what somebody has dropped of the schema; do nothing where there is none."""

    def check_tables(self, names: tuple[str, ...]) -> None:
        """Raise GuardError if there is no schema yet, and `install` would make it for a table that does not exist."""

    def framework_connection(self, connection: Any, driver: Any, paramstyle: str) -> FrameworkConnection:
        """Return a connection that uses a framework's own: `connection` has DB-API cursors, whose parameters are
        written in `paramstyle`; `driver` is the driver's own connection, perhaps an asynchronous one.
        """


@runtime_checkable
class RemovableStore(Protocol):
    """A source or a guard whose schema can be removed from the store again."""

    def is_installed(self) -> bool:
        """Return whether the store has the schema; SchemaError if it is another version's. Creates nothing."""

    def check_removal(self) -> None:
        """Raise SourceError if `uninstall` would, because an object of somebody else's needs one that it removes.
        Changes nothing.
        """

    def uninstall(self) -> bool:
        """Remove everything that `install` and `protect` made, and nothing else, and return whether anything was there;
        safe to repeat, and after an interruption. The caller has made sure that nobody uses it.
        """


@runtime_checkable
class PolicySourceStore(SourceStore, Protocol):
    """A source whose clients reach the store itself, so that the store's own access control has to limit them."""

    def policy(self, *roles: str) -> str:
        """Return a shell script for the store's own client, which lets these roles take locks, and no more."""


@runtime_checkable
class PolicyGuardStore(GuardStore, Protocol):
    """A guard whose clients write the marks themselves, so that the store's own access control has to limit them."""

    def policy(self, resource: str, lock: str, *roles: str) -> str:
        """Return a shell script for the store's own client, which lets these roles write one resource, and no more."""


class AsyncGuardStore(GuardStore, Protocol):
    """A guarded store whose client also speaks asyncio."""

    def connect_async(self) -> AsyncGuardConnection:
        """Return a connection for the running loop; an error in opening it is raised by its first request."""


class AsyncCallerGuardStore(CallerGuardStore, AsyncGuardStore, Protocol):
    """The same for a store whose client also speaks asyncio."""

    def async_caller_connection(self, native: Any) -> AsyncGuardConnection:
        """Return a connection that uses the caller's asynchronous one; the twin of `caller_connection`."""
