"""Threads that wait for a lock while something goes on around the source."""

import threading

import fencelock
from tests.support.helpers import wait_until
from tests.support.waiting import is_asleep_in_queue

TTL = 600.0
"""A lock that is free before that was released, and has not expired."""


class Waiter(threading.Thread):
    """A thread that waits for a lock through any outage of the source, and releases the lock at once."""

    def __init__(self, source: fencelock.Source, name: str = "waiter") -> None:
        super().__init__(daemon=True)
        self._lock = source.lock("lock", ttl=TTL, holder=name)
        self.token: int | None = None
        self.start()

    def run(self) -> None:
        with self._lock as lease:
            self.token = lease.token

    def is_asleep(self) -> bool:
        """Return whether it sleeps in the queue: from then on it goes on waiting, whatever happens to the source."""
        return is_asleep_in_queue(self)


def renewed(lease: fencelock.Lease) -> None:
    """Wait until a lease has been renewed once more."""
    before = lease.deadline_ms
    wait_until(lambda: lease.deadline_ms > before)
