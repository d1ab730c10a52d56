"""The keeper's thread: renews the leases that are due, ends those that are over, abandons interrupted claims.

Promise: a source's definite "not yours" ends a lease as lost, a passed deadline ends it as expired, and callbacks run
within a second (H2, H3). A renewal that succeeds after the deadline is followed by a release. An abandoned claim is
released as soon as the source can be reached, and forgotten after its ttl, when it has ended by itself (H5). Other
threads reach the keeper through its inbox alone, whose `put` is safe in signal handlers and finalizers.
Never: waits for a user's code, or twice for a source that did not answer between two checks for due renewals; lets the
errors of one source, even unexpected ones, affect the leases of another.

It asks one source after another, so their leases wait for each other. It asks for REQUEST_TIMEOUT_S at a time. A store
may take longer: for a large batch, and S3 and DynamoDB for each of the requests that a renewal has there. A lease with
a ttl of a few seconds can expire meanwhile: the pages of those stores say so.
"""

import itertools
import logging
import math
import queue
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial

from fencelock._drivers.shutdown import SHUTDOWN
from fencelock._drivers.sync import SyncDriver
from fencelock._flows import acquire, renewal
from fencelock._keeper.callback_thread import CallbackThread
from fencelock._keeper.messages import Abandon, Message, Over, Stop, Wake
from fencelock._keeper.record import DEADLINE_PASSED, EXPIRED, HELD, LOST, RELEASED, LeaseRecord
from fencelock._keeper.schedule import Schedule, first_beat_ms
from fencelock._threads import BackgroundThread
from fencelock.clock import boottime_ms
from fencelock.errors import FencelockError
from fencelock.hooks import is_observed, logger
from fencelock.protocol.generators import ask
from fencelock.protocol.source_requests import Release

REQUEST_TIMEOUT_S = 0.5
"""How long a store is asked to wait for one busy source; the leases of other sources must be renewed meanwhile."""
MAX_SLEEP_MS = 500
"""How often the keeper checks the clock while leases are held: its sleep does not count a suspend, deadlines do."""
LINGER_MS = 5000
"""How long it goes on checking after the last lease, so that a quick succession of leases need not wake it."""
ABANDON_PAUSE_MS = 250
MAX_ABANDONED_AT_ONCE = 64
"""Claims that are released, at most, between two checks for due renewals."""
ERROR_PAUSE_S = 0.1
LAST_WAIT_S = 0.5
"""How long the keeper waits, at the interpreter's end, for the next claim of the threads that were acquiring a lock."""
LAST_LOOK_S = 0.01
"""How often it looks meanwhile whether there is such a thread: the last one's claim comes before it says so."""
_UNEXPECTED = "the keeper met an unexpected error; it goes on"
_ENDED_BEFORE = "the source had ended it before it was released"


