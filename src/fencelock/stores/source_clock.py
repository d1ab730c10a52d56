"""What one process knows of its source: its identity, the highest token seen, and the offset of its clock.

Promise: a source that is older than this process has seen it, or was replaced by another one, is refused; what happened
before the process looked, nobody here can know. Each time on this process's clock, which counts suspend, maps to one
fixed time on the source's clock; the mapping preserves order, and never gives a time that the source has not reached,
unless the source's clock is set back. The database ensures that no claim ends before it was drawn, whatever the clocks
do. So a claim drawn after all forgotten ones is certainly fresh (H4).
"""

import time
from typing import NamedTuple

from fencelock.clock import boottime_us
from fencelock.errors import SourceError
from fencelock.model import EPOCH_STRIDE, MAX_TOKEN, TOKENS_PER_S, YEAR_2026_S

_REMEDY = "stop everything that uses it, then run `fencelock epoch --raise --reason …`"
MIN_GAIN_US = 100
"""A new estimate of the source's clock is adopted if it is better by at least this much."""
MAX_STEPS = 64
"""Estimates that are kept; a claim older than all of them counts as drawn at the time of the oldest."""


def start_of_new_history(highest_token: int) -> int:
    """Return where the tokens of a new history begin: at a multiple of 2**40 above the highest known token.

    It is also above a bound derived from the clock, because a backup from before an earlier raise does not know of that
    raise.
    """
    by_clock = (int(time.time()) - YEAR_2026_S) * TOKENS_PER_S
    beginning = (max(highest_token, by_clock) // EPOCH_STRIDE + 1) * EPOCH_STRIDE
    if beginning >= MAX_TOKEN:
        raise SourceError(f"no token is left above {highest_token}: make a new source")
    return beginning


class SourceState(NamedTuple):
    """The newest state of the source that this process has seen."""

    source_id: str
    epoch: int
    history_id: str


class SourceClock:
    """A lower bound of the source's clock: the best of the estimates from its answers.

    It uses no lock, because a forked child could inherit it locked.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[int, int]] = []

    def learn(self, source_us: int, heard_us: int) -> None:
        """Learn from an answer with the source's time, which arrived at `heard_us` on this process's clock."""
        offset_us = source_us - heard_us
        if not self._steps or offset_us >= self._steps[-1][1] + MIN_GAIN_US:
            # Valid from now on only: claims drawn earlier keep the estimate of their time.
            self._steps.append((boottime_us(), offset_us))
            del self._steps[:-MAX_STEPS]

    def at(self, now_us: int) -> int:
        """Return the source's time for a time of this process, by the estimate that was valid then."""
        steps = self._steps
        if not steps:
            return 0
        # The best estimate, not the last: of two threads that learn at once, the later may have the worse one.
        best_us = None
        for since_us, offset_us in steps:
            if since_us <= now_us and (best_us is None or offset_us > best_us):
                best_us = offset_us
        return now_us + (steps[0][1] if best_us is None else best_us)


class SourceIdentity:
    """The shared knowledge of all connections of one source object. Safe to use from any thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.clock = SourceClock()
        self.highest_token = 0
        self.seen: SourceState | None = None

    def check(self, now: SourceState, before: SourceState | None) -> None:
        """Raise SourceError if this is another source than `before`, or an older state of it; remember it.

        `before` is the state that was known when the request was sent: answers may arrive out of order, so a newer
        state may be known by now.
        """
        if before is not None and now != before:
            self._check_forward(before, now)
        latest = self.seen
        if latest is None or now.epoch > latest.epoch:
            self.seen = now
        elif now.epoch == latest.epoch and now != latest:
            self._check_forward(latest, now)

    def _check_forward(self, seen: SourceState, now: SourceState) -> None:
        if now.source_id != seen.source_id:
            raise SourceError(
                f"{self._url} was source {seen.source_id} and is source {now.source_id} now: its schema was replaced. "
                f"Put the first one back, or start this process again and run `fencelock rebind` for each resource"
            )
        if now.epoch <= seen.epoch:
            raise SourceError(
                f"{self._url} went back from epoch {seen.epoch} (history {seen.history_id}) to {now.epoch} (history "
                f"{now.history_id}): an older state was restored, or this is another server that was promoted. No lock "
                f"is granted: {_REMEDY}"
            )

    def note_token(self, token: int) -> None:
        """Remember a token that the source can have issued by now, to whomever."""
        self.highest_token = max(self.highest_token, token)

    def check_token(self, token: int, highest_before: int) -> None:
        """Raise SourceError unless a token is above all tokens seen before its request; remember it."""
        if token <= highest_before:
            raise SourceError(
                f"{self._url} issued token {token} after {highest_before}: an older state was restored over it, and "
                f"tokens would be issued twice. No lock is granted: {_REMEDY}"
            )
        self.highest_token = max(self.highest_token, token)
