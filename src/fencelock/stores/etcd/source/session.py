"""A session: one lease of etcd that all places of one process with one ttl hang on.

Promise: the time left is counted from when the last confirmed keepalive was sent, so that it is never more than what
etcd still gives. Its id is drawn here: a grant whose reply was lost is asked for again under the same id, and none is
left behind. A lease that etcd has ended, or may have begun to end, is never used again.
"""

import itertools
import secrets

from fencelock.clock import boottime_ms

BEATS_PER_TTL = 3
_ASKED_AGAIN_PER_TTL = 12


class EtcdSession:
    """One lease, as this process knows it. Times are in milliseconds on its clock, which counts suspend."""

    __slots__ = ("_taken", "asked_ms", "confirmed_ms", "is_lost", "lease", "ttl_ms")

    def __init__(self, ttl_ms: int) -> None:
        self.lease = secrets.randbits(62) + 1
        self.ttl_ms = ttl_ms
        self.confirmed_ms: int | None = None
        """When the request was sent by which etcd last confirmed it; None: it was not granted yet."""
        self.asked_ms = 0
        self.is_lost = False
        self._taken: dict[str, set[int]] = {}

    def take(self, lock: str) -> int:
        """Return the lowest number that no other claim has at this lock."""
        taken = self._taken.setdefault(lock, set())
        number = next(number for number in itertools.count() if number not in taken)
        taken.add(number)
        return number

    def give_back(self, lock: str, number: int) -> None:
        """Let another claim have the number."""
        taken = self._taken.get(lock, set())
        taken.discard(number)
        if not taken:
            self._taken.pop(lock, None)

    def confirm(self, sent_ms: int) -> None:
        """Take note that etcd has answered what was sent then."""
        self.confirmed_ms = max(sent_ms, self.confirmed_ms or sent_ms)

    def remaining_ms(self) -> int:
        """Return for how long etcd keeps it at least."""
        if self.is_lost or self.confirmed_ms is None:
            return 0
        return max(0, self.confirmed_ms + self.ttl_ms - boottime_ms())

    def is_overdue(self) -> bool:
        """Tell whether all the time is over that etcd has confirmed, so that it may have begun to end the lease.

        Until it has ended it, it may say of a keepalive that it came in time (etcd's issues 14758 and 15247).
        """
        return self.confirmed_ms is not None and not self.remaining_ms()

    def is_due(self) -> bool:
        """Tell whether it is time for a keepalive which nobody else has just sent."""
        now_ms = boottime_ms()
        if self.remaining_ms() * BEATS_PER_TTL >= self.ttl_ms * (BEATS_PER_TTL - 1):
            return False
        return now_ms - self.asked_ms > self.ttl_ms // _ASKED_AGAIN_PER_TTL
