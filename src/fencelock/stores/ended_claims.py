"""The claims of this process that have ended, by their digests, for stores that keep no record of ended claims.

Promise: a claim that ended in this process is never granted again (H4). Only the process that drew a claim asks for
it, so this process's memory is complete. A claim that was drawn before a forgotten one
ended counts as ended.
"""

import threading

MAX_ENDED = 10_000
"""Ended claims that are remembered one by one."""


class EndedClaims:
    """The ended claims of this process, each with the reason."""

    def __init__(self) -> None:
        self._reasons: dict[str, tuple[int, str]] = {}
        self._refuse_born_until_us = 0
        self._mutex = threading.RLock()

    def remember(self, digest: str, now_us: int, reason: str) -> None:
        """Refuse this claim from now on."""
        with self._mutex:
            self._reasons.setdefault(digest, (now_us, reason))
            while len(self._reasons) > MAX_ENDED:
                oldest = next(iter(self._reasons))
                ended_us, _ = self._reasons.pop(oldest)
                self._refuse_born_until_us = max(self._refuse_born_until_us, ended_us)

    def is_over(self, digest: str, born_us: int) -> bool:
        """Return whether the claim has ended, or is so old that it may have."""
        return digest in self._reasons or born_us <= self._refuse_born_until_us

    def reason(self, digest: str) -> str:
        """Return why a claim ended, as far as it is remembered."""
        _, reason = self._reasons.get(digest, (0, "it ended some time ago, or is not this process's"))
        return reason
