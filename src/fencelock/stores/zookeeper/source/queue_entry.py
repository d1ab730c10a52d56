"""Where one claim of this process stands in ZooKeeper.

Promise: what is told of its node, or of its predecessor's, is noted and wakes who waits. Nothing is asked for here.
"""

from typing import TYPE_CHECKING, Any

from kazoo.protocol.states import EventType

if TYPE_CHECKING:
    from fencelock.stores.wakeup import EventWakeup


class ZooKeeperQueueEntry:
    """One claim that stands, or may stand, in ZooKeeper. Times are on this process's clock."""

    __slots__ = (
        "claim", "deadline_ms", "ear", "is_gone", "is_granted", "is_next", "lock", "over", "path", "predecessor",
        "queue_path", "ttl_ms", "was_asked_for", "was_seen", "watched_over", "zxid",
    )  # fmt: skip

    def __init__(self, lock: str, claim: str, queue_path: str, ttl_ms: int, deadline_ms: int) -> None:
        self.lock = lock
        self.claim = claim
        self.queue_path = queue_path
        self.ttl_ms = ttl_ms
        self.deadline_ms = deadline_ms
        """When it ends for want of renewal, though its session lives."""
        self.path: str | None = None
        """Its node; None as long as no reply has told it."""
        self.zxid = 0
        """The transaction that made its node."""
        self.was_asked_for = False
        """Whether its node was asked for, with whatever outcome."""
        self.predecessor: str | None = None
        """The node of whoever is next before it in the queue; None: the queue is to be read."""
        self.is_next = False
        """Whether its turn has come once the deletion of `predecessor` is told: nobody stood before that one, and both
        nodes cannot go in one step. Nobody can come to stand before it later.
        """
        self.was_seen = False
        """Whether its own node stood in the queue when that was read, and neither was asked about since."""
        self.is_granted = False
        self.watched_over = 0
        """The number of the connection over which the deletion of its node would be told."""
        self.is_gone = False
        """Whether that was told."""
        self.over: str | None = None
        """Why it has ended; its node is still to be removed."""
        self.ear: EventWakeup | None = None

    def on_event(self, event: Any) -> None:
        """Hear what ZooKeeper tells of its own node, or of its predecessor's; called in the client's thread."""
        if event.type == EventType.DELETED:
            if event.path == self.path:
                self.is_gone = True
            elif event.path == self.predecessor:
                self.predecessor = None
        elif event.path == self.path:
            self.watched_over = 0  # ZooKeeper tells one thing of a node, and then no more.
        self.wake()

    def wake(self) -> None:
        """Have its waiter look, if it sleeps."""
        ear = self.ear
        if ear is not None:
            ear.notify()
