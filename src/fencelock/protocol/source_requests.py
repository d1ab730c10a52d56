"""The requests to a source and its replies: everything that passes between lock logic and stores.

Promise: requests and replies are plain values, comparable and printable; they are the only interface between drivers,
stores, the simulator and fault injectors. Times are integer milliseconds on the source's clock, or durations. A request
that changes a source carries the claim that makes it idempotent: a source that gets the request twice gives the same
answer twice. The claim is the holder's secret: a source keeps H(H(claim)) and no more, so that nobody who reads its
tables, keys or nodes can end a lease or write in its name (G12).
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from fencelock._sequencer_text import UNSIGNED
from fencelock.model import LockInfo, SigningKey, SourceInfo


# --- answered by the driver itself ----------------------------------------------------------------
class Now(NamedTuple):
    """Read the holder's clock. Reply: int, milliseconds."""


NOW = Now()


class Draw(NamedTuple):
    """Draw a new claim. Reply: the claim, and the microseconds of the holder's clock at which it was drawn."""


DRAW = Draw()


class Listen(NamedTuple):
    """Open the channel on which the store notifies this claim when its turn may have come. Reply: None."""

    lock: str
    claim: str


class Wait(NamedTuple):
    """Sleep until the channel is notified, for `timeout_ms` at most. Reply: True if the caller waits no longer."""

    timeout_ms: int


# --- answered by the source -----------------------------------------------------------------------
class Acquire(NamedTuple):
    """Grant the lock to a claim that was never granted before, or queue it if it may wait.

    `born_us` is the time at which the claim was drawn, in microseconds of the source's clock: it makes a bounded memory
    of ended claims exact (H4). Reply: Granted, Queued, Busy, ClaimEnded or BlockSpent.
    """

    lock: str
    claim: str
    holder: str
    ttl_ms: int
    born_us: int
    may_wait: bool


class Poll(NamedTuple):
    """Grant the lock to a claim that is already in the queue, if its turn has come.

    `keeps_place`: extend its place in the queue to its ttl from now. Without that a store may answer by reading; one
    for which it costs nothing may always extend it. Reply: Granted, Queued, ClaimEnded or BlockSpent.
    """

    lock: str
    claim: str
    keeps_place: bool = True


class ReserveBlock(NamedTuple):
    """Raise the source's durable bound for tokens by one block, flushed before the reply. Reply: None."""


class Renew(NamedTuple):
    """Extend every lease of the batch by its ttl. `leases` are (lock, claim) pairs. Reply: Renewed."""

    leases: tuple[tuple[str, str], ...]


class Release(NamedTuple):
    """End the claim for good, whether it holds the lock, waits, or has not arrived yet. Reply: Released."""

    lock: str
    claim: str


class Inspect(NamedTuple):
    """Read what the source knows about one lock. Reply: LockInfo."""

    lock: str


class Check(NamedTuple):
    """Read whether the lease of this proof holds the lock now. Reply: Checked.

    The proof is H(claim), as sequencers show it; `history_id` is the sequencer's.
    """

    lock: str
    history_id: str
    proof: str


class ListLocks(NamedTuple):
    """Read one page of the locks whose names sort after `after`. Reply: tuple[LockInfo, ...]."""

    after: str | None


class Break(NamedTuple):
    """End the lock's present lease, and mint a token for the breaker, with which guards are sealed against the old
    holder. The lock is free afterwards. A repeated request with the same claim does not end a later lease.

    Reply: Broken or BlockSpent.
    """

    lock: str
    claim: str
    holder: str
    reason: str


class Purge(NamedTuple):
    """Forget the locks that are free and have no waiters; their tokens are never issued again. Reply: int, how many."""


class AddKey(NamedTuple):
    """Keep a key, with which the source signs what it grants from `after_s` seconds on, by the source's own clock: the
    times in the key are not used. Repeating it changes nothing. Reply: None.

    UnsupportedError from a store that its clients reach directly: they could sign what they like.
    """

    key: SigningKey
    after_s: int = 0


