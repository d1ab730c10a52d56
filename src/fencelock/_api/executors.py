"""The work of a guard for tasks: on the loop if the store's client speaks asyncio, otherwise in threads.

Promise: a lock or a flush of the store never blocks the event loop. Beginnings and ends of transactions have separate
threads, so that those that wait for the write lock never keep its owner from committing. A commit that has begun runs
to its end even if its task is cancelled.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from fencelock._api.credentials import Credential, asking
from fencelock._api.guard_core import FAILED, ROLLED_BACK, GuardCore, GuardedWork
from fencelock._api.idle_limit import IdleLimit
from fencelock._api.once import Once
from fencelock._api.preparing import prepare, repair
from fencelock._api.proving import is_proven, prove
from fencelock._api.validation import check_keeps_open
from fencelock._drivers.aio import Threads
from fencelock._drivers.guard import run_async
from fencelock._drivers.uncancelled import UncancelledThreads, wait_to_the_end
from fencelock._flows import admin
from fencelock.errors import GuardError
from fencelock.model import SourceInfo, default_holder
from fencelock.protocol.guard_requests import GuardFlow
from fencelock.protocol.stores import (
    AsyncCallerGuardStore,
    AsyncGuardConnection,
    AsyncGuardStore,
    GuardConnection,
    GuardStore,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

Result = TypeVar("Result")


class AsyncWork(Protocol):
    """One guarded transaction as two steps, as `GuardedWork` has them."""

    def open(self) -> Awaitable[Any]:
        """Seal if need be, begin, present the lease, and return the native connection; if cancelled, undo it."""

    def end(self, error: BaseException | None) -> Awaitable[GuardError | None]:
        """Commit, or roll back; return the GuardError that the exception stands for, if any."""


class Executor(Protocol):
    """Does a guard's work for tasks."""

    async def prove(self) -> None:
        """Have the store prove itself, unless it has in this process."""

    async def run(self, flow: GuardFlow[Result]) -> Result:
        """Run a flow that changes something, on a connection of the guard's own."""

    async def read(self, flow: GuardFlow[Result]) -> Result:
        """Run a flow that changes nothing."""

    async def seal(self, credential: Credential, once: Once | None = None) -> None:
        """Seal every resource."""

    async def close(self, credential: Credential) -> None:
        """Make the lease's own token stale."""

    async def rebind(self, lock: str, source: SourceInfo, reason: str) -> None:
        """Bind every resource to another lock, and this guard with them."""

    async def install(self) -> None:
        """Create the store's schema if it has none."""

    async def repair(self) -> None:
        """Create again what somebody has dropped of the store's schema."""

    async def prepare(self, tables: tuple[str, ...]) -> None:
        """Have the store make its schema before it protects these tables."""

    def work(self, credential: Credential, limit: IdleLimit, once: Once | None) -> AsyncWork:
        """Return a guarded transaction that has not begun."""

    def caller_connection(self, native: Any) -> AsyncGuardConnection:
        """Return a connection that uses the caller's own."""


def executor_for(core: GuardCore) -> Executor:
    """Return the executor that this guard's store needs."""
    return AsyncioExecutor(core) if core.store.capabilities.speaks_asyncio else ThreadExecutor(core)


