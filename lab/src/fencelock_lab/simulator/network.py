"""The simulated network: it loses, delays, duplicates and reorders requests and replies.

Promise: a request to the source may take effect at any time after it was sent, once, twice or never, independently of
the reply that its sender got. A connection to a store keeps the order of its requests and may break: a commit in
flight then has or has not happened, and any other transaction is rolled back.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from fencelock.errors import FencelockError, OutcomeUnknownError, SourceUnavailableError
from fencelock.model import digest_of_claim
from fencelock.protocol import guard_requests as guard
from fencelock.protocol import source_requests as ask
from fencelock_lab.simulator.kernel import PENDING, US_PER_MS, SimulatedKernel, SimulatedProcess, Sleep, Task
from fencelock_lab.simulator.resource import SimulatedSession
from fencelock_lab.simulator.source import SimulatedSource

TIMEOUT_US = 400 * US_PER_MS
"""How long a client waits for the source's reply before it calls the outcome unknown."""
BUSY_PATIENCE_US = 2000 * US_PER_MS
_COMMITS = (guard.Commit, guard.Finish)
_BEGINS = (guard.Begin, guard.Open)


class Read(NamedTuple):
    """Read a resource's value inside the open transaction. Reply: the value."""

    resource: str


class Write(NamedTuple):
    """Write a resource's value inside the open transaction. Reply: None."""

    resource: str
    value: Any


class At(NamedTuple):
    """A request to a guarded store, over a session."""

    session: SimulatedSession
    request: Any


class Job(NamedTuple):
    """A conditional write in one message, carried out on arrival. Reply: None, or its error."""

    body: Callable[[], None]


class Odds:
    """The odds of network faults; none until a seed sets them."""

    def __init__(self) -> None:
        self.request_lost = 0.0
        self.reply_lost = 0.0
        self.doubled = 0.0
        self.late = 0.0
        self.latest_ms = 1
        self.connection_broken = 0.0
        self.notification_lost = 0.0


