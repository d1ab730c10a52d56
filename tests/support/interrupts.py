"""A signal handler's exception at any await."""

import sys
from typing import Any

from fencelock.testing.conformance.interrupts import INTERRUPTS, CancelledAt


class InterruptedAt(CancelledAt):
    """Runs an awaitable, and raises what a signal handler may raise as it goes on after the wait with this number."""

    def send(self, value: Any) -> Any:
        """Go on until the next wait."""
        if self._left >= 0:
            return super().send(value)
        self.has_come, self._left = True, sys.maxsize
        return self.throw(INTERRUPTS[0]())

    def _count(self, waited_for: Any) -> Any:
        self._left -= 1
        return waited_for
