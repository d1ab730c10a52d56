"""Negative controls: each breaks one rule in the library or in the simulated stores, and the simulator must find it.

Promise: a control changes only what its name says, and only while its `with` block runs. A simulator that accepts
everything proves nothing, so `tests/lab/simulator` runs every control.
"""

# ruff: noqa: SLF001, ARG001 - breaking a rule means using private names and ignoring arguments.

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fencelock._flows import acquire, admin, guarding, renewal, retry
from fencelock._flows import admit as admitting
from fencelock._flows.admit import Verdict, admit
from fencelock._flows.guarding import Opened, Sealed
from fencelock._flows.tenure import Tenure
from fencelock.errors import OutcomeUnknownError, StaleTokenError
from fencelock.model import Mark
from fencelock.protocol import source_requests as ask
from fencelock.protocol.guard_requests import Commit, Open
from fencelock.stores.memory import reference_model
from fencelock.testing.memory_resource import MemoryResourceSession
from fencelock_lab.simulator import keeper
from fencelock_lab.simulator.client import SimulatedClient
from fencelock_lab.simulator.resource import SimulatedResource
from fencelock_lab.simulator.source import SimulatedSource

Ledger = reference_model.ReferenceModel
FAR_MS = 1_000_000
Change = tuple[Any, str, Any]

# The original methods, which the replacements below call.
_start_again = Ledger.start_again
_release = Ledger._release
_granted_before = Ledger._granted_before
_poll = Ledger._poll
_open_transaction = guarding.open_transaction
_seal_once = guarding._seal_once


# --- tokens -----------------------------------------------------------------------------------------------------------
def _start_without_skip(self: Ledger, now_us: int, ended: str) -> None:
    counter = self.counter
    _start_again(self, now_us, ended)
    self.counter = counter


def _reset_on_release(self: Ledger, request: ask.Release, now_us: int) -> Any:
    self.counter = 0
    return _release(self, request, now_us)


def _another_token_for_a_retry(self: Ledger, row: reference_model.LockRow, now_ms: int) -> Any:
    self.counter += 1
    return _granted_before(self, row._replace(token=self.counter), now_ms)


def _forget_to_raise(self: SimulatedSource) -> None:
    self.oracle.is_tainted = False


# --- leases -----------------------------------------------------------------------------------------------------------
def _never_over(self: Ledger, digest: str, born_us: int) -> bool:
    return False


def _release_by_name(self: Ledger, request: ask.Release, now_us: int) -> Any:
    row = self.locks.get(request.lock)
    digest = row.digest if row is not None and row.digest else request.claim
    return _release(self, request._replace(claim=digest), now_us)


