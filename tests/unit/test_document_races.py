"""A source in documents against processes that may be frozen at every operation, and a network that loses and delays.

Each process runs the library's own flows, one operation at a time. The order of the processes, the time that passes
between two operations, and what the network does to them are drawn from a seed. The rules are judged from outside:
nobody counts on a lock that somebody else counts on (H1), tokens rise with the grants (T1, T4), and a claim is granted
once (H4).
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from fencelock._flows.acquire import Attempt, Grant, acquire, deadline_ms
from fencelock._flows.renewal import Beat, release, renew
from fencelock.errors import SourceError
from fencelock.model import digest_of_claim, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores import pauses
from fencelock.stores.document import grants, reading
from fencelock.stores.document.layout import LockDocument, decode_lock
from fencelock.stores.document.operations import LOCK, Increment, Key, Operation, Reply, WriteDocument, WriteEach
from fencelock.stores.document.store import OPERATIONS
from fencelock.stores.hashed_claims import hash_claims, restore_claims
from fencelock.testing.clock import ManualClock
from tests.support.documents import LATE, REPLY, REQUEST, Documents, MemoryDocumentSource

TTL_MS = 10_000
NAME = "lock"
PROCESSES = 4
STEPS = 400
SEEDS = 15
FAULTS = (REQUEST, REPLY, LATE)
FAULTY, FREEZES, DELIVERIES, PURGES = 0.1, 0.05, 0.05, 0.3
"""How often the network loses or delays a write, a process is frozen, what was delayed arrives, and a process that has
released the lock purges the source.
"""
Pause = int
"""Milliseconds that a process sleeps for."""


class ViolationError(AssertionError):
    """A rule was broken."""


@dataclass
class Process:
    """One process: its memory of the source, what it does, and the lease that it counts on."""

    name: str
    source: MemoryDocumentSource
    steps: Iterator[Operation | Pause]
    next: Any = None
    error: SourceError | None = None
    reply: Reply = None
    wakes_ms: int = 0
    until_ms: int = 0


class World:
    """Some processes, one lock, one clock, and a judge."""

    def __init__(self, seed: int, *, has_dates: bool) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.documents = Documents(self.clock.now_us, has_dates=has_dates)
        self.highest_token = 0
        self.grants = 0
        self.granted: dict[str, int] = {}
        """The tokens of all claims that ever held the lock, by their digests."""
        MemoryDocumentSource(self.documents, self.clock.now_us).install()
        self.processes: list[Process] = []
        for number in range(PROCESSES):
            source = MemoryDocumentSource(self.documents, self.clock.now_us, longest_wait_ms=2000)
            source.state.random = self.random.random
            process = Process(f"process {number}", source, iter(()))
            process.steps = self._life(process)
            self.processes.append(process)

    def run(self) -> None:
        """Let everything happen, in the order of the seed."""
        for _ in range(STEPS):
            first_ms = min(process.wakes_ms for process in self.processes)
            self.clock.advance(max(0, first_ms - self.clock.now_ms()) / 1000 + self.random.choice([0.001, 0.01, 0.1]))
            awake = [process for process in self.processes if process.wakes_ms <= self.clock.now_ms()]
            process = self.random.choice(awake)
            self._step(process)
            if self.random.random() < FREEZES:
                process.wakes_ms = self.clock.now_ms() + self.random.randrange(2 * TTL_MS)
            if self.random.random() < DELIVERIES:
                self.documents.deliver()
                self._judge_document()

    def _step(self, process: Process) -> None:
        if process.next is not None and not isinstance(process.next, Pause):
            if isinstance(process.next, WriteDocument | WriteEach | Increment) and self.random.random() < FAULTY:
                self.documents.lose(type(process.next), self.random.choice(FAULTS))
            process.reply, process.error = None, None
            try:
                process.reply = self.documents.perform(process.next)
            except SourceError as error:
                process.error = error
            self._judge_document()
        process.next = next(process.steps)
        process.wakes_ms = self.clock.now_ms() + (process.next if isinstance(process.next, Pause) else 0)

    # --- what a process does ------------------------------------------------------------------------------------------
    def _life(self, process: Process) -> Iterator[Any]:
        while True:
            may_wait = self.random.random() < 0.8
            attempt = Attempt(NAME, process.name, TTL_MS)
            timeout_ms = None if may_wait else 0
            try:
                grant = yield from self._flow(process, acquire(attempt, may_wait=may_wait, timeout_ms=timeout_ms))
            except SourceError:
                grant = None
            if grant is not None:
                yield from self._hold(process, attempt, grant)
            if attempt.claim is not None:
                yield from self._abandon(process, attempt.claim)
            if self.random.random() < PURGES:
                yield from self._purge(process)
            yield self.random.randrange(TTL_MS)

    def _hold(self, process: Process, attempt: Attempt, grant: Grant) -> Iterator[Any]:
        assert attempt.claim is not None
        self._judge_grant(process, attempt.claim, grant)
        for _ in range(self.random.randrange(5)):
            yield self.random.randrange(TTL_MS // 2)
            try:
                beat: Beat = yield from self._flow(process, renew(((NAME, attempt.claim),)))
            except SourceError:
                continue
            left_ms = beat.reply.remaining_ms.get(attempt.claim)
            now_ms = self.clock.now_ms()
            if left_ms is None or now_ms >= process.until_ms:
                break  # As the keeper does: a renewal that comes after the deadline renews nothing.
            process.until_ms = max(process.until_ms, deadline_ms(beat.sent_ms, left_ms, TTL_MS))
            self._judge_exclusion(process)
        process.until_ms = 0

    def _abandon(self, process: Process, claim: str) -> Iterator[Any]:
        for _ in range(3):
            try:
                yield from self._flow(process, release(NAME, claim))
            except SourceError:
                continue
            return

    def _purge(self, process: Process) -> Iterator[Any]:
        with suppress(SourceError):
            yield from self._request(process, ask.Purge())

    def _flow(self, process: Process, flow: Any) -> Iterator[Any]:
        step, value = flow.send, None
        while True:
            try:
                request = step(value)
            except StopIteration as done:
                return done.value
            step = flow.send
            match request:
                case ask.Now():
                    value = self.clock.now_ms()
                case ask.Draw():
                    value = draw_claim(), self.clock.now_us()
                case ask.Wait():
                    yield request.timeout_ms
                    value = False
                case ask.Listen():
                    value = None
                case _:
                    try:
                        value = yield from self._request(process, request)
                    except SourceError as error:
                        step, value = flow.throw, error

    def _request(self, process: Process, request: Any) -> Iterator[Any]:
        operations = OPERATIONS[type(request)](process.source.state, hash_claims(request))
        step, value = operations.send, None
        while True:
            try:
                operation = step(value)
            except StopIteration as done:
                is_renewed = isinstance(done.value, ask.Renewed)
                return restore_claims(request, done.value) if is_renewed else done.value
            if isinstance(operation, pauses.Pause):
                yield int(operation.seconds * 1000)
                step, value = operations.send, None
                continue
            yield operation
            step, value = operations.send, process.reply
            if process.error is not None:
                step, value = operations.throw, process.error

    # --- the judge ----------------------------------------------------------------------------------------------------
    def _judge_document(self) -> None:
        document = self.documents.documents.get(Key(LOCK, NAME))
        lock = LockDocument("") if document is None else decode_lock(document, "")
        if not lock.token:
            return  # It was purged, or is new.
        if lock.holder is not None and self.granted.setdefault(lock.holder.digest, lock.token) != lock.token:
            raise ViolationError("H4: a claim was granted twice")
        if lock.token < self.highest_token:
            raise ViolationError(f"T4: token {lock.token} after {self.highest_token}")
        self.highest_token = lock.token

    def _judge_grant(self, process: Process, claim: str, grant: Grant) -> None:
        self.grants += 1
        if self.granted.get(digest_of_claim(claim)) != grant.token:
            raise ViolationError(f"T5: token {grant.token} is not the one of its grant")
        process.until_ms = grant.deadline_ms
        self._judge_exclusion(process)

    def _judge_exclusion(self, process: Process) -> None:
        now_ms = self.clock.now_ms()
        for other in self.processes:
            if other is not process and other.until_ms > now_ms:
                raise ViolationError(
                    f"H1: {process.name} holds the lock until {process.until_ms}, and {other.name} too"
                )


@pytest.mark.parametrize("has_dates", [True, False])
def test_nobody_holds_the_lock_of_somebody_else_whatever_is_frozen_lost_or_late(has_dates: bool) -> None:
    granted = 0
    for seed in range(SEEDS):
        world = World(seed, has_dates=has_dates)
        try:
            world.run()
        except ViolationError as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
        granted += world.grants
    assert granted > 3 * SEEDS, "the lock changes hands"


# --- negative controls ------------------------------------------------------------------------------------------------
def hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release gives the lock to the head of the queue, which counts from when it reads that."""
    release_only = grants._release

    def release_to_head(claim: str, found_held: list[bool], view: reading.View) -> Any:
        living = [entry for entry in view.living if entry.digest != claim]
        if not view.lock.is_holder(claim) or not living:
            return (yield from release_only(claim, found_held, view))
        token = yield from reading.draw_token(view)
        given = view.lock._replace(token=token, holder=living[0].extended(view.date_ms), queue=tuple(living[1:]))
        return ask.Released(was_held=True) if (yield from grants._write(view, given)) else None

    monkeypatch.setattr(grants, "_release", release_to_head)
    monkeypatch.setattr("fencelock.stores.document.sightings.Sightings.is_own", lambda *_: True)


