"""What the two SQL sources share: operations and answers, the protocol of a connection, and its two kinds.

Promise: a connection opens with its first request, and reopens after the server has closed it, or in a forked child.
A new connection is greeted before anything else is asked: the greeting checks the schema, and that this process knows
the source. A large batch of renewals may take longer than a single request. Never decides who holds a lock: the
database does, in the functions of each store's SQL files. Never hands out an idle connection that the server has
closed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from fencelock.clock import boottime_us
from fencelock.errors import SourceError
from fencelock.model import LockInfo, SigningKey, SourceInfo
from fencelock.protocol import source_requests as ask
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.errors import SOURCE_PART, ErrorMapper, check_schema_number
from fencelock.stores.source_clock import SourceIdentity, SourceState
from fencelock.stores.sql.signing import hmac_pads
from fencelock.stores.statements import Statements

SCHEMA_NUMBER = 3
RENEWAL_S = 0.0001
"""What each lease of a batch adds to the request's timeout: an idle server renews 10 000 in 0.2 s."""
MAX_WAITERS = 10_000
PAGE_LOCKS = 500
GRANTED = "granted"
HELD = "held"
SPENT = "spent"
Row = tuple[Any, ...]
Rows = Sequence[Row]
_REPLIES: dict[str, ask.SourceReply] = {"busy": ask.Busy(), "ended": ask.ClaimEnded(), SPENT: ask.BlockSpent()}


class SourceView(NamedTuple):
    """What this process knows of its source when it sends a request: its state, the highest token, and its clock."""

    seen: SourceState | None
    highest_token: int
    source_us: Callable[[int], int]
    now_us: Callable[[], int]


class SourceOperation(NamedTuple):
    """One request as SQL: the statement, its parameters, how to decode its rows, and where they have the clock."""

    statement: str
    parameters: Row
    decode: Callable[[Rows], ask.SourceReply]
    clock_column: int | None = None


class SourceCodecBase:
    """Encodes each request of `protocol/source_requests.py` as one operation."""

    SQL: ClassVar[Statements]

    def __init__(self, view: SourceView) -> None:
        self._view = view

    def encode(self, request: Any) -> SourceOperation:
        """Return the operation for a request."""
        return self.ENCODERS[type(request)](self, request)

    def _add_key(self, request: ask.AddKey) -> SourceOperation:
        key = request.key
        parameters = (key.key_id, key.secret, *hmac_pads(key.secret), request.after_s)
        return SourceOperation(self.SQL.add_key, parameters, lambda _: None)

    def _retire_key(self, request: ask.RetireKey) -> SourceOperation:
        return SourceOperation(self.SQL.retire_key, (request.key_id,), lambda _: None)

    def _read_keys(self, _: ask.ReadKeys) -> SourceOperation:
        return SourceOperation(self.SQL.read_keys, (), decode_keys)

    ENCODERS: ClassVar[dict[type, Callable[[Any, Any], SourceOperation]]] = {
        ask.AddKey: _add_key,
        ask.RetireKey: _retire_key,
        ask.ReadKeys: _read_keys,
    }

    def _asked_us(self) -> int:
        """Return this moment on the source's clock: a claim that ends now was drawn no later."""
        return self._view.source_us(self._view.now_us())


class AcquireAnswer(NamedTuple):
    """One row of `acquire`: the outcome, the token and time that go with it, and the source that answered."""

    outcome: str
    token: int
    time_ms: int
    now_us: int
    source_id: str
    epoch: int
    history_id: str
    key_id: str | None = None
    signature: str | None = None

    @property
    def seen(self) -> SourceState:
        """The state of the source that answered."""
        return SourceState(self.source_id, self.epoch, self.history_id)

    def reply(self, lock: str, max_waiters: int) -> ask.SourceReply:
        """Return the reply to an Acquire or a Poll of this lock."""
        if self.outcome in {GRANTED, HELD}:
            signature = signature_in(self.key_id, self.signature)
            return ask.Granted(self.token, self.time_ms, self.source_id, self.history_id, signature)
        if self.outcome == "queued":
            return ask.Queued(self.time_ms)
        if self.outcome == "full":
            raise SourceError(f"lock {lock!r} has {max_waiters} waiters, the most that it may have: try again later")
        return _REPLIES[self.outcome]


