"""A session: one lease of etcd that all places of one process with one ttl hang on.

Promise: the time left is counted from when the last confirmed keepalive was sent, so that it is never more than what
etcd still gives. Its id is drawn here: a grant whose reply was lost is asked for again under the same id, and none is
left behind. A lease that etcd has ended, or may have begun to end, is never used again.
"""

import itertools
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from fencelock.clock import boottime_ms
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import LEASE_REVOKE, EtcdClient
from fencelock.stores.etcd.connection.errors import LeaseGoneError, map_error

if TYPE_CHECKING:
    from fencelock.stores.wakeup import EventWakeup

REVOKE_S = 1.0
BEATS_PER_TTL = 3
_RETRIES_PER_TTL = 12


class EtcdSession:
    """One lease, as this process knows it. Times are in milliseconds on its clock, which counts suspend."""

    __slots__ = ("_taken_numbers", "confirmed_ms", "is_lost", "keepalive_sent_ms", "lease", "ttl_ms")

    def __init__(self, ttl_ms: int) -> None:
        self.lease = secrets.randbits(62) + 1
        self.ttl_ms = ttl_ms
        self.confirmed_ms: int | None = None
        """When the request was sent by which etcd last confirmed it; None: it was not granted yet."""
        self.keepalive_sent_ms = 0
        self.is_lost = False
        self._taken_numbers: dict[str, set[int]] = {}

    def take_number(self, lock: str) -> int:
        """Return the lowest number that no other claim has at this lock."""
        taken = self._taken_numbers.setdefault(lock, set())
        number = next(number for number in itertools.count() if number not in taken)
        taken.add(number)
        return number

    def release_number(self, lock: str, number: int) -> None:
        """Let another claim have the number."""
        taken = self._taken_numbers.get(lock, set())
        taken.discard(number)
        if not taken:
            self._taken_numbers.pop(lock, None)

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
        return now_ms - self.keepalive_sent_ms > self.ttl_ms // _RETRIES_PER_TTL


class EtcdQueueEntry:
    """One claim. Times are in milliseconds on this process's clock."""

    __slots__ = (
        "answered", "claim", "deadline_ms", "is_granted", "is_over", "is_watched", "key", "lock", "number",
        "predecessor", "revision", "sent", "session", "ttl_ms", "value", "wakeup", "watch_id",
    )  # fmt: skip

    def __init__(self, lock: str, claim: str, ttl_ms: int) -> None:
        self.lock = lock
        self.claim = claim
        self.ttl_ms = ttl_ms
        self.session: EtcdSession | None = None
        self.number = 0
        """Of its place, among those of its session at its lock."""
        self.key = b""
        self.value = b""
        self.sent = 0
        self.answered = 0
        self.revision = 0
        """At which its place was created; 0: it has none, as far as is known."""
        self.deadline_ms = 0
        """When it ends for want of being asked for, though its session lives."""
        self.is_granted = False
        self.is_over = False
        """Whether its release has begun."""
        self.is_watched = False
        """Whether the deletion of its place would be told."""
        self.predecessor: tuple[bytes, int] | None = None
        """The key and the revision of whoever is next before it in the queue."""
        self.wakeup: EventWakeup | None = None
        self.watch_id = 0

    @property
    def is_in_doubt(self) -> bool:
        """Whether a request to place it may still be under way."""
        return self.sent > self.answered

    def extend(self, sent_ms: int) -> None:
        """Take note that it was asked for then."""
        self.deadline_ms = sent_ms + self.ttl_ms

    def remaining_ms(self) -> int:
        """Return for how long it stands at least."""
        if self.session is None:
            return 0
        return max(0, min(self.deadline_ms - boottime_ms(), self.session.remaining_ms()))

    def wake_waiter(self) -> None:
        """Have its waiter look; called by the watcher."""
        wakeup = self.wakeup
        if wakeup is not None:
            wakeup.notify()

    def mark_unwatched(self) -> None:
        """Have the next beat look for its place; called by the watcher."""
        self.is_watched = False


class PendingRevocations:
    """The endings that one process has asked one cluster for."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._revocations: dict[int, Any] = {}

    def revoke(self, lease: int) -> None:
        """Have etcd end a lease."""
        with suppress(Exception):
            revocation = self._client.begin(LEASE_REVOKE, wire.LeaseRevokeRequest(id=lease), REVOKE_S)
            self._revocations[lease] = revocation
            # The client lives until it is done: a source may be forgotten as soon as it is closed.
            _UNDER_WAY[revocation] = self._client
            revocation.add_done_callback(_UNDER_WAY.pop)

    def retry_failed(self) -> None:
        """Ask again for what was answered by an error."""
        for lease, revocation in list(self._revocations.items()):
            if not revocation.done():
                continue
            self._revocations.pop(lease, None)
            if not self._has_ended(revocation):
                self.revoke(lease)

    def _has_ended(self, revocation: Any) -> bool:
        is_done = revocation.code() is grpc.StatusCode.OK
        return is_done or isinstance(map_error(revocation, self._client.info), LeaseGoneError)


def wait_for_all() -> None:
    """Wait a moment for what is under way, at the interpreter's end."""
    for revocation in list(_UNDER_WAY):
        with suppress(Exception):
            revocation.result(REVOKE_S)


def _after_fork_in_child() -> None:
    _INHERITED.append(dict(_UNDER_WAY))
    _UNDER_WAY.clear()


_INHERITED: list[Any] = []
"""What a forked child has of its parent's: to let go of it would be to use it."""
_UNDER_WAY: dict[Any, EtcdClient] = {}
"""Each with what it is said over."""
os.register_at_fork(after_in_child=_after_fork_in_child)
