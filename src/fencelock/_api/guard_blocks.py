"""The blocks of the sync guard: a guarded transaction of its own, and the admission of the caller's transaction.

Promise: whatever leaves a block as an exception undoes it; a block that ended stays ended, and bars no later block of
its thread, wherever a signal handler raised.
"""

from types import TracebackType
from typing import Any

from fencelock._api.credentials import Credential
from fencelock._api.guard_core import GuardCore, GuardedWork, OpenBlock
from fencelock._api.idle_limit import IdleLimit
from fencelock._api.once import Once
from fencelock._api.uncopyable import UncopyableBlock
from fencelock._drivers.guard import run
from fencelock.errors import FencelockError


class GuardedTransaction(UncopyableBlock):
    """The block of one guarded transaction; entering it gives the client's own connection.

    `guard.transaction(lease)` makes one. It is entered once.
    """

    # A signal handler may raise anywhere: each thing is begun inside of what undoes it, and undone twice if need be.
    # Whatever stayed would bar every later block of this thread.
    __slots__ = ("_block", "_credential", "_open_block", "_work")

    def __init__(self, core: GuardCore, credential: Credential, limit: IdleLimit, once: Once | None) -> None:
        self._credential = credential
        self._work = GuardedWork(core, credential, limit, once)
        self._block = object()
        self._open_block = OpenBlock(core.scope.url)

    def __del__(self) -> None:
        """End the block here if a signal handler raised before the first line of `__exit__`."""
        if (open_block := getattr(self, "_open_block", None)) is not None:
            open_block.end()
            self._credential.leave_guarded(self._block)

    def __enter__(self) -> Any:
        self._work.use()
        try:
            self._credential.enter_guarded(self._block)
            self._open_block.begin()
            return self._work.open()
        except BaseException as error:
            if self._work.is_open:
                self._work.end(error)
            self._leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            mapped = self._work.end(error)
            self._leave()
        except BaseException:
            self._leave()
            raise
        if mapped is not None:
            raise mapped from error

    def _leave(self) -> None:
        self._work.give_back()
        self._open_block.end()
        self._credential.leave_guarded(self._block)


class Admission(UncopyableBlock):
    """What `guard.check` found: the lease is the newest holder. As a block, it admits writes to protected tables."""

    __slots__ = ("_block", "_connection", "_core", "_credential", "_limit", "_once", "_presented")

    def __init__(
        self, core: GuardCore, credential: Credential, native: Any, once: Once | None = None, *, may_raise: bool
    ) -> None:
        """Check the marks in the transaction of the caller's connection; raise them there if that is allowed."""
        credential.check_valid()
        self._core = core
        self._credential = credential
        self._limit = IdleLimit(credential)
        self._once = once
        self._connection = core.caller_connection(native)
        self._presented: tuple[str, ...] = ()
        self._block = object()
        try:
            # Counted while it is checked too: the refusal of a request's second block says nothing about its first one.
            credential.enter_guarded(self._block)
            core.check(credential, self._connection, once, may_raise=may_raise)
            credential.leave_guarded(self._block)
        except BaseException:
            credential.leave_guarded(self._block)
            raise

    def __enter__(self) -> None:
        credential = self._credential
        try:
            credential.enter_guarded(self._block)
            with self._core.emitting_refusals(credential):
                flow = self._core.present_flow(credential, self._limit, self._once)
                self._presented = run(flow, self._connection).presented
        except BaseException:
            credential.leave_guarded(self._block)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._unpresent(error)
            self._credential.leave_guarded(self._block)
        except BaseException:
            self._credential.leave_guarded(self._block)
            raise

    def _unpresent(self, error: BaseException | None) -> None:
        try:
            with self._core.emitting_refusals(self._credential), self._limit.explaining():
                flow = self._core.withdraw_flow(self._credential, self._presented, self._once)
                run(flow, self._connection)
        except FencelockError:
            # After a failure inside the block the caller rolls back, and then there is nothing left to take back.
            if error is None:
                raise
        if error is not None:
            mapped = self._connection.map_error(error)
            self._limit.explain(error, mapped)
            if mapped is not None:
                raise mapped from error
