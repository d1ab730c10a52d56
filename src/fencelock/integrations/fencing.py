"""The part of a guarded block that all framework adapters share; the framework begins and ends the transaction.

Promise: the resources are sealed in a committed transaction of the guard's own before the framework's transaction
begins, once per tenure (G2). The first statement of the framework's transaction presents the lease, and the last one
withdraws it. Never: begins, commits or rolls back a transaction of the framework.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any

from fencelock._api.base_guard import BaseGuard, core_of
from fencelock._api.credentials import Credential, asking, credential_of
from fencelock._api.durations import Duration
from fencelock._api.executors import executor_for
from fencelock._api.guard_core import GuardCore, OpenBlock, check_unused
from fencelock._api.idle_limit import IdleLimit
from fencelock._api.once import Once, once_of
from fencelock._api.uncopyable import UncopyableBlock
from fencelock._api.validation import scope_of
from fencelock._flows.effects import note_done_once
from fencelock._flows.tenure import Scope, Tenure
from fencelock.errors import ConfigError, FencelockError, OutcomeUnknownError
from fencelock.hooks import NO_HOOKS
from fencelock.protocol.generators import run_generator
from fencelock.protocol.stores import SQLGuardStore
from fencelock.stores.registry import guard_store

COMMITTED = (
    "fencelock: the guarded block was committed before this error, which came from code that runs after the commit: do "
    "not repeat the block"
)
"""A note for an error that leaves a block although it is committed."""


class BlockEntry:
    """A guarded transaction that is registered with its lease, and with its thread or task.

    A signal handler may raise anywhere, in `end` too. What stayed registered would bar every later block of the thread,
    and a release would wait for it. So `end` is called twice if need be, and once more with the last reference.
    """

    __slots__ = ("_block", "_credential", "_open_block")

    def __init__(self, url: str, credential: Credential) -> None:
        self._credential = credential
        self._block = object()
        self._open_block = OpenBlock(url)

    def __del__(self) -> None:
        """End the block if nothing else has ended it."""
        if hasattr(self, "_open_block"):
            self.end()

    @property
    def url(self) -> str:
        """Where the block's resources are."""
        return self._open_block.url

    def asking(self) -> AbstractContextManager[None]:
        """Return a block whose errors note for whose lease they are raised."""
        return asking(self._credential)

    def begin(self, task: object = None) -> None:
        """Register the block; GuardError if the thread or task has one already, in which it would wait for itself."""
        self._credential.enter_guarded(self._block)
        self._open_block.begin(task)

    def end(self) -> None:
        """Unregister the block if it is registered."""
        self._open_block.end()
        self._credential.leave_guarded(self._block)


class FencedBlock(UncopyableBlock):
    """A guarded block of a framework, entered once."""

    def __init__(self, entry: BlockEntry) -> None:
        # Only the block refers to it, so that it ends with the block even if every other end of it is interrupted.
        self._entry = entry
        self._stack = ExitStack()
        self._is_used = False

    def _use(self) -> None:
        check_unused(is_used=self._is_used)
        self._is_used = True


class SyncFencedBlock(FencedBlock):
    """The same for `with`; a subclass says how it is entered."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stack.__exit__(kind, error, trace)
            self._entry.end()
        except BaseException:
            self._entry.end()
            raise


class Fencing:
    """A lease, the resources that one of its transactions may write, and the job that it does once, if it is one."""

    def __init__(
        self, core: GuardCore, store: SQLGuardStore, credential: Credential, limit: IdleLimit, once: Once | None
    ) -> None:
        self.store = store
        self.limit = limit
        self._core = core
        self._credential = credential
        self._once = once
        self._is_sealed_now = False
        """Whether this block has sealed, which tells the refusals of observe mode."""

    @property
    def scope(self) -> Scope:
        """The resources."""
        return self._core.scope

    @property
    def tenure(self) -> Tenure:
        """What this process remembers of the lease's tenure."""
        return self._credential.tenure

    def new_entry(self) -> BlockEntry:
        """Return the entry of a new guarded transaction of the lease, not registered yet."""
        return BlockEntry(self._core.scope.url, self._credential)

    def explain(self, error: Exception, mapped: FencelockError | None) -> None:
        """Say more of an error that leaves a block: that its connection ended, or that the block may be repeated."""
        self.limit.explain(error, mapped)
        if self._once is not None and isinstance(mapped, OutcomeUnknownError):
            note_done_once(mapped, self._once.key)

    def seal(self) -> None:
        """Seal the resources that this tenure has not sealed, over the guard's own connection."""
        if not self._core.is_sealed(self._credential):
            self._core.seal(self._credential, self._once)
            self._is_sealed_now = True

    async def seal_async(self) -> None:
        """`seal` for asyncio."""
        if not self._core.is_sealed(self._credential):
            await executor_for(self._core).seal(self._credential, self._once)
            self._is_sealed_now = True

    @contextmanager
    def presented(self, perform: Callable[[Any], Any]) -> Iterator[None]:
        """Present the lease in the framework's transaction, and withdraw it at the end of the block.

        The transaction has read nothing yet; `perform` answers a guard's requests in it.
        """
        core, credential = self._core, self._credential
        with core.emitting_refusals(credential):
            opened = run_generator(core.present_flow(credential, self.limit, self._once), perform)
        if not self._is_sealed_now:
            core.emit_observed(credential, opened.refused)
        yield
        with core.emitting_refusals(credential):
            run_generator(core.withdraw_flow(credential, opened.presented, self._once), perform)


def fencing_of(
    lease: Any,
    url: str,
    resource: str | None,
    resources: Iterable[str] | None,
    guard: BaseGuard | None,
    idle: Duration | None,
    once: str | Once | None,
) -> Fencing:
    """Return the fencing of a transaction at `url`, or at the guard's URL; ConfigError if the arguments conflict."""
    credential = credential_of(lease)
    if guard is None:
        store = guard_store(url)
        scope = scope_of(store.url, resource, resources, credential.sequencer.lock, independent=False)
        core = GuardCore(store, scope, NO_HOOKS)
    else:
        check_arguments(resource, resources)
        core = core_of(guard)
    if not isinstance(core.store, SQLGuardStore):
        raise ConfigError(f"{core.store.url} is not a SQL database that a framework's connection could lead to")
    return Fencing(core, core.store, credential, IdleLimit(credential, idle), once_of(once, core.scope))


def check_arguments(resource: str | None, resources: Iterable[str] | None) -> None:
    """Raise ConfigError if resources are named beside a guard."""
    if resource is not None or resources is not None:
        raise ConfigError("a guard has its resources already: pass either guard=… or resource=…")