def signature_in(key_id: str | None, text: str | None) -> ask.Signature:
    """Return the signature in two columns, which are NULL if the source has no key."""
    return ask.NOT_SIGNED if key_id is None or text is None else ask.Signature(key_id, text)


def decode_keys(rows: Rows) -> ask.Keys:
    """Return the keys of rows (key id, secret, first second, retired second, whether a running lease has it, whether it
    signs now).
    """
    keys = tuple(SigningKey(key_id, bytes(secret), begins_s, ended_s) for key_id, secret, begins_s, ended_s, *_ in rows)
    signing = [row[0] for row in rows if row[5]]
    return ask.Keys(keys, tuple(row[0] for row in rows if row[4]), signing[0] if signing else None)


def decode_renewed(rows: Rows) -> ask.Renewed:
    """Return the reply of rows (claim, time left, reason), of which either the time or the reason is NULL."""
    remaining_ms = {claim: time_ms for claim, time_ms, _ in rows if time_ms is not None}
    return ask.Renewed(remaining_ms, {claim: reason for claim, time_ms, reason in rows if time_ms is None})


def lock_info(row: Row, waiters: Iterable[str]) -> LockInfo:
    """Return what people see of a lock, from a row (name, token, holder, time left, ttl)."""
    name, token, holder, remaining_ms, ttl_ms = row
    return LockInfo(
        bytes(name).decode(),
        token=token,
        holder=holder if remaining_ms else None,
        remaining=remaining_ms / 1000,
        ttl=ttl_ms / 1000 if remaining_ms else None,
        waiters=tuple(waiters),
    )


def unknown_lock(name: str) -> LockInfo:
    """Return what people see of a lock that nobody has taken."""
    return LockInfo(name, token=None, holder=None, remaining=0.0, ttl=None, waiters=())


_ACQUIRING = {ask.Acquire, ask.Poll}
Reply = TypeVar("Reply")


class StoreCall(NamedTuple):
    """One round trip: a statement and its parameters."""

    statement: str
    parameters: Row = ()


Exchange = Generator[StoreCall, Rows, Reply]
"""Yields calls, is sent the rows of each, and returns a reply."""


class SourceDescription(Protocol):
    """The row that a source greets a connection with."""

    @property
    def schema(self) -> int:
        """The number of its schema."""

    @property
    def now_us(self) -> int:
        """Its clock."""

    def info(self) -> SourceInfo:
        """Return the identity and the counter."""


class SourceProtocolBase(ABC):
    """The calls of one connection, synchronous or not: pure but for what it remembers."""

    def __init__(self, url: str, identity: SourceIdentity) -> None:
        self._url = url
        self._identity = identity
        self._is_greeted = False

    def attach(self, _: Any) -> None:
        """Begin a new connection: it has to be greeted."""
        self._is_greeted = False

    @abstractmethod
    def operations(self, request: Any) -> Exchange[ask.SourceReply]:
        """Yield the calls for a request, and return the reply."""

    @abstractmethod
    def _encode(self, request: Any, view: SourceView) -> SourceOperation:
        """Return the operation for a request."""

    @abstractmethod
    def _check_answer(self, row: Row, before: SourceState | None, highest: int) -> None:
        """Refuse a row of `acquire` from an older state of the source than was known when it was asked."""

    def _check_schema(self, row: Row) -> None:
        """Check the schema's number: the first column of `describe` in every version, while the others may differ."""
        check_schema_number(self._url, SOURCE_PART, row[0], SCHEMA_NUMBER)

    def _check_description(self, found: SourceDescription, before: SourceState | None, received_us: int) -> None:
        """Check the identity of a source that greets, and learn its clock."""
        known = found.info()
        self._identity.check(SourceState(known.source_id, known.epoch, known.history_id), before)
        self._identity.clock.learn(found.now_us, received_us)

    def _ask(self, request: Any) -> Exchange[ask.SourceReply]:
        """Make the one call of a request, and check that the answer is not older than what was known before."""
        identity = self._identity
        # Before the request: other threads may learn of newer states and tokens while this answer is on its way.
        before, highest = identity.seen, identity.highest_token
        operation = self._encode(request, SourceView(before, highest, identity.clock.at, boottime_us))
        rows = yield StoreCall(operation.statement, operation.parameters)
        if operation.clock_column is not None and rows:
            identity.clock.learn(rows[0][operation.clock_column], boottime_us())
        reply = operation.decode(rows)
        if type(request) in _ACQUIRING:
            self._check_answer(rows[0], before, highest)
        elif isinstance(reply, ask.Broken):
            identity.check_token(reply.token, 0)
        return reply


