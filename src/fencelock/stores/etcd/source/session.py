"""What a process has in etcd: sessions, the queue entries attached to them, and revocations that are still pending.

Promise: a session's time left is counted from when the last confirmed keepalive was sent, so it is never more than what
etcd still grants. The process draws the lease's id: after a lost reply it asks for the same id again, and leaves no
lease behind. A lease that etcd has ended, or may have begun to end, is never used again. A queue entry knows whether a
request to create it is still unanswered: such a claim may be enqueued later than it seems, and is refused by name when
it ends (H4). Nobody waits for a revocation; one that failed is repeated when the process next hears from etcd, because
etcd might keep the lease with all queue entries attached to it.
"""

import itertools
import secrets
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fencelock._platform import at_fork
from fencelock.clock import boottime_ms
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.begun_call import EtcdBegunCall
from fencelock.stores.etcd.connection.client import LEASE_REVOKE, EtcdClient
from fencelock.stores.etcd.connection.errors import LeaseGoneError, map_error

if TYPE_CHECKING:
    from fencelock.stores.wakeup import EventWakeup

REVOKE_S = 1.0
BEATS_PER_TTL = 3
_RETRIES_PER_TTL = 12

# Why a claim is over, for its holder.
EXPIRED = "it expired at the source before it was renewed"
RELEASED = "it was released"
LOST_SESSION = "its session with etcd has ended"
NEW_EPOCH = "the source's epoch was raised"
DELETED = "its key in etcd was deleted"


class EtcdSession:
    """One etcd lease, as this process knows it: all queue entries of one ttl are attached to it.

    Times are in milliseconds on this process's clock, which counts suspend.
    """

    __slots__ = ("_taken_numbers", "confirmed_ms", "is_lost", "keepalive_sent_ms", "lease", "ttl_ms")

    def __init__(self, ttl_ms: int) -> None:
        # Never 0, by which etcd would draw the id: if the reply were lost, nobody could revoke the lease.
        self.lease = secrets.randbits(62) + 1
        self.ttl_ms = ttl_ms
        self.confirmed_ms: int | None = None
        """When the last request was sent that etcd has confirmed; None: the lease is not granted yet."""
        self.keepalive_sent_ms = 0
        self.is_lost = False
        self._taken_numbers: dict[str, set[int]] = {}

    def take_number(self, lock: str) -> int:
        """Return the lowest number that no other claim has at this lock."""
        # Numbers are reused, because etcd walks through every key that a range ever had until it is compacted.
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
        """Note that etcd has answered a request that was sent then."""
        # Answers may arrive in another order than their requests were sent.
        self.confirmed_ms = max(sent_ms, self.confirmed_ms or sent_ms)

    def remaining_ms(self) -> int:
        """Return for how long etcd keeps the lease at least."""
        if self.is_lost or self.confirmed_ms is None:
            return 0
        return max(0, self.confirmed_ms + self.ttl_ms - boottime_ms())

    def is_overdue(self) -> bool:
        """Return whether all confirmed time is over, so that etcd may have begun to end the lease.

        Until etcd has ended it, etcd may still confirm a keepalive as if it came in time (etcd's issues 14758 and
        15247).
        """
        return self.confirmed_ms is not None and not self.remaining_ms()

    def is_due(self) -> bool:
        """Return whether it is time for a keepalive, and no other thread has just sent one."""
        now_ms = boottime_ms()
        if self.remaining_ms() * BEATS_PER_TTL >= self.ttl_ms * (BEATS_PER_TTL - 1):
            return False
        return now_ms - self.keepalive_sent_ms > self.ttl_ms // _RETRIES_PER_TTL


class EtcdQueueEntry:
    """One claim of this process that is, or may be, in a queue. Times are in milliseconds on this process's clock."""

    __slots__ = (
        "answered", "deadline_ms", "digest", "is_granted", "is_over", "is_watched", "key", "lock", "number",
        "predecessor", "revision", "sent", "session", "ttl_ms", "value", "wakeup", "watch_id",
    )  # fmt: skip

    def __init__(self, lock: str, digest: str, ttl_ms: int) -> None:
        self.lock = lock
        self.digest = digest
        """H(H(claim)): what etcd keeps of the claim."""
        self.ttl_ms = ttl_ms
        self.session: EtcdSession | None = None
        self.number = 0
        """Tells it from the other queue entries of its session at its lock."""
        self.key = b""
        self.value = b""
        self.sent = 0
        """The number of requests to enqueue it."""
        self.answered = 0
        """The number of those requests that were answered, or certainly not executed."""
        self.revision = 0
        """The revision that created its key; 0: it has no key, as far as is known."""
        self.deadline_ms = 0
        """When it ends unless somebody asks for it, even though its session lives."""
        self.is_granted = False
        self.is_over = False
        """Whether its release has begun."""
        self.is_watched = False
        """Whether its watch is one of its own key."""
        self.predecessor: tuple[bytes, int] | None = None
        """The key and the creation revision of the queue entry directly before it."""
        self.wakeup: EventWakeup | None = None
        self.watch_id = 0
        """The watch of its predecessor's key while it waits, and of its own key once it is held."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether a request to enqueue it may still be under way."""
        return self.sent > self.answered

    def extend(self, sent_ms: int) -> None:
        """Keep the claim for its ttl from then on."""
        self.deadline_ms = sent_ms + self.ttl_ms

    def remaining_ms(self) -> int:
        """Return for how long the claim stays in the queue at least."""
        if self.session is None:
            return 0
        return max(0, min(self.deadline_ms - boottime_ms(), self.session.remaining_ms()))

    def wake_waiter(self) -> None:
        """Notify the waiter; called in the watcher's thread."""
        wakeup = self.wakeup  # Read once: its owner may set it to None at any moment.
        if wakeup is not None:
            wakeup.notify()

    def mark_unwatched(self) -> None:
        """Make the next beat look for its key; called in the watcher's thread."""
        self.is_watched = False


class PendingRevocations:
    """The revocations that one process has sent to one cluster, until etcd confirms them."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._revocations: dict[int, EtcdBegunCall | None] = {}
        """None for one that could not be sent."""

    def revoke(self, lease: int) -> None:
        """Revoke a lease, without waiting for the answer."""
        self._revocations[lease] = None
        with suppress(Exception):
            revocation = self._client.begin(LEASE_REVOKE, wire.LeaseRevokeRequest(id=lease), REVOKE_S)
            self._revocations[lease] = revocation
            _UNDER_WAY.add(revocation)

    def retry_failed(self) -> None:
        """Repeat the revocations that failed."""
        for lease, revocation in list(self._revocations.items()):
            if revocation is not None and not revocation.is_over:
                continue
            self._revocations.pop(lease, None)
            if revocation is None or not self._has_ended(revocation):
                self.revoke(lease)

    def _has_ended(self, revocation: EtcdBegunCall) -> bool:
        error = revocation.error
        return error is None or isinstance(map_error(error, self._client.info), LeaseGoneError)


def wait_for_all() -> None:
    """Wait a moment for the revocations under way, at the interpreter's end."""
    for revocation in list(_UNDER_WAY):
        with suppress(Exception):
            revocation.result()


def _after_fork_in_child() -> None:
    _INHERITED.extend(_UNDER_WAY)
    _UNDER_WAY.clear()


_INHERITED: list[Any] = []
"""The parent's objects in a forked child, kept because destroying them would use them."""
_UNDER_WAY: "weakref.WeakSet[EtcdBegunCall]" = weakref.WeakSet()
"""The revocations under way; gRPC keeps each until its answer."""
at_fork(after_in_child=_after_fork_in_child)