class AsyncioExecutor:
    """Over a store whose client speaks asyncio."""

    def __init__(self, core: GuardCore) -> None:
        self._core = core
        self._store = cast("AsyncGuardStore", core.store)

    async def prove(self) -> None:
        """Have the store prove itself, unless it has in this process."""
        await _prove(self._core.store)

    async def run(self, flow: GuardFlow[Result]) -> Result:
        """Run a flow that changes something, on a connection of the guard's own."""
        await self.prove()
        return await self.read(flow)

    async def read(self, flow: GuardFlow[Result]) -> Result:
        """Run a flow that changes nothing."""
        connection = self._store.connect_async()
        try:
            return await run_async(flow, connection)
        finally:
            connection.close()

    async def seal(self, credential: Credential, once: Once | None = None) -> None:
        """Seal every resource."""
        with self._core.emitting_refusals(credential):
            sealed = await self.run(self._core.seal_flow(credential, once))
        self._core.emit_sealed(credential, sealed)

    async def close(self, credential: Credential) -> None:
        """Make the lease's own token stale."""
        with self._core.emitting_refusals(credential):
            await self.run(self._core.close_flow(credential))

    async def rebind(self, lock: str, source: SourceInfo, reason: str) -> None:
        """Bind every resource to another lock, and this guard with them."""
        scope = self._core.scope
        await self.run(admin.rebind(scope, lock, source, default_holder(), reason))
        self._core.scope = scope.bound_to(lock)

    async def install(self) -> None:
        """Create the store's schema if it has none."""
        await _run_in_thread(self._store.install)

    async def repair(self) -> None:
        """Create again what somebody has dropped of the store's schema."""
        await _run_in_thread(partial(repair, self._store))

    async def prepare(self, tables: tuple[str, ...]) -> None:
        """Have the store make its schema before it protects these tables."""
        await _run_in_thread(partial(prepare, self._store, tables))

    def work(self, credential: Credential, limit: IdleLimit, once: Once | None) -> "AsyncioWork":
        """Return a guarded transaction that has not begun."""
        return AsyncioWork(self._core, self._store, credential, limit, once)

    def caller_connection(self, native: Any) -> AsyncGuardConnection:
        """Return a connection that uses the caller's own."""
        check_keeps_open(self._store, native)
        return cast("AsyncCallerGuardStore", self._store).async_caller_connection(native)


async def _prove(store: GuardStore) -> None:
    if not is_proven(store):
        await _run_in_thread(partial(prove, store))


async def _run_in_thread(work: Callable[[], None]) -> None:
    """Do what is rare enough for a thread of its own."""
    threads = Threads()
    try:
        await threads.run(work)
    finally:
        threads.close()


class AsyncioWork:
    """A transaction of one guard for one tenure, used once."""

    __slots__ = ("_began_s", "_connection", "_core", "_credential", "_limit", "_once", "_presented", "_store")

    def __init__(
        self, core: GuardCore, store: AsyncGuardStore, credential: Credential, limit: IdleLimit, once: Once | None
    ) -> None:
        self._core = core
        self._store = store
        self._credential = credential
        self._limit = limit
        self._once = once
        self._connection: AsyncGuardConnection | None = None
        self._presented: tuple[str, ...] = ()

    async def open(self) -> Any:
        """Seal if need be, begin, present the lease, and return the native connection."""
        core, credential = self._core, self._credential
        self._began_s = time.monotonic()
        with asking(credential):
            await _prove(core.store)
            connection = self._store.connect_async()
        try:
            with core.emitting_refusals(credential):
                opened = await run_async(core.open_flow(credential, self._limit, self._once), connection)
        except BaseException:
            connection.close()
            raise
        core.emit_opened(credential, opened)
        self._connection = connection
        self._presented = opened.presented
        return connection.native

    async def end(self, error: BaseException | None) -> GuardError | None:
        """Commit, or roll back after an exception; return the GuardError that the exception stands for, if any."""
        # A task of its own: a cancelled block waits for the commit that has begun, and never breaks it off.
        return await wait_to_the_end(asyncio.ensure_future(self._end(error)))

    async def _end(self, error: BaseException | None) -> GuardError | None:
        connection = self._connection
        assert connection is not None, "open comes first"
        reason: str | None = FAILED
        try:
            if error is None:
                with self._core.emitting_refusals(self._credential), self._limit.explaining():
                    flow = self._core.finish_flow(self._credential, self._presented, self._once)
                    await run_async(flow, connection)
                reason = None
                return None
            await connection.rollback()
            reason = ROLLED_BACK
            mapped = connection.map_error(error)
            self._limit.explain(error, mapped)
            return mapped
        finally:
            connection.close()
            # After the connection is given back: a hook is the user's code, and no transaction waits for it.
            self._core.emit_guarded(self._credential, self._began_s, reason)


