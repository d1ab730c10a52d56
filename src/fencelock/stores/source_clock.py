"""What one process knows of its source: whose it is, the highest token it saw, and how far its clock is from ours.

Promise: a source that went back, or became another one, is refused. A time on our clock, which counts suspend, is
always the same time on the source's, never one that the source has not reached when its clock is not set back; a later
time is never an earlier one there. The database makes sure that no claim ends before it was drawn, whatever the clocks
do: then "drawn after all that is forgotten" proves that a claim is a fresh one (H4).
"""

import time
from typing import NamedTuple

from fencelock.clock import boottime_us
from fencelock.errors import SourceError
from fencelock.model import EPOCH_STRIDE, MAX_TOKEN

_REMEDY = "stop everything that uses it, then run `fencelock epoch --raise --reason …`"
MIN_GAIN_US = 100
"""A better estimate of the source's clock is taken up if it is better by so much."""
MAX_STEPS = 64
"""Estimates that are kept: a claim older than all of them is taken for one drawn at the first."""


YEAR_2026_S = 1_767_225_600
TOKENS_PER_S = 2**30
"""A history that is begun by hand begins above so many tokens for each second since 2026."""


def next_beginning(highest_token: int) -> int:
    """Return where the tokens of a new history begin: at a multiple of 2**40, above the highest that is known, and
    above what the clock says: data from before an earlier raise know nothing of it, and the clock does.
    """
    by_clock = (int(time.time()) - YEAR_2026_S) * TOKENS_PER_S
    beginning = (max(highest_token, by_clock) // EPOCH_STRIDE + 1) * EPOCH_STRIDE
    if beginning >= MAX_TOKEN:
        raise SourceError(f"no token is left above {highest_token}: make a new source")
    return beginning


class Seen(NamedTuple):
    """The newest state of the source that this process knows of."""

    source_id: str
    epoch: int
    history_id: str


class SourceClock:
    """The source's clock as far as it is known here: a lower bound, by the best of all that the source has said.

    There is no lock: a forked child would find it taken.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[int, int]] = []

    def learn(self, source_us: int, heard_us: int) -> None:
        """Take up what the source said its clock was, in an answer that was heard at `heard_us` on ours."""
        offset_us = source_us - heard_us
        if not self._steps or offset_us >= self._steps[-1][1] + MIN_GAIN_US:
            # It holds from this moment on: claims drawn before go on by the estimate that held then.
            self._steps.append((boottime_us(), offset_us))
            del self._steps[:-MAX_STEPS]

    def at(self, now_us: int) -> int:
        """Return what the source's clock was at a time of ours, by the estimate that held then."""
        steps = self._steps
        if not steps:
            return 0
        # The best, and not the last: of two threads that learn at once, the one that knows less may be the later.
        best_us = None
        for since_us, offset_us in steps:
            if since_us <= now_us and (best_us is None or offset_us > best_us):
                best_us = offset_us
        return now_us + (steps[0][1] if best_us is None else best_us)


class SourceIdentity:
    """What all connections of one source object know together. Safe from any thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.clock = SourceClock()
        self.highest_token = 0
        self.seen: Seen | None = None

    def check(self, now: Seen, before: Seen | None) -> None:
        """Raise SourceError if this is another source than was seen before it was asked, or an older state of it;
        remember it. An answer may arrive after another one, of a newer state that it could not know of.
        """
        if before is not None and now != before:
            self._check_forward(before, now)
        latest = self.seen
        if latest is None or now.epoch > latest.epoch:
            self.seen = now
        elif now.epoch == latest.epoch and now != latest:
            self._check_forward(latest, now)

    def _check_forward(self, seen: Seen, now: Seen) -> None:
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

    def check_token(self, token: int, highest_before: int) -> None:
        """Raise SourceError if a token is not above all that were seen before it was asked for; remember it."""
        if token <= highest_before:
            raise SourceError(
                f"{self._url} issued token {token} after {highest_before}: an older state was restored over it, and "
                f"tokens would be issued twice. No lock is granted: {_REMEDY}"
            )
        self.highest_token = max(self.highest_token, token)