class NativeConnection(Protocol):
    """What is needed of a client library's connection."""

    def limit_wait(self, request_timeout_s: float) -> None:
        """Bound the wait for each later answer."""


Native = TypeVar("Native", bound=NativeConnection)
AnyProtocol = TypeVar("AnyProtocol", bound=SourceProtocolBase)


class _SourceConnectionBase(Generic[Native, AnyProtocol]):
    """The state of a connection: the native one, if it is open, and the protocol."""

    def __init__(
        self,
        protocol: AnyProtocol,
        request_timeout_s: float,
        is_alive: Callable[[Native], bool],
        close_native: Callable[[Native], None],
        error_mapper: ErrorMapper,
    ) -> None:
        self._protocol = protocol
        self._request_timeout_s = request_timeout_s
        self._is_alive = is_alive
        self._close_native = close_native
        self._error_mapper = error_mapper
        self._native: Native | None = None

    def _find_alive(self) -> Native | None:
        """Return the open connection; close an unusable one, and return None."""
        if self._native is not None and self._is_alive(self._native):
            return self._native
        self.close()
        return None

    def _attach(self, native: Native) -> Native:
        self._native = native
        self._protocol.attach(native)
        return native

    def _timeout_for(self, request: Any) -> float:
        """Return how long to wait for the answer to a request, in seconds."""
        if type(request) is ask.Renew:
            return self._request_timeout_s + RENEWAL_S * len(request.leases)
        return self._request_timeout_s

    def close(self) -> None:
        """Close the connection; never raises."""
        if self._native is not None:
            self._close_native(self._native)
            self._native = None


class BlockingSourceConnection(_SourceConnectionBase[Native, AnyProtocol], ABC):
    """Answers requests in the caller's thread."""

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        native = self._find_alive() or self._attach(self._open())
        native.limit_wait(self._timeout_for(request))
        return run_generator(self._protocol.operations(request), self._exchange)

    def _exchange(self, call: StoreCall) -> Rows:
        assert self._native is not None, "perform opens it"
        with self._error_mapper:
            return self._run(self._native, call)

    @abstractmethod
    def _open(self) -> Native:
        """Return a new connection."""

    @abstractmethod
    def _run(self, native: Native, call: StoreCall) -> Rows:
        """Make one call, and return its rows."""


class AsyncioSourceConnection(_SourceConnectionBase[Native, AnyProtocol], ABC):
    """Answers requests on the running loop."""

    async def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        native = self._find_alive() or self._attach(await self._open())
        native.limit_wait(self._timeout_for(request))
        return await run_generator_async(self._protocol.operations(request), self._exchange)

    async def _exchange(self, call: StoreCall) -> Rows:
        assert self._native is not None, "perform opens it"
        with self._error_mapper:
            return await self._run(self._native, call)

    @abstractmethod
    async def _open(self) -> Native:
        """Return a new connection."""

    @abstractmethod
    async def _run(self, native: Native, call: StoreCall) -> Rows:
        """Make one call, and return its rows."""