class ThreadExecutor:
    """Over a store whose client is synchronous."""

    def __init__(self, core: GuardCore) -> None:
        self._core = core
        self._beginnings = UncancelledThreads()
        # Threads of their own: beginnings that wait for the write lock must leave its owner one to commit in.
        self._ends = UncancelledThreads()

    async def prove(self) -> None:
        """Have the store prove itself, unless it has in this process."""
        await _prove(self._core.store)

    async def run(self, flow: GuardFlow[Result]) -> Result:
        """Run a flow that changes something, on a connection of the guard's own."""
        return await self._beginnings.run(self._core.run, flow)

    async def read(self, flow: GuardFlow[Result]) -> Result:
        """Run a flow that changes nothing."""
        return await self._beginnings.run(self._core.read, flow)

    async def seal(self, credential: Credential, once: Once | None = None) -> None:
        """Seal every resource."""
        await self._beginnings.run(self._core.seal, credential, once)

    async def close(self, credential: Credential) -> None:
        """Make the lease's own token stale."""
        await self._beginnings.run(self._core.close, credential)

    async def rebind(self, lock: str, source: SourceInfo, reason: str) -> None:
        """Bind every resource to another lock, and this guard with them."""
        await self._beginnings.run(self._core.rebind, lock, source, reason)

    async def install(self) -> None:
        """Create the store's schema if it has none."""
        await self._beginnings.run(self._core.store.install)

    async def repair(self) -> None:
        """Create again what somebody has dropped of the store's schema."""
        await self._beginnings.run(repair, self._core.store)

    async def prepare(self, tables: tuple[str, ...]) -> None:
        """Have the store make its schema before it protects these tables."""
        await self._beginnings.run(prepare, self._core.store, tables)

    def work(self, credential: Credential, limit: IdleLimit, once: Once | None) -> "ThreadWork":
        """Return a guarded transaction that has not begun."""
        return ThreadWork(GuardedWork(self._core, credential, limit, once), self._beginnings, self._ends)

    def caller_connection(self, native: Any) -> AsyncGuardConnection:
        """Return a connection that uses the caller's own in the loop's thread, where that is."""
        return CallerThreadConnection(self._core.caller_connection(native))


class ThreadWork:
    """A transaction whose two steps run in threads."""

    __slots__ = ("_beginnings", "_ends", "_work")

    def __init__(self, work: GuardedWork, beginnings: UncancelledThreads, ends: UncancelledThreads) -> None:
        self._work = work
        self._beginnings = beginnings
        self._ends = ends

    def open(self) -> "Coroutine[Any, Any, Any]":
        """Seal if need be, begin, present the lease, and return the native connection."""
        # First, so that no transaction stays open because its end finds no thread.
        self._ends.started()
        return self._beginnings.run_or_undo(self._work.open, self._undo)

    def end(self, error: BaseException | None) -> "Coroutine[Any, Any, GuardError | None]":
        """Commit, or roll back after an exception; return the GuardError that the exception stands for, if any."""
        end: Callable[..., GuardError | None] = self._work.end
        return self._ends.run_to_end(end, error)

    def _undo(self) -> None:
        """Roll back a transaction whose task was cancelled while it was being opened: it contains no writes."""
        self._work.end(asyncio.CancelledError())


class CallerThreadConnection:
    """The caller's synchronous connection; it blocks the loop no longer than the caller's own calls do."""

    __slots__ = ("_connection",)

    def __init__(self, connection: GuardConnection) -> None:
        self._connection = connection

    @property
    def native(self) -> Any:
        """The caller's own object."""
        return self._connection.native

    async def perform(self, request: Any) -> Any:
        """Run one request."""
        return self._connection.perform(request)

    async def rollback(self) -> None:
        """Leave the transaction to its owner."""
        self._connection.rollback()

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return the GuardError that an exception from the user's block stands for, if any."""
        return self._connection.map_error(error)

    def close(self) -> None:
        """Leave the connection to its owner."""
        self._connection.close()
