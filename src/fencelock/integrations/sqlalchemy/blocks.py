"""`fenced`: the guarded block of a session or a connection, synchronous or asynchronous.

Promise: one name and one order of events for all four kinds. The asynchronous block runs the same code, in the way in
which SQLAlchemy runs its own; it waits for a commit that has begun, also if its task is cancelled.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, overload

from sqlalchemy import Connection
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session, scoped_session

from fencelock._api.base_guard import BaseGuard
from fencelock._api.durations import Duration
from fencelock._api.once import Once
from fencelock._drivers.uncancelled import wait_to_the_end
from fencelock.errors import ConfigError
from fencelock.integrations.fencing import FencedBlock, Fencing, SyncFencedBlock, fencing_of
from fencelock.integrations.sqlalchemy.connection import SQLAlchemyConnection, unreachable_error
from fencelock.integrations.sqlalchemy.units import CoreUnit, SessionUnit, Unit
from fencelock.integrations.sqlalchemy.urls import url_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    AsyncTarget = TypeVar("AsyncTarget", bound=AsyncSession | AsyncConnection)
_UNREACHABLE = (InterfaceError, OperationalError)
Target = TypeVar("Target")
SyncTarget = TypeVar("SyncTarget", bound=Session | Connection)


class FencedOptions(TypedDict, total=False):
    """The arguments of `fenced` besides the session and the lease."""

    resource: str
    resources: Iterable[str]
    guard: BaseGuard
    bind_arguments: Mapping[str, Any]
    once: str | Once | None
    idle: Duration


@contextmanager
def _guarded(unit: Unit, fencing: Fencing) -> Iterator[None]:
    """Begin and present; at the end withdraw and commit. The resources are sealed already."""
    adapter: SQLAlchemyConnection | None = None
    try:
        with unit.connected() as connection:
            adapter = SQLAlchemyConnection(connection, fencing.store)
            try:
                adapter.prepare()
                with adapter.until_commit() as stack, unit.begun(connection):
                    adapter.check_transaction()
                    stack.enter_context(fencing.presented(adapter.perform))
                    with adapter.kept_open():
                        yield
                        with fencing.limit.explaining():
                            adapter.check_still_open()
                        unit.finish()
            finally:
                adapter.restore()
    except Exception as error:
        if adapter is not None:
            mapped = adapter.map_error(error, is_committed=unit.is_committed())
        else:
            mapped = unreachable_error(fencing.store.url, error) if isinstance(error, _UNREACHABLE) else None
        fencing.explain(error, mapped)
        if mapped is None:
            raise
        raise mapped from error


class _Block(FencedBlock, Generic[Target]):
    """One guarded block, entered once."""

    def __init__(self, target: Target, unit: Unit, fencing: Fencing) -> None:
        super().__init__(fencing.new_entry())
        self._target = target
        self._unit = unit
        self._fencing = fencing

    def _use(self) -> None:
        super()._use()
        self._unit.check_idle()


class Fenced(_Block[Target], SyncFencedBlock):
    """The block of `with fenced(…)`; yields the session or connection that was passed in."""

    def __enter__(self) -> Target:
        self._use()
        try:
            self._entry.begin()
            self._fencing.seal()
            self._stack.enter_context(_guarded(self._unit, self._fencing))
        except BaseException:
            self._entry.end()
            raise
        return self._target


class AsyncFenced(_Block[Target]):
    """The block of `async with fenced(…)`; yields the session or connection that was passed in."""

    async def __aenter__(self) -> Target:
        self._use()
        try:
            self._entry.begin(asyncio.current_task())
            await self._fencing.seal_async()
            await self._run(lambda: self._stack.enter_context(_guarded(self._unit, self._fencing)))
        except BaseException:
            self._entry.end()
            raise
        return self._target

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            ending = self._run(lambda: self._stack.__exit__(kind, error, trace))
            await wait_to_the_end(asyncio.ensure_future(ending))
            self._entry.end()
        except BaseException:
            self._entry.end()
            raise

    async def _run(self, call: Callable[[], object]) -> None:
        """Run synchronous SQLAlchemy code on the loop."""
        target: Any = self._target
        await target.run_sync(lambda _: call())


@overload
def fenced(target: SyncTarget, lease: Any, **options: Unpack[FencedOptions]) -> Fenced[SyncTarget]: ...
@overload
def fenced(target: "AsyncTarget", lease: Any, **options: Unpack[FencedOptions]) -> "AsyncFenced[AsyncTarget]": ...
@overload
def fenced(target: scoped_session[Session], lease: Any, **options: Unpack[FencedOptions]) -> Fenced[Session]: ...
@overload
def fenced(
    target: "async_scoped_session[AsyncSession]", lease: Any, **options: Unpack[FencedOptions]
) -> "AsyncFenced[AsyncSession]": ...
def fenced(target: Any, lease: Any, **options: Unpack[FencedOptions]) -> Any:
    """Return a block that is one transaction of a session or connection, committed if no newer holder has sealed.

    `with` for a Session or a Connection, `async with` for an AsyncSession or an AsyncConnection; it must be in no
    transaction. `lease` is a lease or a Sequencer. `resource` or `resources` are at the engine's own URL; pass `guard`
    instead if they are elsewhere. `bind_arguments` choose the engine of a session that has several, as in
    `session.connection()`. Entering raises what `guard.seal` raises, GuardError if a transaction has begun already, and
    the lease's own error if it is over; the block raises UnfencedWriteError for a write to another resource's table;
    leaving raises GuardError if the block ended its transaction, OutcomeUnknownError if the commit was not confirmed.
    `once` is a key, or a Once with a result, as for `guard.transaction`: entering raises AlreadyDoneError if it was
    done. `idle` is as for `guard.transaction`: a block that sends nothing for longer is ended by the server.
    """
    if _is_a(target, scoped_session, "async_scoped_session"):
        target = target()
    is_async = _is_a(target, (), "AsyncSession", "AsyncConnection")
    plain = _plain(target) if is_async else target
    unit: Unit
    bind_arguments = options.get("bind_arguments")
    if isinstance(plain, Session):
        unit = SessionUnit(plain, bind_arguments)
    elif isinstance(plain, Connection) and bind_arguments is None:
        unit = CoreUnit(plain)
    else:
        raise ConfigError(
            f"fenced(…) takes a Session, a Connection or an asynchronous one (bind_arguments with a session only), not "
            f"{type(target).__name__}"
        )
    guard = options.get("guard")
    url = "" if guard is not None else url_of(unit.engine)
    named = options.get("resource"), options.get("resources")
    fencing = fencing_of(lease, url, *named, guard, options.get("idle"), options.get("once"))
    return (AsyncFenced if is_async else Fenced)(target, unit, fencing)


def _is_a(target: Any, kinds: Any, *asynchronous: str) -> bool:
    """Return whether the target is of a kind; asynchronous kinds exist only if their module was imported."""
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    also = () if module is None else tuple(getattr(module, name) for name in asynchronous)
    return isinstance(target, (kinds, *also) if isinstance(kinds, type) else also)


def _plain(target: Any) -> Any:
    """Return the synchronous object behind an asynchronous one."""
    return target.sync_session if hasattr(target, "sync_session") else target.sync_connection
