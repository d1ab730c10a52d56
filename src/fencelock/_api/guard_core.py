"""The work of a guard as blocking calls: the sync guard makes them, and the async guard has threads make them.

Promise: hooks get every seal and every refusal, in the thread where it happened, after the guard's own transaction has
ended. Between the two steps of a `GuardedWork` its connection belongs to the user; after the second step the connection
is given back, with the work committed if the block ended well and undone if not. A thread or task that would wait for
its own guarded transaction gets GuardError at once. Never: asyncio imported here.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from fencelock._api.credentials import Credential, asking
from fencelock._api.idle_limit import IdleLimit, left_ms
from fencelock._api.once import Once
from fencelock._api.proving import prove
from fencelock._api.validation import check_keeps_open
from fencelock._drivers.guard import run
from fencelock._flows import admin, effects, guarding
from fencelock._flows.guarding import KINDS, Opened, Refused, Sealed
from fencelock._flows.tenure import Scope
from fencelock._platform import at_fork
from fencelock.errors import GuardError
from fencelock.hooks import Event, Hooks, emit, is_observed
from fencelock.model import Mark, SourceInfo, default_holder
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import GuardFlow, InspectResources
from fencelock.protocol.stores import CallerGuardStore, GuardConnection, GuardStore


class OpenBlock:
    """An open guarded transaction: its URL, and its task (None: it belongs to a thread)."""

    __slots__ = ("_home", "task", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.task: object = None
        self._home: list[OpenBlock] = []

    def begin(self, task: object = None) -> None:
        """Register the transaction for this thread or task; GuardError if it has one open at the URL already."""
        check_free(self.url, task)
        self.task = task
        self._home = _THREAD.open
        self._home.append(self)

    def end(self) -> None:
        """Unregister the transaction if it is registered; any thread may do so, and more than once."""
        if self in self._home:
            self._home.remove(self)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[OpenBlock] = []


_THREAD = _Thread()


def _after_fork_in_child() -> None:
    """Forget the parent's open transactions; the store itself refuses a file that the parent has open."""
    _THREAD.open = []


at_fork(after_in_child=_after_fork_in_child)


def check_free(url: str, task: object = None) -> None:
    """Raise GuardError if this thread, or this task, has a guarded transaction open at the URL.

    It would wait for its own write lock until the timeout. A thread conflicts with every transaction open in it,
    because the tasks of its loop cannot go on while it waits; a task conflicts with its own transactions only.
    """
    for open_block in _THREAD.open:
        if open_block.url == url and (task is None or task is open_block.task):
            who = "thread" if task is None else "task"
            raise GuardError(
                f"this {who} has a guarded transaction open on {url} already, and would wait for itself: leave that "
                f"block first, or put everything into one guard(resources=[…])"
            )


Result = TypeVar("Result")


