"""The keeper's thread: renews what is due, ends what is over, abandons what was interrupted.

Promise: a definite "not yours" ends a lease as lost, a passed deadline as expired, each announced within a second (H2,
H3); a renewal that succeeds after the deadline is followed by a release. An abandoned claim is released as soon as the
source can be reached, and is forgotten after its ttl, when it has ended by itself (H5).
Never: waits for a user's code, or for one source longer than PATIENCE_S. Other threads speak to it through its inbox
alone, whose `put` is safe in signal handlers and finalizers.
"""

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from fenceline._drivers.sync import SyncDriver
from fenceline._flows import acquire, keep
from fenceline._keeper.announcer import Announcer
from fenceline._keeper.record import EXPIRED, HELD, LOST, RELEASED, LeaseRecord
from fenceline._keeper.schedule import BEATS_PER_TTL, Schedule
from fenceline.clock import boottime_ms
from fenceline.errors import FencelineError
from fenceline.hooks import logger

PATIENCE_S = 0.5
"""How long the keeper waits for one source that is busy, so that the others' leases are renewed in time."""
MAX_SLEEP_MS = 500
"""The keeper looks at the clock this often while leases are held: its sleep does not count a suspend, deadlines do."""
LINGER_MS = 5000
"""It goes on looking for this long after the last lease, so that a quick succession of leases need not wake it."""
ABANDON_PAUSE_MS = 250
ERROR_PAUSE_S = 0.1


class Wake(NamedTuple):
    """A lease arrived that is due before the keeper meant to look again."""


class Abandon(NamedTuple):
    """A claim that may stand at the source though nobody will use it."""

    driver: SyncDriver
    lock: str
    claim: str
    give_up_ms: int


class Stop(NamedTuple):
    """Release everything that is held, and end."""


