"""Another thread's renewals over the connections that a test interrupts: whatever was left taken there ends them."""

import threading
from collections.abc import Callable
from itertools import count

from fencelock._api.lease import BaseLease
from fencelock._drivers.sync import SyncDriver
from fencelock._flows import renewal
from fencelock.testing.conformance.interrupts import INTERRUPTS, interrupted_at
from tests.support.helpers import DEADLINE_S, wait_until

BEATS = 2
"""The first of them may have begun before the interruption."""
Hold = Callable[[], None]


def wait_for_a_beat(lease: BaseLease) -> None:
    """Wait until the lease has been renewed once more."""
    before_ms = lease.deadline_ms
    wait_until(lambda: lease.deadline_ms > before_ms)


class Beats:
    """A thread that renews a lease as the keeper does, with one request directly after the other."""

    def __init__(self, driver: SyncDriver, lease: BaseLease) -> None:
        self._driver = driver
        self._lease = lease
        self._is_over = False
        self._count = 0
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        record = self._lease._record
        while not self._is_over:
            _, renewed = self._driver.run(renewal.renew(((record.lock, record.claim),)))
            assert list(renewed.remaining_ms) == [record.claim]
            self._count += 1

    def wait(self) -> None:
        """Wait until a beat has begun and ended."""
        enough = self._count + BEATS
        wait_until(lambda: self._count >= enough)

    def end(self) -> None:
        self._is_over = True
        self._thread.join(DEADLINE_S)
        assert self._lease.is_valid


def walk(hold: Hold, beats: Beats, stride: int, *files: str) -> None:
    """Interrupt `hold` at every place, or at every so many; after each, leases are renewed, and the lock can be had."""
    hold()
    for place in count(0, stride):
        kept: BaseException | None = None
        try:
            with interrupted_at(place, *files) as interruption:
                hold()
        except INTERRUPTS as error:
            kept = error  # As a program may: its traceback keeps what the interrupted functions had.
        beats.wait()
        del kept
        hold()
        if not interruption.has_come:
            assert place > 100
            return