class GuardCore:
    """One guard's store and scope, and the operations on them."""

    def __init__(self, store: GuardStore, scope: Scope, hooks: Hooks) -> None:
        self.store = store
        self.scope = scope
        self.hooks = hooks

    def run(self, flow: GuardFlow[Result]) -> Result:
        """Run a flow that changes something, on a connection of the guard's own."""
        prove(self.store)
        return self.read(flow)

    def read(self, flow: GuardFlow[Result]) -> Result:
        """Run a flow that changes nothing."""
        connection = self.store.connect()
        try:
            return run(flow, connection)
        finally:
            connection.close()

    def caller_connection(self, native: Any) -> GuardConnection:
        """Return a connection that uses the caller's own."""
        check_keeps_open(self.store, native)
        prove(self.store)
        return cast("CallerGuardStore", self.store).caller_connection(native)

    def marks(self) -> dict[str, Mark]:
        """Return the mark of every resource; token 0 if it was never sealed."""
        return self.read(self.marks_flow())

    def is_sealed(self, credential: Credential) -> bool:
        """Return whether this tenure is known to have sealed every resource."""
        return credential.sequencer.lock == self.scope.lock and credential.tenure.has_sealed(*self.scope.keys)

    def seal(self, credential: Credential, once: Once | None = None) -> None:
        """Seal every resource."""
        with self.emitting_refusals(credential):
            sealed = self.run(self.seal_flow(credential, once))
        self.emit_sealed(credential, sealed)

    def check(self, credential: Credential, connection: GuardConnection, once: Once | None, *, may_raise: bool) -> None:
        """Check the marks inside the caller's transaction, or raise them there."""
        with self.emitting_refusals(credential):
            sealed = run(self.check_flow(credential, once, may_raise=may_raise), connection)
        self.emit_sealed(credential, sealed)

    def close(self, credential: Credential) -> None:
        """Make the lease's own token stale."""
        with self.emitting_refusals(credential):
            self.run(self.close_flow(credential))

    def rebind(self, lock: str, source: SourceInfo, reason: str) -> None:
        """Bind every resource to another lock, and this guard with them."""
        self.run(admin.rebind(self.scope, lock, source, default_holder(), reason))
        self.scope = self.scope.bound_to(lock)

    # --- the flows ----------------------------------------------------------------------------------------------------
    def marks_flow(self) -> GuardFlow[dict[str, Mark]]:
        """Read the mark of every resource."""
        found: dict[str, Mark] = {}
        for resource in self.scope.resources:
            seen = yield from ask(InspectResources(resource))
            found[resource] = seen.marks[0] if seen.marks else Mark(resource, self.scope.lock)
        return found

    def seal_flow(self, credential: Credential, once: Once | None = None) -> GuardFlow[Sealed]:
        """Seal every resource."""
        flow = guarding.seal(self.scope, credential.sequencer, credential.tenure)
        return self._asked(self._told_if_done(flow, credential, once), credential)

    def open_flow(self, credential: Credential, limit: IdleLimit, once: Once | None) -> GuardFlow[Opened]:
        """Begin a guarded transaction."""
        tenure = (self.scope, credential.sequencer, credential.tenure, limit.begin())
        if once is None:
            return self._asked(guarding.open_transaction(*tenure), credential)
        flow = effects.open_once(*tenure, once.intent(credential.sequencer))
        return self._asked(self._told_if_done(flow, credential, once), credential)

    def finish_flow(self, credential: Credential, presented: tuple[str, ...], once: Once | None) -> GuardFlow[None]:
        """Commit a guarded transaction."""
        block = (self.scope, credential.sequencer, credential.tenure, presented)
        if once is None:
            return self._asked(guarding.finish(*block), credential)
        return self._asked(effects.finish_once(*block, once.done(credential.sequencer)), credential)

    def check_flow(self, credential: Credential, once: Once | None, *, may_raise: bool) -> GuardFlow[Sealed]:
        """Check the marks inside the caller's transaction."""
        flow = guarding.check(
            self.scope, credential.sequencer, credential.tenure, left_ms(credential), may_raise=may_raise
        )
        return self._asked(self._told_if_done(flow, credential, once), credential)

    def present_flow(self, credential: Credential, limit: IdleLimit, once: Once | None) -> GuardFlow[Opened]:
        """Admit the caller's writes from here on."""
        tenure = (self.scope, credential.sequencer, credential.tenure, limit.begin())
        if once is None:
            return self._asked(guarding.present(*tenure), credential)
        flow = effects.present_once(*tenure, once.intent(credential.sequencer))
        return self._asked(self._told_if_done(flow, credential, once), credential)

    def withdraw_flow(self, credential: Credential, presented: tuple[str, ...], once: Once | None) -> GuardFlow[None]:
        """Stop admitting the caller's writes, before they are committed."""
        if once is None:
            return self._asked(guarding.withdraw(presented), credential)
        return self._asked(effects.withdraw_once(self.scope, presented, once.done(credential.sequencer)), credential)

    def _told_if_done(self, flow: GuardFlow[Result], credential: Credential, once: Once | None) -> GuardFlow[Result]:
        if once is None:
            return flow
        return effects.told_if_done(flow, self.scope, once.intent(credential.sequencer))

    def _asked(self, flow: GuardFlow[Result], credential: Credential) -> GuardFlow[Result]:
        """Run the flow, and note in its error for whose lease it was raised."""
        with asking(credential):
            return (yield from flow)

    def close_flow(self, credential: Credential) -> GuardFlow[None]:
        """Make the lease's own token stale."""
        return guarding.close(self.scope, credential.sequencer, credential.claim, credential.tenure)

    # --- the hooks ----------------------------------------------------------------------------------------------------
    @contextmanager
    def emitting_refusals(self, credential: Credential) -> Iterator[None]:
        """Emit an event for a refusal that leaves the block, and note in the error for whose lease it is."""
        try:
            with asking(credential):
                yield
        except GuardError as error:
            self.emit_refused(credential, error)
            raise

    def emit_opened(self, credential: Credential, opened: Opened) -> None:
        """Emit the events of a transaction's beginning: seals, and refusals in observe mode."""
        if opened.sealed is not None:
            self.emit_sealed(credential, opened.sealed)
        elif opened.refused:
            self.emit_observed(credential, opened.refused)

    def emit_sealed(self, credential: Credential, sealed: Sealed) -> None:
        """Emit the events of a seal: raised marks, and refusals in observe mode."""
        for resource in sealed.raised:
            emit(self.hooks, Event("sealed", self.scope.lock, credential.sequencer.token, resource))
        self.emit_observed(credential, sealed.refused)

    def emit_observed(self, credential: Credential, refused: Iterable[Refused]) -> None:
        """Emit the refusals of observe mode."""
        for resource, error in refused:
            self.emit_refused(credential, error, resource)

    def emit_guarded(self, credential: Credential, began_s: float, reason: str | None) -> None:
        """Emit the end of a guarded transaction."""
        if is_observed(self.hooks, "guarded"):
            duration = time.monotonic() - began_s
            token, resource = credential.sequencer.token, self._only_resource()
            emit(self.hooks, Event("guarded", self.scope.lock, token, resource, duration=duration, reason=reason))

    def _only_resource(self) -> str | None:
        return self.scope.resources[0] if len(self.scope.resources) == 1 else None

    def emit_refused(self, credential: Credential, error: GuardError, resource: str | None = None) -> None:
        """Emit a refusal of the token; a mistake in using the guard is not one."""
        if (reason := KINDS.get(type(error))) is not None:
            resource = resource or getattr(error, "resource", None) or self._only_resource()
            emit(self.hooks, Event("refused", self.scope.lock, credential.sequencer.token, resource, reason=reason))