class Keeper:
    """The thread and its inbox; started by the first acquire."""

    def __init__(self, now_ms: Callable[[], int] = boottime_ms) -> None:
        self._now_ms = now_ms
        self._inbox: queue.SimpleQueue[Wake | Abandon | Stop] = queue.SimpleQueue()
        self._arrivals: deque[LeaseRecord] = deque()
        self._wake_ms = math.inf
        self._schedule = Schedule()
        self._abandoned: dict[str, Abandon] = {}
        self._retry_ms = 0
        self._idle_since_ms = 0
        self._announcer = Announcer()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    # --- called by other threads -------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the thread unless it runs; to be called from ordinary code, before the first message."""
        if self._thread is None:
            with self._start_lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="fenceline-keeper", daemon=True)
                    thread.start()
                    self._thread = thread

    def adopt(self, record: LeaseRecord) -> None:
        """Keep a new lease. Waking the thread costs more than a grant, so it is woken only if it would be late."""
        self._arrivals.append(record)
        if self._wake_ms > self._now_ms() + record.ttl_ms // BEATS_PER_TTL:
            self._inbox.put(Wake())

    def abandon(self, driver: SyncDriver, lock: str, claim: str, ttl_ms: int) -> None:
        """Release a claim in the background. Safe in signal handlers and finalizers."""
        self._inbox.put(Abandon(driver, lock, claim, self._now_ms() + ttl_ms))

    def stop(self, timeout_s: float) -> None:
        """Release every held lease, and wait `timeout_s` at most for that."""
        if self._thread is not None:
            self._inbox.put(Stop())
            self._thread.join(timeout_s)

    # --- the thread -------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            try:
                if self._receive():
                    return
                self._expire()
                self._renew()
                self._abandon_claims()
            except Exception:
                # One unforeseen error must not end the renewal of every lease (Artemis#2371): tell, and go on.
                logger.exception("the keeper met an error that it did not expect; it goes on")
                time.sleep(ERROR_PAUSE_S)

    def _receive(self) -> bool:
        """Take messages until something is due; return whether to end."""
        # In this order, a lease that arrives is either taken in here or sees the new moment and wakes us.
        self._take_arrivals()
        timeout_s = self._plan_sleep()
        if not self._arrivals:
            with suppress(queue.Empty):
                message = self._inbox.get(timeout=timeout_s)
                while not isinstance(message, Stop):
                    if isinstance(message, Abandon):
                        self._take_abandoned(message)
                    message = self._inbox.get_nowait()
                self._release_everything()
                return True
        self._wake_ms = 0
        self._take_arrivals()
        return False

    def _take_arrivals(self) -> None:
        while self._arrivals:
            record = self._arrivals.popleft()
            self._idle_since_ms = self._now_ms()
            if record.state == HELD:
                self._schedule.add(record, self._now_ms())

    def _plan_sleep(self) -> float | None:
        """Decide how long to sleep, and tell it to `adopt`. None: until somebody writes."""
        now_ms = self._now_ms()
        moments = [moment for moment in (self._schedule.next_ms(), self._next_abandon_ms()) if moment is not None]
        if not moments and now_ms - self._idle_since_ms > LINGER_MS:
            self._wake_ms = math.inf
            return None
        sleep_ms = max(0, min([*(moment - now_ms for moment in moments), MAX_SLEEP_MS]))
        self._wake_ms = now_ms + sleep_ms
        # A moment later than asked: get(timeout=0) would be an error, and waking early would find nothing due.
        return (sleep_ms + 1) / 1000

    def _next_abandon_ms(self) -> int | None:
        return self._retry_ms if self._abandoned else None

    def _take_abandoned(self, message: Abandon) -> None:
        self._abandoned[message.claim] = message
        self._retry_ms = 0

    def _expire(self) -> None:
        for record in self._schedule.overdue(self._now_ms()):
            self._end(record, EXPIRED, "its deadline passed without word from the source")

    def _end(self, record: LeaseRecord, state: str, reason: str) -> None:
        """End a lease that is over, announce it, and give up its claim in case the source still counts it."""
        self._schedule.remove(record)
        if not record.leave_held(state, reason):
            return
        for listener in record.listeners:
            self._announcer.announce(partial(listener, reason))
        self._announcer.announce(partial(record.tell, "lost", reason=reason))
        if state == EXPIRED:
            give_up_ms = self._now_ms() + record.ttl_ms
            self._take_abandoned(Abandon(record.driver, record.lock, record.claim, give_up_ms))

    def _renew(self) -> None:
        self._schedule.drop_ended()
        for driver, records in self._schedule.take_due(self._now_ms()):
            try:
                beat = driver.run(keep.renew(tuple((record.lock, record.claim) for record in records)))
            except FencelineError as error:
                logger.warning("%d leases could not be renewed now: %s", len(records), error)
                self._schedule.doubt(records, self._now_ms())
                continue
            self._settle(beat, records)

    def _settle(self, beat: keep.Beat, records: list[LeaseRecord]) -> None:
        now_ms = self._now_ms()
        for record in records:
            remaining_ms = beat.reply.remaining_ms.get(record.claim)
            if now_ms >= record.deadline_ms:
                self._end(record, EXPIRED, "its deadline passed before the source confirmed the renewal")
            elif remaining_ms is None:
                self._end(record, LOST, beat.reply.lost.get(record.claim, "the source did not name it"))
            elif record.state == HELD:
                record.renewed_until(acquire.deadline_ms(beat.sent_ms, remaining_ms, record.ttl_ms))
                if record.hooks.on_renewed is not None:
                    self._announcer.announce(partial(record.tell, "renewed"))

    def _abandon_claims(self) -> None:
        now_ms = self._now_ms()
        if not self._abandoned or now_ms < self._retry_ms:
            return
        self._retry_ms = now_ms + ABANDON_PAUSE_MS
        unreachable: set[SyncDriver] = set()
        for claim, message in list(self._abandoned.items()):
            if message.driver in unreachable:
                continue
            # Taken out first: an error that nobody foresaw must not bring the keeper back here for ever.
            del self._abandoned[claim]
            try:
                message.driver.run(keep.release(message.lock, claim))
            except FencelineError as error:
                logger.info("a claim on lock %r could not be released now: %s", message.lock, error)
                # One failure speaks for its source: asking for each claim would hold up the renewals.
                unreachable.add(message.driver)
                if now_ms < message.give_up_ms:
                    self._abandoned[claim] = message  # Later, its ttl ends it.

    def _release_everything(self) -> None:
        self._take_arrivals()
        for record in list(self._schedule):
            if record.leave_held(RELEASED, "the interpreter ended"):
                self._take_abandoned(Abandon(record.driver, record.lock, record.claim, 0))
        self._abandon_claims()
