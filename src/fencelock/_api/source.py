"""`fencelock.connect`: a source of tokens, and the handles to its locks. `BaseSource` is what its async twin shares.

Promise: if a signal, a cancellation or an error interrupts an acquire at any point, the keeper gets the claim to
abandon (H5).
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Self, TypeVar

from fencelock._api.advice import CONNECT_WORDS, LEAD_WORDS, LOCK_WORDS, MADE_BY_CONNECT, advised
from fencelock._api.credentials import LeaseLike
from fencelock._api.durations import Duration
from fencelock._api.leading import StopEvent, Terms
from fencelock._api.lease import BaseLease, Lease
from fencelock._api.lock import Lock, RLock
from fencelock._api.lock_options import DEFAULT_TTL_S, LockOptions, check_lock_options, resolve_url
from fencelock._api.proofs import broken_lock, check_sequencer, new_key
from fencelock._api.uncopyable import Uncopyable
from fencelock._drivers.shutdown import SHUTDOWN
from fencelock._drivers.sync import IsStopped, SyncDriver
from fencelock._flows import renewal, signing
from fencelock._flows.acquire import Attempt, Grant, acquire
from fencelock._flows.retry import ask_source
from fencelock._keeper.keeper import REQUEST_TIMEOUT_S
from fencelock._keeper.lifecycle import keeper
from fencelock._keeper.record import RELEASED, LeaseRecord, Listeners
from fencelock.errors import SourceError
from fencelock.hooks import NO_HOOKS, Hooks, check_hooks
from fencelock.model import (
    BrokenLock,
    Finding,
    LeaseCheck,
    LockInfo,
    SigningKey,
    SourceInfo,
    check_lock_name,
    check_reason,
    default_holder,
    draw_claim,
)
from fencelock.protocol.source_requests import Inspect, Keys, ListLocks, Purge, ReadKeys, ReadSource
from fencelock.protocol.stores import Capabilities
from fencelock.stores.registry import Location, shown_url, source_store

AnyLease = TypeVar("AnyLease", bound=BaseLease)


class BaseSource(Uncopyable):
    """A source of tokens behind one URL; opens nothing until it is used."""

    _instead = "it has connections of its own. Use it in other threads, and call connect() in other processes"

    def __init__(self, url: Location | None, hooks: Hooks) -> None:
        self._store = source_store(resolve_url(url))
        self._hooks = check_hooks(hooks)
        self._keeper_driver = SyncDriver(self._store, request_timeout_s=REQUEST_TIMEOUT_S)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """The source's URL, without user and password."""
        return shown_url(self._store.url)

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do: the shortest and the longest ttl that it grants, and whether it notifies waiters."""
        return self._store.capabilities

    def _options(
        self, name: str, ttl: Duration, timeout: Duration | None, holder: str | None, on_lost: object
    ) -> LockOptions:
        return check_lock_options(self._store.capabilities, name, ttl, timeout, holder, on_lost)  # type: ignore[arg-type]

    def _attempt(self, options: LockOptions) -> Attempt:
        # Before anything is asked: a lease that nobody renews, or whose loss cannot be told, must not be granted.
        keeper().start()
        return Attempt(options.name, options.holder_now(), options.ttl_ms)

    def _record(self, attempt: Attempt, grant: Grant, listeners: Listeners) -> LeaseRecord:
        assert attempt.claim is not None, "a grant without a claim"
        return LeaseRecord(
            self._keeper_driver,
            attempt.lock,
            attempt.claim,
            attempt.holder,
            attempt.ttl_ms,
            grant,
            listeners,
        )

    def _keep(self, lease: AnyLease, record: LeaseRecord, listeners: Listeners) -> AnyLease:
        """Have the lease renewed from now on, and emit its events."""
        keeper().add(record)
        waited_ms = record.grant.waited_ms
        if waited_ms is not None:
            listeners.emit(record, "waited", duration=waited_ms / 1000)
        listeners.emit(record, "acquired")
        return lease

    def _give_up(self, attempt: Attempt, record: LeaseRecord | None) -> None:
        """Undo an interrupted acquire in the background, without an event: the caller never got the lease."""
        if record is not None:
            record.leave_held(RELEASED, "its acquire was interrupted")
        if attempt.claim is not None:
            keeper().abandon(self._keeper_driver, attempt.lock, attempt.claim, attempt.ttl_ms)
            # After the keeper has the claim: at the interpreter's end it waits for each thread that was counted.
            SHUTDOWN.note_abandoned()


@advised(CONNECT_WORDS)
def connect(url: Location | None = None, *, hooks: Hooks = NO_HOOKS) -> "Source":
    """Return the source that the URL names; nothing is opened yet.

    A path in place of a URL names a SQLite file. `url` None: $FENCELOCK_SOURCE, or else the default SQLite file
    (`/var/lib/fencelock/locks.db` for root, under $XDG_STATE_HOME or ~/.local/state for others). ConfigError for a bad
    URL, UnsafeSourceError for a store that cannot issue tokens. A SQLite file that does not exist is created by the
    first acquire, or by `install`; what only looks raises SchemaError. Close it, or use it as a context manager.
    """
    return Source(url, hooks)


class Source(BaseSource):
    """A source of fencing tokens: makes handles to locks, and shows what it knows of them.

    `fencelock.connect(…)` makes one.
    """

    @advised({}, MADE_BY_CONNECT)
    def __init__(self, url: Location | None, hooks: Hooks) -> None:
        super().__init__(url, hooks)
        self._driver = SyncDriver(self._store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Leases that are still held go on being renewed until they are released."""
        self._driver.close()

    @advised(LOCK_WORDS)
    def lock(
        self,
        name: str,
        *,
        ttl: Duration = DEFAULT_TTL_S,
        timeout: Duration | None = None,
        on_lost: Callable[[str], Any] | None = None,
        holder: str | None = None,
    ) -> Lock:
        """Return a handle to the named lock; nothing is acquired yet.

        `ttl` and `timeout` are seconds, or timedeltas; timeout None waits for ever. `on_lost(reason)` runs in a thread
        of fencelock's within a second of a loss. ConfigError when something is outside its contract.
        """
        return Lock(self, self._options(name, ttl, timeout, holder, on_lost))

    @advised(LOCK_WORDS)
    def rlock(
        self,
        name: str,
        *,
        ttl: Duration = DEFAULT_TTL_S,
        timeout: Duration | None = None,
        on_lost: Callable[[str], Any] | None = None,
        holder: str | None = None,
    ) -> RLock:
        """Return a handle that its thread may acquire again while it holds the lock; parameters as for `lock`."""
        return RLock(self, self._options(name, ttl, timeout, holder, on_lost))

    @advised(LEAD_WORDS)
    def lead(
        self,
        name: str,
        *,
        stop: StopEvent | None = None,
        ttl: Duration = DEFAULT_TTL_S,
        retry_on: Iterable[type[Exception]] = (),
        on_lost: Callable[[str], Any] | None = None,
        holder: str | None = None,
    ) -> Terms:
        """Return a loop over terms of leadership: `for term in source.lead(name):`, with `with term as lease:` inside.

        Each term is one lease, and ends with its block. A block that ends well releases the lock, and the loop queues
        for it again: `break`, or set `stop`, to end the loop. A loss, a stale token, a store that cannot be reached,
        and any error of a guarded block whose connection ended are logged, told to the hook `on_retried`, and followed
        by another campaign, after a pause of 30 s at most. So are LeaseReleasedError, errors of the kinds in
        `retry_on`, and an unknown outcome of a campaign or of a guarded block with `once`. Any other error leaves the
        loop, with the lease released. `stop` is an event: once it is set, a loop that waits leaves the queue
        and ends at once; one whose block runs ends with the block. Other parameters as for `lock`.
        """
        options = self._options(name, ttl, None, holder, on_lost)
        return Terms(partial(self.take, options, True, None), name, self._hooks, stop, retry_on)

    def take(
        self, options: LockOptions, may_wait: bool, timeout_ms: int | None, is_stopped: IsStopped | None = None
    ) -> Lease | None:
        """Acquire on checked terms; for the handles. None when the lock was busy or the timeout passed, or as soon as
        `is_stopped` says so.
        """
        # Before the request: it keeps the claim even if a signal handler raises just after the driver returned (H5).
        attempt = self._attempt(options)
        record = None
        try:
            grant = self._driver.run(acquire(attempt, may_wait=may_wait, timeout_ms=timeout_ms), is_stopped)
            if grant is None:
                return None
            listeners = Listeners(self._hooks, options.on_lost)
            record = self._record(attempt, grant, listeners)
            return self._keep(Lease(record, listeners, self._driver), record, listeners)
        except BaseException:
            self._give_up(attempt, record)
            raise

    def locks(self) -> Iterator[LockInfo]:
        """Yield what the source knows of each lock, in the order of their names, one page at a time."""
        after: str | None = None
        while page := self._driver.run(ask_source(ListLocks(after))):
            yield from page
            after = page[-1].name

    def info(self, name: str) -> LockInfo:
        """Return what the source knows of one lock; a lock that was never acquired has no token."""
        return self._driver.run(ask_source(Inspect(check_lock_name(name))))

    def describe(self) -> SourceInfo:
        """Return the source's id, epoch, history id and counter."""
        return self._driver.run(ask_source(ReadSource()))

    def check(self, sequencer: LeaseLike) -> LeaseCheck:
        """Return whether the lease of a sequencer holds its lock now, for how long, and the lock's last token.

        A check is not a guard: the lease may end between the answer and what you do next. Only a mark, which the
        resource compares with every write, refuses a late writer. In SQL one indexed read. WrongLockError,
        which names both sources, if another source has issued the sequencer.
        """
        return self._driver.run(renewal.check(check_sequencer(sequencer)))

    def keys(self) -> Keys:
        """Return the keys with which the source signs, and the ids of those that running leases were signed with.

        Only the owner of the source's schema may read them. UnsupportedError where clients reach the store itself
        (SQLite, etcd, ZooKeeper, DynamoDB, S3), since they could sign what they like.
        """
        return self._driver.run(ask_source(ReadKeys()))

    def add_key(self, *, after: float = 0.0) -> SigningKey:
        """Draw a key, with which the source signs what it grants from `after` seconds on.

        Bring it to the guards first: `guard.install_keys(source)`.
        """
        return self._driver.run(signing.add_key(*new_key(after)))

    def retire_key(self, key_id: str, *, force: bool = False) -> SigningKey:
        """Sign with this key no more; ConfigError while a running lease was signed with it, unless `force`."""
        return self._driver.run(signing.retire_key(key_id, is_forced=force))

    def purge(self) -> int:
        """Forget locks that nobody holds or waits for, and return how many; their tokens are never issued again."""
        return self._driver.run(ask_source(Purge()))

    def examine(self) -> list[Finding]:
        """Return the problems of the source's setup that break its guarantees, as `fencelock doctor` prints them."""
        return self._store.examine()

    def install(self) -> None:
        """Make the source's schema if the store has none; safe when run concurrently.

        SQLite makes its own with the first lock that is acquired.
        """
        self._store.install()

    def raise_epoch(self, *, reason: str) -> SourceInfo:
        """Begin a new history above every token issued before, and end every lease: after a restore or a move (T7).

        SourceError if another process raised it at the same moment.
        """
        info = self._driver.run(renewal.raise_epoch(check_reason(reason)))
        if info is None:
            raise SourceError(
                f"{self.url}: another process raised the epoch at this moment: look with `fencelock epoch`"
            )
        return info

    def break_lock(self, name: str, *, reason: str) -> BrokenLock:
        """End the lock's present lease, and mint a token with which guards can be sealed (G10).

        By itself this does not stop the old holder from writing: pass the result to `guard.outrank`.
        """
        claim = draw_claim()
        broken = self._driver.run(
            renewal.break_lock(check_lock_name(name), claim, default_holder(), check_reason(reason))
        )
        return broken_lock(name, claim, broken)