class SimulatedNetwork:
    """Answers the requests that tasks yield."""

    def __init__(self, kernel: SimulatedKernel, source: SimulatedSource) -> None:
        self.kernel = kernel
        self.source = source
        self.odds = Odds()
        self._sleepers: dict[str, tuple[Task, int]] = {}
        self._notified: set[str] = set()
        self._listening: dict[Task, str] = {}
        self._claims = 0
        self._cut_until_us: dict[str, int] = {}
        self._generation = 0

    def answer(self, task: Task, request: Any) -> Any:
        """Return the reply to a local request; send any other request and answer it later."""
        kind = type(request)
        if kind is ask.Now:
            return self.kernel.now_ms
        if kind is ask.Draw:
            self._claims += 1
            return f"c{self._claims}", self.kernel.now_us
        if kind is ask.Listen:
            self._listening[task] = digest_of_claim(request.claim)
            return None
        if kind is Sleep:
            task.reply(task.ticket, request.duration_us, None)
        elif kind is ask.Wait:
            self._wait(task, request.timeout_ms)
        elif kind is At:
            self._at_store(task, request)
        elif kind is Job:
            self._send(task, request.body)
        else:
            self._to_source(task, request)
        return PENDING

    def _delay(self) -> int:
        if self.odds.late and self.kernel.chance(self.odds.late):
            return self.kernel.between(1, self.odds.latest_ms) * US_PER_MS
        return self.kernel.between(100, 1500)

    def forget(self) -> None:
        """Lose every request in flight to the source, as a power cut of a whole machine does."""
        self._generation += 1

    def cut(self, process: SimulatedProcess, duration_ms: int) -> None:
        """Cut a process off from the source for a while; messages in flight still arrive."""
        self.kernel.trace("network", "is cut for {} for {} ms", process.name, duration_ms)
        self._cut_until_us[process.name] = self.kernel.now_us + duration_ms * US_PER_MS

    def _is_cut(self, process: SimulatedProcess) -> bool:
        return self.kernel.now_us < self._cut_until_us.get(process.name, 0)

    # --- the source ---------------------------------------------------------------------------------------------------
    def _to_source(self, task: Task, request: Any) -> None:
        self.kernel.trace(task.process.name, "asks {}", request)

        def perform() -> Any:
            reply = self.source.perform(request)
            if isinstance(reply, ask.Released | ask.Broken):
                self._notify_head(request.lock)
            return reply

        self._send(task, perform, doubled=lambda: self.source.oracle.doubled(request))

    def _send(self, task: Task, perform: Callable[[], Any], doubled: Callable[[], None] | None = None) -> None:
        kernel, odds, ticket, generation = self.kernel, self.odds, task.ticket, self._generation

        def arrive() -> None:
            if generation != self._generation:
                return
            reply = perform()
            if not self._is_cut(task.process) and not kernel.chance(odds.reply_lost):
                task.reply(ticket, self._delay(), reply)

        if not self._is_cut(task.process) and not kernel.chance(odds.request_lost):
            kernel.after(self._delay(), arrive)
            if doubled is not None and kernel.chance(odds.doubled):
                doubled()
                kernel.after(self._delay() + self._delay(), arrive)
        task.reply(ticket, TIMEOUT_US, OutcomeUnknownError("no reply came"))

    # --- notifications ------------------------------------------------------------------------------------------------
    def _notify_head(self, lock: str) -> None:
        digest = self.source.head(lock)
        if digest is not None and not self.kernel.chance(self.odds.notification_lost):
            self.kernel.after(self._delay(), self.notify, digest)

    def notify(self, digest: str) -> None:
        """Wake the task that listens for the claim with this digest, now or at its next wait."""
        sleeper = self._sleepers.pop(digest, None)
        if sleeper is None:
            self._notified.add(digest)
        else:
            task, ticket = sleeper
            task.reply(ticket, 0, None)

    def _wait(self, task: Task, timeout_ms: int) -> None:
        digest = self._listening.get(task)
        if digest in self._notified:
            self._notified.discard(digest)
            task.reply(task.ticket, 0, None)
            return
        if digest is not None:
            self._sleepers[digest] = (task, task.ticket)
        task.reply(task.ticket, timeout_ms * US_PER_MS, None)

    # --- guarded stores -----------------------------------------------------------------------------------------------
    def _at_store(self, task: Task, at: At) -> None:
        kernel, ticket, give_up_us = self.kernel, task.ticket, self.kernel.now_us + BUSY_PATIENCE_US
        session, request = at
        is_broken = kernel.chance(self.odds.connection_broken)
        is_done = not is_broken or (type(request) in _COMMITS and kernel.chance(0.5))

        def arrive() -> None:
            store = session.target
            if type(request) in _BEGINS and task.process.is_dead:
                return  # The connection is closed: the store starts no new work for it.
            is_busy = store.writer is not None and store.writer is not session
            if type(request) in _BEGINS and is_busy and kernel.now_us < give_up_us:
                kernel.after(kernel.between(1, 10) * US_PER_MS, arrive)
                return
            reply = perform(session, request) if is_done else None
            store.last_heard_us = kernel.now_us
            if is_broken:
                session.rollback()
                kernel.trace(task.process.name, "loses its connection at {}", type(request).__name__)
                reply = _broken(request)
            task.reply(ticket, self._delay(), reply)

        kernel.after(self._delay(), arrive)


def perform(session: SimulatedSession, request: Any) -> Any:
    """Carry out one request at a guarded store; return a FencelockError as a reply."""
    try:
        if type(request) is Read:
            return session.get(request.resource, "value")
        if type(request) is Write:
            session.put(request.resource, "value", request.value)
            return None
        return session.perform(request)
    except FencelockError as error:
        return error


def _broken(request: Any) -> FencelockError:
    if type(request) in _COMMITS:
        return OutcomeUnknownError("the connection broke during the commit")
    return SourceUnavailableError("the connection broke; the transaction is undone")