class RetireKey(NamedTuple):
    """Sign with this key no more, from now on by the source's clock. Repeating it changes nothing. Reply: None."""

    key_id: str


class ReadKeys(NamedTuple):
    """Read the keys, which only the schema's owner may; oldest first. Reply: Keys."""


class ReadSource(NamedTuple):
    """Read the source's identity and counter. Reply: SourceInfo."""


class RaiseEpoch(NamedTuple):
    """Start a new history above every token of the old one, if the history is still `history_id`. Ends every lease.
    Reply: SourceInfo of the new history, or None if the present history is another one.
    """

    history_id: str
    reason: str


# --- replies --------------------------------------------------------------------------------------
class Signature(NamedTuple):
    """A source's signature of the sequencer that it has granted: the key's id, and the signature as base64url."""

    key_id: str
    text: str


NOT_SIGNED = Signature(UNSIGNED, "")


class Granted(NamedTuple):
    """The claim holds the lock, for `remaining_ms` from the moment of the source's decision."""

    token: int
    remaining_ms: int
    source_id: str
    history_id: str
    signature: Signature = NOT_SIGNED


class Queued(NamedTuple):
    """The claim is in the queue; poll again after `wait_ms` at the latest, notified or not."""

    wait_ms: int


class Busy(NamedTuple):
    """Another claim holds the lock, or others are already waiting."""


class ClaimEnded(NamedTuple):
    """This claim will never hold the lock (again): it was released, abandoned, broken, or its place in the queue
    expired.
    """


class BlockSpent(NamedTuple):
    """The next token lies above the durable bound: reserve a block and ask again."""


class Released(NamedTuple):
    """The claim has ended. `was_held`: it held the lock until now; if not, its lease was lost (H3)."""

    was_held: bool


class Checked(NamedTuple):
    """`remaining_ms` is the time that the proof's lease certainly has left: 1 if it holds the lock and no more is
    known, 0 if it does not hold it, or perhaps not. `last_token`: the last token issued for the lock; None if it is not
    known.
    """

    remaining_ms: int
    last_token: int | None


class Keys(NamedTuple):
    """A source's keys, the ids of those with which a lease that is running now was signed, and the id of the key that
    signs now; None: none does.
    """

    keys: tuple[SigningKey, ...]
    in_use: tuple[str, ...]
    signing: str | None = None


class Renewed(NamedTuple):
    """By claim: the time left of each lease that was renewed, and the reason for each that was not. Those `in_doubt`
    may have been renewed: the next beat asks for them again.
    """

    remaining_ms: dict[str, int]
    lost: dict[str, str]
    in_doubt: frozenset[str] = frozenset()


class Broken(NamedTuple):
    """The lock is free, and `token` is the breaker's. `holder` held the lock until now; None: it was free."""

    token: int
    source_id: str
    history_id: str
    holder: str | None
    signature: Signature = NOT_SIGNED


Result = TypeVar("Result")
DriverRequest = Now | Draw | Listen | Wait
"""What the driver answers; a store never sees these."""

SourceRequest = (
    Acquire | Poll | ReserveBlock | Renew | Release | Inspect | Check | ListLocks | Break | Purge | AddKey
    | RetireKey | ReadKeys | ReadSource | RaiseEpoch
)  # fmt: skip
"""What a source's connection answers."""

AcquireReply = Granted | Queued | Busy | ClaimEnded | BlockSpent
SourceReply = (
    AcquireReply | Released | Renewed | Checked | Keys | Broken | LockInfo | SourceInfo | tuple[LockInfo, ...] | int
    | None
)  # fmt: skip
"""What a source's connection replies; each request's docstring names which of these it may get."""

SourceFlow = Generator[SourceRequest | DriverRequest, Any, Result]
"""Yields requests to a source and to its driver, is sent the replies, and returns a Result. `ask` gives each reply its
type.
"""