def trust_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """An observer counts a lease from the beginning of its own request, as if it had seen it then."""
    monkeypatch.setattr(
        "fencelock.stores.document.sightings.Sightings.at_most_ms",
        lambda self, entry, now_ms, date_ms: max(0, entry.ttl_ms // 4 - (now_ms - self._of(entry, now_ms).since_ms)),
    )


def draw_before_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is drawn once, and used for as long as it takes to get the lock."""
    drawn: dict[int, int] = {}

    def draw_token(view: reading.View) -> Any:
        if id(view.state) not in drawn:
            drawn[id(view.state)] = view.source.start + (yield Increment(view.source.counter))
            return drawn[id(view.state)]
        return drawn.pop(id(view.state)) + 1

    monkeypatch.setattr(grants, "draw_token", draw_token)


def write_blindly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store ignores the condition of a write."""

    def write(self: Documents, operation: WriteDocument) -> bool:
        self.documents[operation.key] = self.document_of(operation)
        return True

    monkeypatch.setattr(Documents, "_writedocument", write)


@pytest.mark.parametrize("spoil", [hand_over, trust_reading, draw_before_reading, write_blindly])
def test_a_source_that_breaks_a_rule_is_found_out(
    spoil: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)
    for seed in range(5 * SEEDS):
        try:
            World(seed, has_dates=False).run()
        except (ViolationError, AssertionError):
            return
    raise AssertionError(f"{spoil.__name__} passed {5 * SEEDS} seeds")
