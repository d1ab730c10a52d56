"""The blocks of the async guard: a guarded transaction of its own, and the admission of the caller's transaction.

Promise: as for `guard_blocks.py`.
"""

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import Any

from fencelock._api.credentials import Credential
from fencelock._api.executors import AsyncWork, Executor
from fencelock._api.guard_core import GuardCore, OpenBlock, check_unused
from fencelock._api.idle_limit import IdleLimit
from fencelock._api.once import Once
from fencelock._api.uncopyable import UncopyableBlock
from fencelock._drivers.guard import run_async
from fencelock.errors import FencelockError
from fencelock.protocol.stores import AsyncGuardConnection


class AsyncGuardedTransaction(UncopyableBlock):
    """The block of one guarded transaction; entering it gives the client's own connection.

    `guard.transaction(lease)` makes one. It is entered once.
    """

    __slots__ = ("_block", "_credential", "_is_used", "_open_block", "_work")

    def __init__(self, url: str, credential: Credential, work: AsyncWork) -> None:
        self._credential = credential
        self._work = work
        self._is_used = False
        self._block = object()
        self._open_block = OpenBlock(url)

    def __del__(self) -> None:
        """End the block here if a signal handler raised before the first line of `__aexit__`."""
        if hasattr(self, "_open_block"):
            self._leave()

    async def __aenter__(self) -> Any:
        check_unused(is_used=self._is_used)
        self._is_used = True
        try:
            self._credential.enter_guarded(self._block)
            self._open_block.begin(asyncio.current_task())
            return await self._work.open()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            mapped = await self._work.end(error)
            self._leave()
        except BaseException:
            self._leave()
            raise
        if mapped is not None:
            raise mapped from error

    def _leave(self) -> None:
        self._open_block.end()
        self._credential.leave_guarded(self._block)


class AsyncAdmission(UncopyableBlock):
    """What `guard.check` found: the lease is the newest holder. As a block, it admits writes to protected tables."""

    __slots__ = (
        "_block",
        "_connection",
        "_core",
        "_credential",
        "_executor",
        "_limit",
        "_may_raise",
        "_native",
        "_once",
        "_presented",
    )

    def __init__(
        self,
        executor: Executor,
        core: GuardCore,
        credential: Credential,
        native: Any,
        once: Once | None,
        *,
        may_raise: bool,
    ) -> None:
        self._executor = executor
        self._core = core
        self._credential = credential
        self._limit = IdleLimit(credential)
        self._native = native
        self._once = once
        self._may_raise = may_raise
        self._connection: AsyncGuardConnection | None = None
        self._presented: tuple[str, ...] = ()
        self._block = object()

    def __await__(self) -> Generator[Any, None, "AsyncAdmission"]:
        yield from self._admit().__await__()
        return self

    async def __aenter__(self) -> None:
        connection = await self._admit()
        try:
            self._credential.enter_guarded(self._block)
            with self._core.emitting_refusals(self._credential):
                flow = self._core.present_flow(self._credential, self._limit, self._once)
                self._presented = (await run_async(flow, connection)).presented
        except BaseException:
            self._credential.leave_guarded(self._block)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._unpresent(await self._admit(), error)
            self._credential.leave_guarded(self._block)
        except BaseException:
            self._credential.leave_guarded(self._block)
            raise

    async def _unpresent(self, connection: AsyncGuardConnection, error: BaseException | None) -> None:
        try:
            with self._core.emitting_refusals(self._credential), self._limit.explaining():
                flow = self._core.withdraw_flow(self._credential, self._presented, self._once)
                await run_async(flow, connection)
        except FencelockError:
            # After a failure inside the block the caller rolls back, and then there is nothing left to take back.
            if error is None:
                raise
        if error is not None:
            mapped = connection.map_error(error)
            self._limit.explain(error, mapped)
            if mapped is not None:
                raise mapped from error

    async def _admit(self) -> AsyncGuardConnection:
        """Return the caller's connection, in whose transaction the marks were found to be this lease's."""
        if self._connection is None:
            core, credential = self._core, self._credential
            credential.check_valid()
            await self._executor.prove()
            connection = self._executor.caller_connection(self._native)
            flow = core.check_flow(credential, self._once, may_raise=self._may_raise)
            try:
                # As for the sync guard.
                credential.enter_guarded(self._block)
                with core.emitting_refusals(credential):
                    sealed = await run_async(flow, connection)
                core.emit_sealed(credential, sealed)
                credential.leave_guarded(self._block)
            except BaseException:
                credential.leave_guarded(self._block)
                raise
            self._connection = connection
        return self._connection