ROLLED_BACK = "rolled back"
FAILED = "failed"
"""How a guarded transaction ended that was not committed, for its event."""


def check_unused(*, is_used: bool) -> None:
    """Raise GuardError if a block was entered before."""
    if is_used:
        raise GuardError("a guarded transaction is entered once: call guard.transaction(lease) for each block")


class GuardedWork:
    """A transaction of one guard for one tenure, used once."""

    __slots__ = ("_began_s", "_connection", "_core", "_credential", "_is_used", "_limit", "_once", "_presented")

    def __init__(self, core: GuardCore, credential: Credential, limit: IdleLimit, once: Once | None) -> None:
        self._core = core
        self._credential = credential
        self._limit = limit
        self._once = once
        self._connection: GuardConnection | None = None
        self._presented: tuple[str, ...] = ()
        self._is_used = False

    @property
    def is_open(self) -> bool:
        """True between the two steps."""
        return self._connection is not None

    def use(self) -> None:
        """Raise GuardError if the block was entered before."""
        check_unused(is_used=self._is_used)
        self._is_used = True

    def open(self) -> Any:
        """Seal if need be, begin, present the lease, and return the native connection."""
        core, credential = self._core, self._credential
        self._began_s = time.monotonic()
        with asking(credential):
            prove(core.store)
            self._connection = core.store.connect()
        try:
            opened = run(core.open_flow(credential, self._limit, self._once), self._connection)
            self._presented = opened.presented
            core.emit_opened(credential, opened)
            native = self._connection.native
        except BaseException as error:
            self.give_back()
            if isinstance(error, GuardError):
                core.emit_refused(credential, error)
            raise
        return native

    def end(self, error: BaseException | None) -> GuardError | None:
        """Commit, or roll back after an exception; return the GuardError that the exception stands for, if any."""
        connection = self._connection
        assert connection is not None, "open comes first"
        reason: str | None = FAILED
        try:
            if error is None:
                with self._core.emitting_refusals(self._credential), self._limit.explaining():
                    run(self._core.finish_flow(self._credential, self._presented, self._once), connection)
                reason = None
                return None
            connection.rollback()
            reason = ROLLED_BACK
            mapped = connection.map_error(error)
            self._limit.explain(error, mapped)
            return mapped
        finally:
            self.give_back()
            # After the connection is given back: a hook is the user's code, and no transaction waits for it.
            self._core.emit_guarded(self._credential, self._began_s, reason)

    def give_back(self) -> None:
        """Give the connection back, if that has not happened yet; its open transaction is rolled back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
