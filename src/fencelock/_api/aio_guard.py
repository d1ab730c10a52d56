"""The async guard: the same names and rules.

Promise: a lock or a flush of the store never blocks the event loop. A block gets the client's own connection: an
asynchronous one if the client has one (PostgreSQL), otherwise a synchronous one that threads open and commit (SQLite).
Only SQL databases have open transactions: elsewhere the block gets an object that collects its writes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar

from fencelock._api.advice import GUARD_WORDS, MADE_BY_GUARD, advised
from fencelock._api.aio_guard_blocks import AsyncAdmission, AsyncGuardedTransaction
from fencelock._api.base_guard import BaseGuard
from fencelock._api.credentials import LeaseLike, credential_of
from fencelock._api.durations import Duration
from fencelock._api.executors import executor_for
from fencelock._api.guard_core import check_free
from fencelock._api.idle_limit import IdleLimit
from fencelock._api.once import Once, once_of
from fencelock._api.preparing import check_transactional_ddl
from fencelock._api.validation import (
    check_closable,
    check_info,
    check_keys,
    check_protect,
    check_rebuilt,
    check_roles,
    check_tables,
    scope_at,
)
from fencelock._drivers.guard import run_async
from fencelock._flows import admin, rights
from fencelock._flows.rights import Cured
from fencelock._flows.tenure import Scope
from fencelock.hooks import NO_HOOKS, Hooks
from fencelock.model import Mark, SourceInfo, check_lock_name, check_reason, check_token, default_holder
from fencelock.protocol.guard_requests import ENFORCE, GuardFlow, Right
from fencelock.protocol.stores import AsyncGuardConnection, GuardStore
from fencelock.stores.registry import Location, guard_store

if TYPE_CHECKING:
    from fencelock._api.aio_source import AsyncSource
    from fencelock._api.source import Source
    from fencelock.protocol.source_requests import Keys

Result = TypeVar("Result")


@advised(GUARD_WORDS)
def guard(
    url: Location,
    *,
    resource: str | None = None,
    resources: Iterable[str] | None = None,
    lock: str,
    independent: bool = False,
    hooks: Hooks = NO_HOOKS,
) -> "AsyncGuard":
    """Return a guard of one resource, or of several that are sealed together, at `url`. Opens nothing yet.

    The arguments are those of `fencelock.guard`. Hooks run where the work is done: on the loop (PostgreSQL), or in
    threads (SQLite).
    """
    store = guard_store(url)
    return AsyncGuard(store, scope_at(store, resource, resources, lock, independent=independent), hooks)


class AsyncGuard(BaseGuard):
    """Enforces tokens at one or several resources of one store. `fencelock.aio.guard(…)` makes one."""

    @advised({}, MADE_BY_GUARD)
    def __init__(self, store: GuardStore, scope: Scope, hooks: Hooks) -> None:
        super().__init__(store, scope, hooks)
        self._executor = executor_for(self._core)

    async def seal(self, lease: LeaseLike, *, connection: Any = None) -> None:
        """Raise the mark of every resource to the lease's token, on the disk, before anything is read from them.

        As `fencelock.Guard.seal`. A task that is cancelled meanwhile leaves at once; the seal may still be made.
        """
        if connection is not None:
            _ = await self._admission(lease, connection, may_raise=True)
            return
        credential = credential_of(lease)
        block = object()
        try:
            credential.enter_guarded(block)
            self._check_free()
            await self._executor.seal(credential)
            credential.leave_guarded(block)
        except BaseException:
            credential.leave_guarded(block)
            raise

    def transaction(
        self, lease: LeaseLike, *, once: str | Once | None = None, idle: Duration | None = None
    ) -> "AsyncGuardedTransaction":
        """Return an `async with` block whose writes are committed at its end, if no newer holder has sealed a resource.

        As `fencelock.Guard.transaction`. PostgreSQL: a psycopg.AsyncConnection. SQLite: the connection is synchronous,
        and may be used in the loop's thread or in another one. A task that is cancelled while the block commits gets
        its CancelledError after the commit.
        """
        credential = credential_of(lease)
        once_only = once_of(once, self._core.scope)
        work = self._executor.work(credential, IdleLimit(credential, idle), once_only)
        return AsyncGuardedTransaction(self._core.scope.url, credential, work)

    def check(self, lease: LeaseLike, *, connection: Any, once: str | Once | None = None) -> "AsyncAdmission":
        """Check inside your own open transaction that the lease is the newest holder, and hold the marks there.

        As `fencelock.Guard.check`: `await` it, or write in `async with guard.check(lease, connection=…):`. SQLite: it
        runs in the loop's thread, where your connection is.
        """
        return self._admission(lease, connection, once_of(once, self._core.scope), may_raise=False)

    def _admission(
        self, lease: LeaseLike, native: Any, once: Once | None = None, *, may_raise: bool
    ) -> "AsyncAdmission":
        return AsyncAdmission(self._executor, self._core, credential_of(lease), native, once, may_raise=may_raise)

    async def close(self, lease: LeaseLike) -> None:
        """Make the lease's own token stale at every resource: its late tasks and children can no longer write."""
        credential = credential_of(lease)
        check_closable(credential)
        self._check_free()
        await self._executor.close(credential)

    async def mark(self) -> Mark:
        """Return the mark of the guard's one resource; token 0 if it was never sealed."""
        return (await self.marks())[self._only_resource("mark")]

    async def marks(self) -> dict[str, Mark]:
        """Return the mark of every resource of the guard, by its name."""
        return await self._executor.read(self._core.marks_flow())

    async def install(self) -> None:
        """Make the guard's half of fencelock's schema if the store has none; as `fencelock.Guard.install`."""
        await self._executor.install()

    async def protect(
        self,
        *tables: str,
        mode: str = ENFORCE,
        source: "AsyncSource | Source | SourceInfo | None" = None,
        connection: Any = None,
    ) -> None:
        """Have the store itself refuse (`enforce`) or count (`observe`) writes to the tables that present no token.

        As `fencelock.Guard.protect`; `source` is an async or a sync one.
        """
        self._only_resource("protect")
        check_protect(self._core.store, self._core.scope, tables, mode)
        info = None if source is None else await _source_info(source)
        who = default_holder()
        asked = (self._core.scope, tables, mode, info, who)
        if connection is None:
            self._check_free()
            await self._executor.prepare(tables)
            await self._operate(admin.protect(*asked) if tables else admin.create_mark(self._core.scope, info, who))
        else:
            inside = self._inside(connection)
            await self._executor.install()
            await run_async(admin.protect_inside(*asked), inside)

    async def unprotect(self, *tables: str, reason: str, connection: Any = None) -> None:
        """Stop protecting these tables, or all tables of the resource if none is named. The mark stays."""
        self._only_resource("unprotect")
        check_tables(tables)
        asked = (self._core.scope, tables, default_holder(), check_reason(reason))
        if connection is None:
            self._check_free()
            await self._executor.repair()
            await self._operate(admin.unprotect(*asked))
        else:
            await run_async(admin.unprotect_inside(*asked), self._inside(connection))

    @asynccontextmanager
    async def rebuilding(self, *tables: str, connection: Any) -> AsyncIterator[None]:
        """A block inside your own transaction for DDL on protected tables. As `fencelock.Guard.rebuilding`."""
        self._only_resource("rebuilding")
        check_rebuilt(tables)
        inside = self._inside(connection)
        await run_async(admin.hold(self._core.scope), inside)
        yield
        await run_async(admin.restore(self._core.scope, tables), inside)

    def _inside(self, native: Any) -> AsyncGuardConnection:
        self._check_free()
        connection = self._executor.caller_connection(native)
        check_transactional_ddl(self._core.store)
        return connection

    async def lower(self, token: int, *, reason: str) -> None:
        """Set the mark of the guard's one resource to a lower token: the remedy for a poisoned mark."""
        self._only_resource("lower")
        await self._operate(admin.lower(self._core.scope, check_token(token), default_holder(), check_reason(reason)))

    async def raise_to(
        self, source: "AsyncSource | Source | SourceInfo | int", *, reason: str, implausible: bool = False
    ) -> None:
        """Raise every mark to the source's last token, or to a token: the step after the resource was restored.

        As `fencelock.Guard.raise_to`.
        """
        to = check_token(source) if isinstance(source, int) else await _source_info(source)
        who, why = default_holder(), check_reason(reason)
        await self._operate(admin.raise_to(self._core.scope, to, who, why, is_implausible=implausible))

    async def rebind(self, lock: str, *, source: "AsyncSource | Source | SourceInfo", reason: str) -> None:
        """Bind the resources, and this guard, to another lock or source, whose tokens are above every mark."""
        self._check_free()
        info = await _source_info(source)
        await self._executor.rebind(check_lock_name(lock), info, check_reason(reason))

    async def outrank(self, lease: LeaseLike, *, reason: str) -> None:
        """Raise every mark to the token minted by breaking the lock, so that the broken lease can write no more."""
        sequencer = credential_of(lease).sequencer
        await self._operate(admin.outrank(self._core.scope, sequencer, default_holder(), check_reason(reason)))

    # --- who may write ------------------------------------------------------------------------------------------------
    async def grant(self, *roles: str, resource: str | None = None) -> None:
        """Let these roles of the database seal, present and close the guard's resources. As `fencelock.Guard.grant`."""
        await self._operate(rights.grant(self._own_patterns(resource), check_roles(roles), default_holder()))

    async def revoke(self, role: str, *, resource: str | None = None, reason: str) -> tuple[Right, ...]:
        """Take every right of the role that covers the guard's resources, or `resource`; return what it had."""
        patterns, (role,) = self._patterns(resource), check_roles((role,))
        return await self._operate(rights.revoke(patterns, role, default_holder(), check_reason(reason)))

    async def require_signatures(self, is_required: bool = True, *, reason: str) -> None:
        """Accept at a seal only sequencers that one of the installed keys has signed, or any again."""
        await self._operate(
            rights.require_signatures(self.resources, is_required, default_holder(), check_reason(reason))
        )

    async def install_keys(self, source: "AsyncSource | Source | Keys") -> None:
        """Bring the source's keys to this store, for all its resources; they replace the ones that it had."""
        found: Any = source
        if callable(getattr(found, "keys", None)):
            found = found.keys()
        keys = check_keys(await found if isawaitable(found) else found)
        await self._operate(rights.install_keys(keys.keys, default_holder()))

    async def unpoison(self, *roles: str, source: "AsyncSource | Source | SourceInfo", reason: str) -> Cured:
        """Undo what a forger did to the marks, and keep it from doing it again. As `fencelock.Guard.unpoison`."""
        info = await _source_info(source)
        names, why = check_roles(roles, at_least=0), check_reason(reason)
        flow = rights.unpoison(self._core.scope, names, info, default_holder(), why)
        return await self._operate(flow)

    async def _operate(self, flow: GuardFlow[Result]) -> Result:
        self._check_free()
        return await self._executor.run(flow)

    def _check_free(self) -> None:
        check_free(self.url, asyncio.current_task())


async def _source_info(source: "AsyncSource | Source | SourceInfo") -> SourceInfo:
    info = source.describe() if hasattr(source, "describe") else source
    return check_info(await info if isawaitable(info) else info)
