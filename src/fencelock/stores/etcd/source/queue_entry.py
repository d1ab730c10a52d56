"""One claim of this process that stands, or may stand, in etcd.

Promise: it knows of every request to place it whether an answer came: while one did not, the claim may be placed later
than it seems, and is refused by name when it ends (H4).
"""

from typing import TYPE_CHECKING

from fencelock.clock import boottime_ms

if TYPE_CHECKING:
    from fencelock.stores.etcd.source.session import EtcdSession
    from fencelock.stores.wakeup import EventWakeup


class EtcdQueueEntry:
    """One claim. Times are in milliseconds on this process's clock."""

    __slots__ = (
        "ahead", "answered", "claim", "deadline_ms", "ear", "is_granted", "is_over", "is_watched", "key",
        "lock", "number", "revision", "sent", "session", "ttl_ms", "value", "watch_id",
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
        self.ahead: tuple[bytes, int] | None = None
        """The key and the revision of whoever is next before it in the queue."""
        self.ear: EventWakeup | None = None
        self.watch_id = 0

    @property
    def is_in_doubt(self) -> bool:
        """Whether a request to place it may still be under way."""
        return self.sent > self.answered

    def keep(self, sent_ms: int) -> None:
        """Take note that it was asked for then."""
        self.deadline_ms = sent_ms + self.ttl_ms

    def remaining_ms(self) -> int:
        """Return for how long it stands at least."""
        if self.session is None:
            return 0
        return max(0, min(self.deadline_ms - boottime_ms(), self.session.remaining_ms()))

    def call(self) -> None:
        """Have its waiter look; called by the watcher."""
        ear = self.ear
        if ear is not None:
            ear.notify()

    def doubt(self) -> None:
        """Have the next beat look for its place; called by the watcher."""
        self.is_watched = False