class Keeper:
    """The thread and its inbox; started by the first acquire."""

    def __init__(self, now_ms: Callable[[], int] = boottime_ms) -> None:
        self._now_ms = now_ms
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._arrivals: dict[str, LeaseRecord] = {}
        self._wake_ms = math.inf
        self._schedule = Schedule()
        self._abandoned: dict[str, Abandon] = {}
        self._retry_ms = 0
        self._drop_ms = 0
        self._idle_since_ms = 0
        self._callback_thread = CallbackThread()
        self._background = BackgroundThread("fencelock-keeper")
        self._has_stopped = False

    # --- called by other threads -------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start its thread and the callbacks' thread, unless they run; SourceUnavailableError if one cannot be started.

        Call it before each acquire: a lease that nobody renews, or whose loss cannot be told, must not be granted. The
        exception is an exit handler that runs after `stop`: what it acquires lasts for its ttl.
        """
        # Python 3.12 starts no thread at the interpreter's end, so the acquire of an exit handler would fail here.
        if self._has_stopped:
            return
        self._callback_thread.start()
        self._background.start(self._run)

    def add(self, record: LeaseRecord) -> None:
        """Renew a new lease from now on. A wake-up costs more than a grant, so this wakes the thread only if needed."""
        self._arrivals[record.claim] = record
        if self._wake_ms > first_beat_ms(record, self._now_ms()):
            self._inbox.put(Wake())

    def forget(self, record: LeaseRecord) -> None:
        """Drop a lease that has ended; if the thread has it already, its next beat drops it."""
        self._arrivals.pop(record.claim, None)

    def abandon(self, driver: SyncDriver, lock: str, claim: str, ttl_ms: int) -> None:
        """Release a claim in the background. Safe in signal handlers and finalizers."""
        self._inbox.put(Abandon(driver, lock, claim, self._now_ms() + ttl_ms))

    def release(self, record: LeaseRecord) -> None:
        """Release a lease in the background, and announce that, or that it was lost before. Safe in signal handlers."""
        give_up_ms = self._now_ms() + record.ttl_ms
        self._inbox.put(Abandon(record.driver, record.lock, record.claim, give_up_ms, record, record.listeners))

    def announce_loss(self, record: LeaseRecord) -> None:
        """Announce, once, that a lease is lost, or that its deadline has passed. Safe in signal handlers."""
        self._inbox.put(Over(record, record.listeners))

    def stop(self, timeout_s: float) -> None:
        """Release every held lease, and wait at most `timeout_s` for that. The thread does not start again."""
        self._has_stopped = True
        if self._background.is_running:
            self._inbox.put(Stop())
            self._background.join(timeout_s)

    # --- the thread -------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            try:
                if self._receive():
                    return
                # Before the renewals: the loss of a lease that is over must not wait for a slow source.
                self._expire()
                silent = self._renew()
                self._expire()
                self._abandon_claims(silent)
            except Exception:
                # One unexpected error must not end the renewal of every lease (Artemis#2371): log it, and go on.
                logger.exception(_UNEXPECTED)
                time.sleep(ERROR_PAUSE_S)

    def _receive(self) -> bool:
        """Take messages until something is due; return whether to end."""
        # In this order, a new lease is either taken in here, or its thread sees the new time and wakes this one.
        self._take_arrivals()
        timeout_s = self._plan_sleep()
        if not self._arrivals:
            with suppress(queue.Empty):
                message = self._inbox.get(timeout=timeout_s)
                # Leases that come and go between two checks are not seen; the wake-up shows that there are some.
                self._idle_since_ms = self._now_ms()
                while not isinstance(message, Stop):
                    if isinstance(message, Abandon):
                        self._take_abandoned(message)
                    elif isinstance(message, Over):
                        self._end(message.record, EXPIRED, DEADLINE_PASSED)
                    message = self._inbox.get_nowait()
                self._release_everything()
                self._take_last_abandons()
                return True
        # The thread is awake until it plans its next sleep, so `add` need not wake it.
        self._wake_ms = 0
        self._take_arrivals()
        return False

    def _take_arrivals(self) -> None:
        while self._arrivals:
            try:
                _, record = self._arrivals.popitem()
            except KeyError:
                return  # Another thread removed it at this moment.
            self._idle_since_ms = self._now_ms()
            if record.state == HELD:
                self._schedule.add(record, self._now_ms())

    def _plan_sleep(self) -> float | None:
        """Return how long to sleep (None: until a message arrives), and record it for `add`."""
        now_ms = self._now_ms()
        moments = [moment for moment in (self._schedule.next_ms(), self._next_abandon_ms()) if moment is not None]
        if not moments and now_ms - self._idle_since_ms > LINGER_MS:
            self._wake_ms = math.inf
            return None
        sleep_ms = max(0, min([*(moment - now_ms for moment in moments), MAX_SLEEP_MS]))
        self._wake_ms = now_ms + sleep_ms
        # A millisecond more: get(timeout=0) would be an error, and waking early would find nothing due.
        return (sleep_ms + 1) / 1000

    def _next_abandon_ms(self) -> int | None:
        return self._retry_ms if self._abandoned else None

    def _take_abandoned(self, message: Abandon) -> None:
        self._abandoned[message.claim] = message
        self._retry_ms = 0

    def _expire(self) -> None:
        for record in self._schedule.overdue(self._now_ms()):
            self._end(record, EXPIRED, DEADLINE_PASSED)

    def _end(self, record: LeaseRecord, state: str, reason: str) -> None:
        """End a lease that is over, announce that once, and abandon its claim in case the source still has it."""
        self._schedule.remove(record)
        record.leave_held(state, reason)
        # By the record's state, not by this call's success: `announce_loss` sends records that left held before.
        if record.state not in {EXPIRED, LOST} or record.is_announced:
            return
        record.is_announced = True
        self._call_listeners(record)
        if record.state == EXPIRED:
            give_up_ms = self._now_ms() + record.ttl_ms
            self._take_abandoned(Abandon(record.driver, record.lock, record.claim, give_up_ms))

    def _call_listeners(self, record: LeaseRecord) -> None:
        listeners = record.listeners
        reason = record.reason or ""
        for listener in listeners.callbacks:
            self._callback_thread.submit(partial(listener, reason))
        self._callback_thread.submit(partial(listeners.emit, record, "lost", reason=reason))

    def _renew(self) -> AbstractSet[SyncDriver]:
        """Renew what is due; return the sources that did not answer."""
        silent: set[SyncDriver] = set()
        now_ms = self._now_ms()
        is_due = self._schedule.is_due(now_ms)
        if is_due or now_ms >= self._drop_ms:
            # At a beat alone, the leases of a long ttl that were released would pile up for hours.
            self._schedule.drop_ended()
            self._drop_ms = now_ms + MAX_SLEEP_MS
        if not is_due:
            return silent
        for driver, records in self._schedule.take_due(now_ms):
            try:
                beat = driver.run(renewal.renew(tuple((record.lock, record.claim) for record in records)))
            except Exception as error:
                self._log_failure(error, logging.WARNING, "%d lease(s) could not be renewed now: %s", len(records))
                self._schedule.doubt(records, self._now_ms())
                silent.add(driver)
            else:
                self._settle(beat, records)
            self._expire()  # A slow source delays the word of no other lease's end.
        return silent

    def _log_failure(self, error: Exception, level: int, message: str, what: object) -> None:
        """Log a FencelockError in one line, and any other error, which is unexpected, with its traceback."""
        if isinstance(error, FencelockError):
            logger.log(level, message, what, error)
        else:
            logger.error(_UNEXPECTED, exc_info=error)

    def _settle(self, beat: renewal.Beat, records: list[LeaseRecord]) -> None:
        sent_ms, (remaining, lost, in_doubt) = beat
        received_ms = self._now_ms()
        if in_doubt:
            logger.warning("%d lease(s) could not be renewed now, while others of their source could", len(in_doubt))
            self._schedule.doubt([record for record in records if record.claim in in_doubt], received_ms)
        for record in records:
            if record.claim in in_doubt:
                continue
            remaining_ms = remaining.get(record.claim)
            if remaining_ms is None:
                self._end(record, LOST, lost.get(record.claim, "the source did not name it"))
            elif not record.renewed_until(acquire.deadline_ms(sent_ms, remaining_ms, record.ttl_ms), received_ms):
                self._end(record, EXPIRED, "its deadline passed before the source confirmed the renewal")
            elif record.listeners.hooks.on_renewed is not None and record.is_held:
                self._callback_thread.submit(partial(record.listeners.emit, record, "renewed"))

    def _abandon_claims(self, silent: AbstractSet[SyncDriver] = frozenset()) -> None:
        """Release abandoned claims, except at the sources that have just not answered."""
        now_ms = self._now_ms()
        if not self._abandoned or now_ms < self._retry_ms:
            return
        unreachable, failed, has_asked = set(silent), list[str](), False
        for claim, message in list(itertools.islice(self._abandoned.items(), MAX_ABANDONED_AT_ONCE)):
            if has_asked and self._is_anything_due():
                break  # At a slow source the releases of all would take longer than a lease.
            del self._abandoned[claim]
            # One failure stands for its source: a request for each claim would delay the renewals.
            is_asked = message.driver not in unreachable
            has_asked |= is_asked
            if is_asked and self._is_released(message):
                continue
            unreachable.add(message.driver)
            if now_ms < message.give_up_ms:  # Later its ttl has ended it.
                # A release that is repeated, and finds no lease to end, proves no loss.
                self._abandoned[claim] = message._replace(record=None, listeners=None) if is_asked else message
                if is_asked:
                    failed.append(claim)
        for claim in failed:
            # To the end: a claim that its source refuses to release holds up no others.
            self._abandoned[claim] = self._abandoned.pop(claim)
        self._retry_ms = self._now_ms() + ABANDON_PAUSE_MS if unreachable else 0

    def _is_anything_due(self) -> bool:
        next_ms = self._schedule.next_ms()
        return next_ms is not None and next_ms <= self._now_ms()

    def _is_released(self, message: Abandon) -> bool:
        """Send the release once: it is repeated later, when the renewals that are due meanwhile have been sent."""
        try:
            is_held = message.driver.run(ask(Release(message.lock, message.claim))).was_held
            if not is_held and message.record is not None:
                self._note_loss(message.record)
        except Exception as error:
            self._log_failure(error, logging.INFO, "a claim on lock %r could not be released now: %s", message.lock)
            self._announce_release(message.record, str(error))
            return False
        self._announce_release(message.record, None if is_held else _ENDED_BEFORE)
        return True

    def _announce_release(self, record: LeaseRecord | None, reason: str | None) -> None:
        if record is not None and record.state == RELEASED and is_observed(record.listeners.hooks, "released"):
            self._callback_thread.submit(partial(record.listeners.emit, record, "released", reason=reason))

    def _note_loss(self, record: LeaseRecord) -> None:
        # After the deadline the lease may have expired since its holder released it: that is no loss.
        if self._now_ms() < record.deadline_ms:
            loss = _ENDED_BEFORE
            with suppress(FencelockError):
                loss = record.driver.run(renewal.end_lease(record.lock, record.claim)) or loss
            record.found_lost(loss)
            self._end(record, LOST, loss)

    def _take_last_abandons(self) -> None:
        """Abandon the claims of the threads that the interpreter's end has met while they acquired a lock."""
        give_up_s = time.monotonic() + LAST_WAIT_S
        while SHUTDOWN.acquiring and time.monotonic() < give_up_s:
            with suppress(queue.Empty):
                self._take_last_abandon(self._inbox.get(timeout=LAST_LOOK_S))
                give_up_s = time.monotonic() + LAST_WAIT_S
        with suppress(queue.Empty):
            while True:
                self._take_last_abandon(self._inbox.get_nowait())
        self._abandon_all()

    def _take_last_abandon(self, message: Message) -> None:
        if isinstance(message, Abandon):
            self._take_abandoned(message)

    def _release_everything(self) -> None:
        self._take_arrivals()
        for record in list(self._schedule):
            if record.leave_held(RELEASED, "the interpreter ended"):
                # Tried once, as 0 is long ago: the exit waits for no silent source, and the ttl ends the lease.
                self._take_abandoned(Abandon(record.driver, record.lock, record.claim, 0))
        self._abandon_all()

    def _abandon_all(self) -> None:
        """Release the abandoned claims, until a source cannot be reached."""
        self._retry_ms = 0
        while self._abandoned and not self._retry_ms:
            self._abandon_claims()
