"""The queue entry of one claim of this process in ZooKeeper: its node, its predecessor, and what ZooKeeper has told.

Promise: an event about the entry's own node or its predecessor's is noted here and wakes the waiter. Nothing is sent
from here.
"""

from typing import TYPE_CHECKING, Any

from kazoo.protocol.states import EventType

if TYPE_CHECKING:
    from fencelock.stores.wakeup import EventWakeup


class ZooKeeperQueueEntry:
    """One claim that is, or may be, in a queue. Times are on this process's clock.

    The client's thread writes `path`, `zxid`, `is_gone`, `predecessor` and `watched_connection` from watches and
    replies; the thread that serves the claim's requests writes the rest. A single assignment needs no lock.
    """

    __slots__ = (
        "deadline_ms", "digest", "end_reason", "is_gone", "is_granted", "is_in_last_queue", "is_second", "lock", "path",
        "predecessor", "queue_path", "ttl_ms", "wakeup", "was_requested", "watched_connection", "zxid",
    )  # fmt: skip

    def __init__(self, lock: str, digest: str, queue_path: str, ttl_ms: int, deadline_ms: int) -> None:
        self.lock = lock
        self.digest = digest
        """H(H(claim)): what ZooKeeper keeps of the claim."""
        self.queue_path = queue_path
        self.ttl_ms = ttl_ms
        self.deadline_ms = deadline_ms
        """When it ends unless it is renewed, even though its session lives."""
        self.path: str | None = None
        """Its node; None until a reply names it."""
        self.zxid = 0
        """The transaction that created its node."""
        self.was_requested = False
        """Whether the creation of its node was requested, with whatever outcome."""
        self.predecessor: str | None = None
        """The node directly before it in the queue; None: the queue has to be read."""
        self.is_second = False
        """Whether it holds the lock once ZooKeeper tells the deletion of `predecessor`.

        Nobody was before the predecessor when the queue was read, nobody can get before it later, and the two nodes
        cannot disappear in one step.
        """
        self.is_in_last_queue = False
        """Whether the queue contained its own node when it was last read, and neither node was read since."""
        self.is_granted = False
        self.watched_connection = 0
        """The number of the connection over which ZooKeeper would tell the deletion of its node; 0: none."""
        self.is_gone = False
        """Whether ZooKeeper told that deletion."""
        self.end_reason: str | None = None
        """Why the claim has ended, while its node still has to be removed; None: it has not ended."""
        self.wakeup: EventWakeup | None = None

    def on_event(self, event: Any) -> None:
        """Note an event of its own node or of its predecessor's; called in the client's thread."""
        if event.type == EventType.DELETED:
            if event.path == self.path:
                self.is_gone = True
            elif event.path == self.predecessor:
                self.predecessor = None
        elif event.path == self.path:
            # A watch fires once: after any other event, the deletion would go unnoticed.
            self.watched_connection = 0
        self.wake()

    def wake(self) -> None:
        """Notify the waiter, if it sleeps."""
        wakeup = self.wakeup  # Read once: its owner may set it to None at any moment.
        if wakeup is not None:
            wakeup.notify()
