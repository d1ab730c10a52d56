"""One guarded transaction that a framework begins and ends: what every adapter does before it, in it and at its end.

Promise: the resources are sealed in a committed transaction of the guard's own before the framework's transaction
begins, once per tenure (G2); the lease is presented by the first statement of that transaction, and withdrawn by its
last one. Never: a transaction of the framework's begun, committed or rolled back.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fencelock._api.credentials import Credential, credential_of
from fencelock._api.executors import executor_for
from fencelock._api.guard import BaseGuard, core_of
from fencelock._api.guard_core import GuardCore, OpenBlock
from fencelock._api.validation import scope_of
from fencelock.errors import ConfigError
from fencelock.hooks import NO_HOOKS
from fencelock.protocol.generators import run_generator
from fencelock.protocol.guard_requests import Unpresent
from fencelock.protocol.stores import SQLGuardStore
from fencelock.stores.registry import guard_store


class Fencing:
    """A lease, and the resources that one transaction of it may write."""

    def __init__(self, core: GuardCore, store: SQLGuardStore, credential: Credential) -> None:
        self.store = store
        self._core = core
        self._credential = credential

    @contextmanager
    def entered(self, task: object = None) -> Iterator[None]:
        """Count a guarded transaction of the lease, and keep this thread, or this task, from waiting for itself."""
        block, open_block = object(), OpenBlock(self._core.scope.url)
        try:
            self._credential.enter_guarded(block)
            open_block.begin(task)
            yield
        finally:
            open_block.end()
            self._credential.leave_guarded(block)

    def seal(self) -> None:
        """Seal what this tenure has not sealed, over a connection of the guard's own."""
        if not self._core.is_sealed(self._credential):
            self._core.seal(self._credential)

    async def seal_async(self) -> None:
        """The same for a task."""
        if not self._core.is_sealed(self._credential):
            await executor_for(self._core).seal(self._credential)

    @contextmanager
    def presented(self, perform: Callable[[Any], Any]) -> Iterator[None]:
        """Have the framework's transaction, which has read nothing yet, admit writes until the end of the block.

        `perform` answers a guard's requests in that transaction.
        """
        core, credential = self._core, self._credential
        with core.emitting_refusals(credential):
            opened = run_generator(core.present_first_flow(credential), perform)
        core.emit_observed(credential, opened.refused)
        yield
        perform(Unpresent(opened.presented))


def fencing_of(
    lease: Any, url: str, resource: str | None, resources: Iterable[str] | None, guard: BaseGuard | None
) -> Fencing:
    """Return what fences a transaction at `url`, or where `guard` is; ConfigError if the arguments are none."""
    credential = credential_of(lease)
    if guard is None:
        store = guard_store(url)
        scope = scope_of(store.url, resource, resources, credential.sequencer.lock, independent=False)
        core = GuardCore(store, scope, NO_HOOKS)
    elif resource is not None or resources is not None:
        raise ConfigError("a guard knows its resources: say either guard=… or resource=…")
    else:
        core = core_of(guard)
    if not isinstance(core.store, SQLGuardStore):
        raise ConfigError(f"{core.store.url} is not a SQL database that a framework's connection could lead to")
    return Fencing(core, core.store, credential)
