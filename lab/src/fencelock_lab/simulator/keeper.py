"""The leases of a simulated process, and the keeper that renews them with the library's own flows and schedule.

Promise: the library decides when to send a request, which request to send, and how to read the reply:
`renewal.renew`, `renewal.release`, `deadline_ms` and `Schedule`. Only the thread and the clock are simulated.
"""

from collections.abc import Callable, Generator
from typing import Any

from fencelock._flows import renewal
from fencelock._flows.acquire import Attempt, Grant, deadline_ms
from fencelock._flows.tenure import Tenure
from fencelock._keeper.record import EXPIRED, HELD, LOST
from fencelock._keeper.schedule import Schedule
from fencelock.errors import FencelockError
from fencelock.model import Sequencer, digest_of_claim, one_way
from fencelock.protocol import source_requests as ask
from fencelock_lab.simulator.kernel import SimulatedProcess

Body = Generator[Any, Any, Any]
KEEPER_SLEEP_MS = 500
ABANDON_PAUSE_MS = 250


class SimulatedLease:
    """A lease as its process knows it: a `LeaseRecord` without threads and clock."""

    def __init__(self, attempt: Attempt, grant: Grant, driver: object) -> None:
        assert attempt.claim is not None, "a grant without a claim"
        self.driver = driver
        self.lock = attempt.lock
        self.claim = attempt.claim
        self.ttl_ms = attempt.ttl_ms
        self.deadline_ms = grant.deadline_ms
        self.state = HELD
        self.token = grant.token
        self.tenure = Tenure()
        self.has_unknown_write = False
        self.sequencer = Sequencer(grant.source_id, grant.history_id, self.lock, grant.token, one_way(self.claim))

    def is_believed(self, now_ms: int) -> bool:
        """Return whether the holder relies on the lease, as `LeaseRecord.is_held` decides."""
        return self.state == HELD and now_ms < self.deadline_ms

    def leave_held(self, state: str) -> None:
        """Move from held to another state; later calls do nothing."""
        if self.state == HELD:
            self.state = state


class SimulatedKeeper:
    """Renews the leases of one process, and releases interrupted claims."""

    def __init__(
        self, process: SimulatedProcess, wake: Callable[[str], None], relied_on: Callable[[Any], None]
    ) -> None:
        self._kernel = process.kernel
        self._name = process.name
        self._channel = f"the keeper of {process.name}"
        self._wake = wake
        self._relied_on = relied_on
        self.schedule = Schedule()
        self.abandoned: dict[str, str] = {}

    def add(self, lease: SimulatedLease, now_ms: int) -> None:
        """Start to renew a new lease."""
        self._relied_on(lease)
        self.schedule.add(lease, now_ms)  # type: ignore[arg-type]
        self._wake(digest_of_claim(self._channel))

    def abandon(self, claimed: SimulatedLease | Attempt) -> None:
        """Release a claim that the source may hold, as soon as the source is reachable."""
        if claimed.claim is not None:
            self.abandoned[claimed.claim] = claimed.lock
            self._wake(digest_of_claim(self._channel))

    def run(self) -> Body:
        """Run the keeper's loop; it never ends."""
        yield ask.Listen("", self._channel)
        while True:
            now_ms = yield ask.Now()
            next_ms = self.schedule.next_ms()
            pause_ms = ABANDON_PAUSE_MS if self.abandoned else KEEPER_SLEEP_MS
            left_ms = pause_ms if next_ms is None else max(0, min(next_ms - now_ms, pause_ms))
            yield ask.Wait(left_ms + 1)
            yield from self._expire()
            yield from self._renew()
            yield from self._release_abandoned()

    def _expire(self) -> Body:
        now_ms = yield ask.Now()
        for lease in self.schedule.overdue(now_ms):
            self._end(lease, EXPIRED)

    def _end(self, lease: Any, state: str) -> None:
        self._kernel.trace(self._name, "finds its token {} {}", lease.token, state)
        self.schedule.remove(lease)
        if lease.state == HELD and state == EXPIRED:
            self.abandon(lease)
        lease.leave_held(state)

    def _renew(self) -> Body:
        self.schedule.drop_ended()
        now_ms = yield ask.Now()
        for _, leases in self.schedule.take_due(now_ms):
            try:
                beat = yield from renewal.renew(tuple((lease.lock, lease.claim) for lease in leases))
            except FencelockError:
                now_ms = yield ask.Now()
                self.schedule.doubt(leases, now_ms)
                continue
            for lease in leases:
                remaining_ms = beat.reply.remaining_ms.get(lease.claim)
                if remaining_ms is None:
                    self._end(lease, LOST)
                elif self._kernel.now_ms >= lease.deadline_ms:
                    self._end(lease, EXPIRED)
                elif lease.state == HELD:
                    until_ms = deadline_ms(beat.sent_ms, remaining_ms, lease.ttl_ms)
                    lease.deadline_ms = max(lease.deadline_ms, until_ms)
                    self._relied_on(lease)

    def _release_abandoned(self) -> Body:
        for claim, lock in list(self.abandoned.items()):
            try:
                yield from renewal.release(lock, claim)
                del self.abandoned[claim]
            except FencelockError:
                return
