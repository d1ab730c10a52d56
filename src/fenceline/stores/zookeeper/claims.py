"""What one process knows of its own claims: where each stands, and which are over.

Promise: a claim that ended in this process is never granted again (H4): only the process that drew a claim ever asks
for it, so what the process remembers is all that there is to know. A claim older than all that is remembered counts as
ended.
"""

import os
import threading
from contextlib import suppress
from typing import Any

from kazoo.protocol.states import EventType

MAX_ENDED = 10_000
"""Ended claims that are remembered one by one."""


class Ear:
    """The channel of one waiting claim."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # A descriptor that was just closed may be somebody else's already.
        self._mutex = threading.RLock()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when something was told."""
        return self._descriptor

    def wake(self) -> None:
        """Tell the claim to look; an ear that was closed hears nothing."""
        with self._mutex:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def drain(self) -> None:
        """Forget what was told until now."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Stop listening; never raises."""
        with self._mutex:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


class Standing:
    """One claim that stands, or may stand, in ZooKeeper. Times are on this process's clock."""

    __slots__ = (
        "claim", "deadline_ms", "ear", "is_gone", "is_granted", "lock", "over", "path", "predecessor", "queue_path",
        "ttl_ms", "was_asked_for", "watched_over", "zxid",
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
        self.is_granted = False
        self.watched_over = 0
        """The number of the connection over which the deletion of its node would be told."""
        self.is_gone = False
        """Whether that was told."""
        self.over: str | None = None
        """Why it has ended; its node is still to be removed."""
        self.ear: Ear | None = None

    def on_event(self, event: Any) -> None:
        """Hear what ZooKeeper tells of its own node, or of its predecessor's; called in the client's thread."""
        if event.type == EventType.DELETED and event.path == self.path:
            self.is_gone = True
        self.wake()

    def wake(self) -> None:
        """Have its waiter look, if it sleeps."""
        ear = self.ear
        if ear is not None:
            ear.wake()


class EndedClaims:
    """The claims of this process that are over, and why."""

    def __init__(self) -> None:
        self._reasons: dict[str, tuple[int, str]] = {}
        self._refuse_born_until_us = 0

    def remember(self, claim: str, now_us: int, reason: str) -> None:
        """Refuse this claim from now on."""
        self._reasons.setdefault(claim, (now_us, reason))
        while len(self._reasons) > MAX_ENDED:
            oldest = next(iter(self._reasons))
            ended_us, _ = self._reasons.pop(oldest)
            self._refuse_born_until_us = max(self._refuse_born_until_us, ended_us)

    def is_over(self, claim: str, born_us: int) -> bool:
        """Tell whether the claim has ended, or is so old that it may have."""
        return claim in self._reasons or born_us <= self._refuse_born_until_us

    def reason(self, claim: str) -> str:
        """Return why a claim is over, as far as it is remembered."""
        _, reason = self._reasons.get(claim, (0, "it ended some time ago"))
        return reason