def _renew_the_expired(self: Ledger, request: ask.Renew, now_us: int) -> ask.Renewed:
    renewed, lost = {}, {}
    for lock, digest in request.leases:
        row = self.locks.get(lock)
        if row is not None and row.digest == digest:
            self.locks[lock] = row._replace(deadline_ms=now_us // 1000 + row.ttl_ms)
            renewed[digest] = row.ttl_ms
        else:
            lost[digest] = "it is not yours"
    return ask.Renewed(renewed, lost)


def _deadline_from_the_reply(leases: tuple[tuple[str, str], ...]) -> Any:
    reply = yield ask.Renew(leases)
    return renewal.Beat((yield ask.Now()), reply)


def _no_deadline(sent_ms: int, remaining_ms: int, ttl_ms: int) -> int:
    return sent_ms + FAR_MS


def _no_expiry(self: Ledger, lock: str, now_ms: int) -> bool:
    row = self.locks.get(lock)
    return row is None or row.digest is None


class _NoReply:
    """A reply that no source sends."""


# --- queues -----------------------------------------------------------------------------------------------------------
def _nobody_waits(self: Ledger, lock: str, now_ms: int) -> None:
    return None


def _last_first(self: Ledger, lock: str, now_ms: int) -> str | None:
    queue = self.queues.get(lock, {})
    return next((digest for digest in reversed(queue) if queue[digest].deadline_ms > now_ms), None)


def _poll_that_revives(self: Ledger, request: ask.Poll, now_us: int) -> Any:
    queue = self.queues.get(request.lock, {})
    waiter = queue.get(request.claim)
    if waiter is not None:
        queue[request.claim] = waiter._replace(deadline_ms=now_us // 1000 + waiter.ttl_ms)
    return _poll(self, request, now_us)


def _nothing(*_: Any, **__: Any) -> None:
    pass


# --- guards -----------------------------------------------------------------------------------------------------------
def _strictly_higher(mark: Mark, sequencer: Any, *, was_sealed: bool) -> Verdict:
    if sequencer.token == mark.token:
        raise StaleTokenError("stale", token=sequencer.token, mark=mark.token, resource=mark.resource)
    return admit(mark, sequencer, was_sealed=was_sealed)


def _stale_or_not(mark: Mark, sequencer: Any, *, was_sealed: bool) -> Verdict:
    try:
        return admit(mark, sequencer, was_sealed=was_sealed)
    except StaleTokenError:
        return Verdict.RAISE


def _token_alone(self: MemoryResourceSession, resource: str, sequencer: Any) -> bool:
    mark = self.inside.marks.get(resource)
    return mark is not None and not mark.is_closed and mark.token == sequencer.token


def _read_before_sealing(scope: Any, sequencer: Any, tenure: Tenure) -> Any:
    """`token >= mark` at the write, and nothing before the first read."""
    if not tenure.has_read:
        tenure.has_read = True
        yield Open((), sequencer)
        return Opened(None, (), ())
    tenure.has_read = False
    return (yield from _open_transaction(scope, sequencer, tenure))


def _unknown_is_done(scope: Any, sequencer: Any, tenure: Tenure) -> Any:
    sealed: Sealed = yield from _seal_once(scope, sequencer, tenure, rewritten=())
    with suppress(OutcomeUnknownError):
        yield Commit()
    return sealed


def _seal_forgotten(self: Tenure, opened: Any, sealed: Any) -> None:
    self.opened.update(opened)


def _flow_of_nothing(*_: Any) -> Any:
    return None
    yield


def _enter_freely(self: MemoryResourceSession) -> None:
    self.work = self.target.state.copy()
    self.presented = {}


def _put_freely(self: MemoryResourceSession, table: str, key: str, value: Any) -> None:
    self.inside.data[table, key] = value


def _restart_without_marks(self: SimulatedResource) -> None:
    if self.writer is not None:
        self.writer.rollback()
    state = self.state.copy()
    state.marks = {resource: Mark(resource, mark.lock) for resource, mark in state.marks.items()}
    self.state = state


CONTROLS: dict[str, tuple[Change, ...]] = {
    "T1: the reserved bound is not flushed": ((SimulatedSource, "flush", _nothing),),
    "T1: an unclean start does not skip to the bound": ((Ledger, "start_again", _start_without_skip),),
    "T3: a retry gets another token": ((Ledger, "_granted_before", _another_token_for_a_retry),),
    "T4: an expired lease is renewed": ((Ledger, "_renew", _renew_the_expired),),
    "T6: release resets the counter": ((Ledger, "_release", _reset_on_release),),
    "T7: a restored source's epoch is not raised": ((SimulatedSource, "raise_epoch", _forget_to_raise),),
    "H1: the holder ignores its deadline": (
        (acquire, "deadline_ms", _no_deadline),
        (keeper, "deadline_ms", _no_deadline),
    ),
    "H1: a renewal counts from its reply": ((renewal, "renew", _deadline_from_the_reply),),
    "H1: a lease has no end at the source": ((Ledger, "_is_free", _no_expiry),),
    "H4: a claim is granted again": ((Ledger, "is_over", _never_over),),
    "H4: release goes by the lock's name": ((Ledger, "_release", _release_by_name),),
    "H5: a refusal after a lost reply ends nothing": ((retry, "Busy", _NoReply),),
    "H7: newcomers barge in": ((Ledger, "head", _nobody_waits),),
    "H7: the last waiter is served first": ((Ledger, "head", _last_first),),
    "H8: a queue entry that expired comes back": ((Ledger, "_poll", _poll_that_revives),),
    "G1: admit asks for a strictly higher token": ((guarding, "admit", _strictly_higher),),
    "G1: a lower token is admitted": ((guarding, "admit", _stale_or_not),),
    "G1: the mark does not know its lease": (
        (admitting, "_check_same_tenure", _nothing),
        (MemoryResourceSession, "is_own", _token_alone),
    ),
    "G2: the first read comes before the seal": ((guarding, "open_transaction", _read_before_sealing),),
    "G2: each store is sealed when it is first used": (
        (SimulatedClient, "_seal_all", _flow_of_nothing),
        (Tenure, "check_may_open", _nothing),
    ),
    "G2: an unknown outcome of the seal counts as done": ((guarding, "_seal_durably", _unknown_is_done),),
    "G3: a transaction does not keep others out": ((MemoryResourceSession, "enter", _enter_freely),),
    "G4: a restart loses the marks": ((SimulatedResource, "throw_out", _restart_without_marks),),
    "G6: the store enforces nothing": ((MemoryResourceSession, "put", _put_freely),),
    "G9: the tenure forgets its seals": ((Tenure, "remember", _seal_forgotten),),
    "G10: close does nothing": ((guarding, "close", _flow_of_nothing),),
    "G10: break leaves the guards alone": ((admin, "outrank", _flow_of_nothing),),
}
"""The changes that each control makes: (owner, attribute, replacement)."""


@contextmanager
def control(name: str) -> Iterator[None]:
    """Break one rule inside the block; raise KeyError if the control does not exist."""
    before = [(owner, attribute, vars(owner)[attribute]) for owner, attribute, _ in CONTROLS[name]]
    try:
        for owner, attribute, replacement in CONTROLS[name]:
            setattr(owner, attribute, replacement)
        yield
    finally:
        for owner, attribute, original in before:
            setattr(owner, attribute, original)


def first_violation(name: str, seeds: Iterable[int], simulate: Callable[[int], Any]) -> Any:
    """Return the outcome of the first seed that finds the broken rule, or None if no seed finds it."""
    with control(name):
        for seed in seeds:
            outcome = simulate(seed)
            if outcome.violation is not None:
                return outcome
    return None
