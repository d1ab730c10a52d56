"""`fencelock.aio.connect`: the async source, twin of `source.py`.

Promise: no request blocks the loop; an acquire that is cancelled at any await leaves no claim behind (H5).
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, Self

from fencelock._api.advice import CONNECT_WORDS, LEAD_WORDS, LOCK_WORDS, MADE_BY_CONNECT, advised
from fencelock._api.aio_leading import AsyncTerms
from fencelock._api.aio_lease import AsyncLease, call_on_loop
from fencelock._api.aio_lock import AsyncLock, AsyncRLock
from fencelock._api.credentials import LeaseLike
from fencelock._api.durations import Duration
from fencelock._api.leading import StopEvent
from fencelock._api.lock_options import DEFAULT_TTL_S, LockOptions
from fencelock._api.proofs import broken_lock, check_sequencer, new_key
from fencelock._api.source import BaseSource
from fencelock._drivers.aio import AsyncDriver
from fencelock._drivers.sync import IsStopped
from fencelock._flows import renewal, signing
from fencelock._flows.acquire import acquire
from fencelock._flows.retry import ask_source
from fencelock._keeper.record import Listeners
from fencelock.errors import SourceError
from fencelock.hooks import NO_HOOKS, Hooks, logger
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
from fencelock.stores.registry import Location


@advised(CONNECT_WORDS)
def connect(url: Location | None = None, *, hooks: Hooks = NO_HOOKS) -> "AsyncSource":
    """Return the async source that the URL names; nothing is opened yet. Parameters and errors as
    `fencelock.connect`.
    """
    return AsyncSource(url, hooks)


class AsyncSource(BaseSource):
    """A source of fencing tokens: makes async handles to locks, and shows what it knows of them.

    `fencelock.aio.connect(…)` makes one.
    """

    @advised({}, MADE_BY_CONNECT)
    def __init__(self, url: Location | None, hooks: Hooks) -> None:
        super().__init__(url, hooks)
        self._driver = AsyncDriver(self._store)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Leases that are still held go on being renewed until they are released."""
        await self._driver.close()

    @advised(LOCK_WORDS)
    def lock(
        self,
        name: str,
        *,
        ttl: Duration = DEFAULT_TTL_S,
        timeout: Duration | None = None,
        on_lost: Callable[[str], Any] | None = None,
        holder: str | None = None,
    ) -> AsyncLock:
        """Return a handle to the named lock; parameters as `Source.lock`. `on_lost`, plain or async, runs on
        the loop.
        """
        return AsyncLock(self, self._options(name, ttl, timeout, holder, on_lost))

    @advised(LOCK_WORDS)
    def rlock(
        self,
        name: str,
        *,
        ttl: Duration = DEFAULT_TTL_S,
        timeout: Duration | None = None,
        on_lost: Callable[[str], Any] | None = None,
        holder: str | None = None,
    ) -> AsyncRLock:
        """Return a handle that its task may acquire again while it holds the lock; parameters as for `lock`."""
        return AsyncRLock(self, self._options(name, ttl, timeout, holder, on_lost))

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
    ) -> AsyncTerms:
        """Return a loop over terms: `async for term in source.lead(name):`, with `async with term as lease:` inside.

        As `Source.lead`. A task that `lease.cancel_on_lost()` has cancelled campaigns again, too; any other
        cancellation leaves the loop, with the lease released. `stop` may be an event of asyncio or of threading.
        """
        options = self._options(name, ttl, None, holder, on_lost)
        return AsyncTerms(partial(self.take, options, True, None), name, self._hooks, stop, retry_on)

    async def take(
        self, options: LockOptions, may_wait: bool, timeout_ms: int | None, is_stopped: IsStopped | None = None
    ) -> AsyncLease | None:
        """Acquire on checked terms; for the handles. None when the lock was busy or the timeout passed, or as soon as
        `is_stopped` says so.
        """
        # Made before the request: it keeps the claim wherever the task is cancelled (H5).
        attempt = self._attempt(options)
        record = None
        try:
            grant = await self._driver.run_in_turn(
                options.name,
                timeout_ms,
                lambda left_ms: acquire(attempt, may_wait=may_wait, timeout_ms=left_ms),
                is_stopped,
            )
            if grant is None:
                return None
            listeners = Listeners(self._hooks, None if options.on_lost is None else on_this_loop(options.on_lost))
            record = self._record(attempt, grant, listeners)
            return self._keep(AsyncLease(record, listeners, self._driver), record, listeners)
        except BaseException:
            self._give_up(attempt, record)
            raise

    async def locks(self) -> AsyncIterator[LockInfo]:
        """Yield what the source knows of each lock, in the order of their names, one page at a time."""
        after: str | None = None
        while page := await self._driver.run(ask_source(ListLocks(after))):
            for info in page:
                yield info
            after = page[-1].name

    async def info(self, name: str) -> LockInfo:
        """Return what the source knows of one lock; a lock that was never acquired has no token."""
        return await self._driver.run(ask_source(Inspect(check_lock_name(name))))

    async def describe(self) -> SourceInfo:
        """Return the source's id, epoch, history id and counter."""
        return await self._driver.run(ask_source(ReadSource()))

    async def check(self, sequencer: LeaseLike) -> LeaseCheck:
        """Return whether the sequencer's lease holds its lock now; a check is not a guard. As `Source.check`."""
        return await self._driver.run(renewal.check(check_sequencer(sequencer)))

    async def keys(self) -> Keys:
        """Return the keys with which the source signs, as `Source.keys`."""
        return await self._driver.run(ask_source(ReadKeys()))

    async def add_key(self, *, after: float = 0.0) -> SigningKey:
        """Draw a key, with which the source signs what it grants from `after` seconds on."""
        return await self._driver.run(signing.add_key(*new_key(after)))

    async def retire_key(self, key_id: str, *, force: bool = False) -> SigningKey:
        """Sign with this key no more; ConfigError while a running lease was signed with it, unless `force`."""
        return await self._driver.run(signing.retire_key(key_id, is_forced=force))

    async def purge(self) -> int:
        """Forget locks that nobody holds or waits for, and return how many; their tokens are never issued again."""
        return await self._driver.run(ask_source(Purge()))

    async def examine(self) -> list[Finding]:
        """Return the problems of the source's setup that break its guarantees, as `fencelock doctor` prints them."""
        return await self._driver.in_thread(self._store.examine)

    async def install(self) -> None:
        """Make the source's schema if the store has none; safe when run concurrently."""
        await self._driver.in_thread(self._store.install)

    async def raise_epoch(self, *, reason: str) -> SourceInfo:
        """Begin a new history above every token issued before, and end every lease; as `Source.raise_epoch`."""
        info = await self._driver.run(renewal.raise_epoch(check_reason(reason)))
        if info is None:
            raise SourceError(
                f"{self.url}: another process raised the epoch at this moment: look with `fencelock epoch`"
            )
        return info

    async def break_lock(self, name: str, *, reason: str) -> BrokenLock:
        """End the lock's lease, no matter who has it, and mint a token for guards to be sealed with; as
        `Source.break_lock`.
        """
        claim = draw_claim()
        broken = await self._driver.run(
            renewal.break_lock(check_lock_name(name), claim, default_holder(), check_reason(reason))
        )
        return broken_lock(name, claim, broken)


def on_this_loop(callback: Callable[[str], Any]) -> Callable[[str], None]:
    """Return a function for any thread that has the running loop call the callback, and run what it returns."""
    loop = asyncio.get_running_loop()
    running: set[asyncio.Future[Any]] = set()

    def run(reason: str) -> None:
        try:
            result = callback(reason)
        except Exception:
            logger.exception("on_lost raised; the lease is over all the same")
            return
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(result)
            running.add(task)  # The loop itself refers to its tasks weakly.
            task.add_done_callback(running.discard)

    return lambda reason: call_on_loop(loop, run, reason)
