"""What the codecs of the two SQL sources share: operations, the answer of `acquire`, and the decoding of common rows.

Promise: pure, and the same for synchronous and asynchronous connections. Never decides who holds a lock: the database
does, in the functions of each store's SQL files.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from fencelock.errors import SourceError
from fencelock.model import LockInfo
from fencelock.protocol import source_requests as ask
from fencelock.stores.source_clock import SourceState

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

    ENCODERS: ClassVar[dict[type, Callable[[Any, Any], SourceOperation]]]

    def __init__(self, view: SourceView) -> None:
        self._view = view

    def encode(self, request: Any) -> SourceOperation:
        """Return the operation for a request."""
        return self.ENCODERS[type(request)](self, request)

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

    @property
    def seen(self) -> SourceState:
        """The state of the source that answered."""
        return SourceState(self.source_id, self.epoch, self.history_id)

    def reply(self, lock: str, max_waiters: int) -> ask.SourceReply:
        """Return the reply to an Acquire or a Poll of this lock."""
        if self.outcome in {GRANTED, HELD}:
            return ask.Granted(self.token, self.time_ms, self.source_id, self.history_id)
        if self.outcome == "queued":
            return ask.Queued(self.time_ms)
        if self.outcome == "full":
            raise SourceError(f"lock {lock!r} has {max_waiters} waiters, the most that it may have: try again later")
        return _REPLIES[self.outcome]


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
