"""What flows ask for, and what they are told: the whole vocabulary between lock logic and stores.

Promise: requests and replies are plain values, comparable and printable, so that drivers, stores, the simulator and
fault injectors meet here and nowhere else. Times are integer milliseconds on the source's clock, or durations.
Requests to a source carry the claim that makes them idempotent: a source that gets one twice gives the same answer
twice.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from fencelock.model import LockInfo, SourceInfo


# --- answered by the driver itself ----------------------------------------------------------------
class Now(NamedTuple):
    """Ask for the holder's clock. Reply: int, milliseconds."""


NOW = Now()


class Draw(NamedTuple):
    """Draw a new claim. Reply: (claim, when it was drawn in microseconds on the holder's clock)."""


DRAW = Draw()


class Listen(NamedTuple):
    """Open the channel on which the store will tell this claim that its turn may have come. Reply: None."""

    lock: str
    claim: str


class Wait(NamedTuple):
    """Sleep until the channel tells something, for `timeout_ms` at most. Reply: None."""

    timeout_ms: int


# --- answered by the source -----------------------------------------------------------------------
class Acquire(NamedTuple):
    """Grant the lock to a claim that was never granted before, or queue it if it may wait.

    `born_us` is when the claim was drawn, on the source's clock: with it a bounded memory of ended claims is exact
    (H4). Reply: Granted, Queued, Busy, ClaimEnded or BlockSpent.
    """

    lock: str
    claim: str
    holder: str
    ttl_ms: int
    born_us: int
    may_wait: bool


class Poll(NamedTuple):
    """Grant the lock to a claim that is in the queue already, if its turn has come. Reply: as to Acquire,
    never Busy.
    """

    lock: str
    claim: str


class ReserveBlock(NamedTuple):
    """Raise the source's durable bound for tokens by one block, flushed before the reply. Reply: None."""


class Renew(NamedTuple):
    """Extend every lease of the batch by its ttl. `leases` are (lock, claim) pairs. Reply: Renewed."""

    leases: tuple[tuple[str, str], ...]


class Release(NamedTuple):
    """End the claim for good, wherever it is: holding, queued, or not yet arrived. Reply: Released."""

    lock: str
    claim: str


class Inspect(NamedTuple):
    """Tell what is known of one lock. Reply: LockInfo."""

    lock: str


class ListLocks(NamedTuple):
    """Tell what is known of the locks whose names sort after `after`, one page. Reply: tuple[LockInfo, ...]."""

    after: str | None


class Break(NamedTuple):
    """End whatever lease the lock has, and mint a token for the breaker, so that guards can be sealed against the old
    holder. The lock is free afterwards; asked again under the same claim, it ends nobody else's lease. Reply: Broken or
    BlockSpent.
    """

    lock: str
    claim: str
    holder: str
    reason: str


class Purge(NamedTuple):
    """Forget locks that nobody holds or waits for; their tokens stay spent. Reply: int, how many."""


class ReadSource(NamedTuple):
    """Tell the source's identity and counter, changing nothing. Reply: SourceInfo."""


class RaiseEpoch(NamedTuple):
    """Start a new history above every token of the old one, if the history is still `history_id`. Ends every lease.
    Reply: SourceInfo of the new history, or None if somebody else raised first.
    """

    history_id: str
    reason: str


# --- replies --------------------------------------------------------------------------------------
class Granted(NamedTuple):
    """The claim holds the lock, for `remaining_ms` from the moment at which the source decided."""

    token: int
    remaining_ms: int
    source_id: str
    history_id: str


class Queued(NamedTuple):
    """In the queue; look again after `wait_ms` at the latest, whatever the channel says."""

    wait_ms: int


class Busy(NamedTuple):
    """Held by somebody else, or others wait already."""


class ClaimEnded(NamedTuple):
    """This claim will never hold the lock (again): it was released, abandoned, broken, or its place in the queue
    expired.
    """


class BlockSpent(NamedTuple):
    """The next token lies above the durable bound: reserve a block and ask again."""


class Released(NamedTuple):
    """The claim is over. `was_held`: it held the lock until now."""

    was_held: bool


class Renewed(NamedTuple):
    """Time left for each claim that was renewed, and the reason for each that was not."""

    remaining_ms: dict[str, int]
    lost: dict[str, str]


class Broken(NamedTuple):
    """The lock is free, and the breaker has a token. `holder`: who held it, None if nobody did."""

    token: int
    source_id: str
    history_id: str
    holder: str | None


Result = TypeVar("Result")
DriverRequest = Now | Draw | Listen | Wait
"""What the driver answers; a store never sees these."""

SourceRequest = (
    Acquire | Poll | ReserveBlock | Renew | Release | Inspect | ListLocks | Break | Purge | ReadSource | RaiseEpoch
)
"""What a source's connection answers."""

AcquireReply = Granted | Queued | Busy | ClaimEnded | BlockSpent
SourceReply = (
    AcquireReply | Released | Renewed | Broken | LockInfo | SourceInfo | tuple[LockInfo, ...] | int | None
)  # fmt: skip
"""What a source's connection replies; each request's docstring names which of these it may get."""

SourceFlow = Generator[SourceRequest | DriverRequest, Any, Result]
"""Yields requests to a source and to its driver, is sent the replies, and returns a Result. `ask` gives each reply its
type.
"""
