"""What a process remembers of its own claims where no other process ever asks for them: who waits, and which are over.

Promise: a claim that ended in this process is never granted again (H4): only the process that drew a claim asks for it,
so what the process remembers is all that there is to know. A claim older than all that is remembered counts as ended.
"""

import os
import threading
from contextlib import suppress

MAX_ENDED = 10_000
"""Ended claims that are remembered one by one."""


class EventWakeup:
    """The channel of one waiting claim."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # The number of a descriptor that was just closed may be somebody else's already.
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


class EndedClaims:
    """The claims of this process that are over, and why."""

    def __init__(self) -> None:
        self._reasons: dict[str, tuple[int, str]] = {}
        self._refuse_born_until_us = 0
        self._mutex = threading.RLock()

    def remember(self, claim: str, now_us: int, reason: str) -> None:
        """Refuse this claim from now on."""
        with self._mutex:
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
        _, reason = self._reasons.get(claim, (0, "it ended some time ago, or is not this process's"))
        return reason
