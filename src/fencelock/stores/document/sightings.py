"""For how long this process has seen the leases and places in the documents unchanged, on its own clock (H1).

A store of documents reads no clock inside a condition. So a lease is over for an observer when its document has not
changed for the lease's ttl since the observer first saw it: the holder's last write was sent before that. A newcomer
would wait for a whole ttl even after a holder that died long ago; so where the store tells its own time (the `Date` of
its replies), the holder dates each write, and a lease is over too when that date is older than the ttl by a margin.

Promise: what this process writes itself counts from before the decision was read, which is where its holder's deadline
counts from. A lease is never over here before its holder's own deadline, if clocks run at the same rate, and the dates
of the store are no further apart than the margin. Safe to use from any thread.
"""

import threading
from typing import NamedTuple

from fencelock.stores.document.layout import Entry

DATE_MARGIN_MS = 2000
"""Dates are whole seconds, rounded down: one second for the holder's, and one for machines of the store that differ."""
MAX_CLAIMS = 50_000
"""Claims that are remembered; one that is forgotten counts as seen for the first time."""
MAX_BEATS = 4
"""Beats of one claim that are remembered: the one in the document, and some that may be on their way."""


class Sighting(NamedTuple):
    """Since when a beat is known. `is_own`: this process has sent it, and counts from before it decided to."""

    since_ms: int
    is_own: bool


class Sightings:
    """When this process first saw each beat of each claim, or sent it."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[str, Sighting]] = {}
        self._mutex = threading.RLock()

    def see(self, entries: tuple[Entry, ...], now_ms: int) -> None:
        """Remember that these entries were read."""
        with self._mutex:
            for entry in entries:
                beats = self._claims.pop(entry.digest, {})
                self._remember(entry, beats, beats.pop(entry.beat, Sighting(now_ms, is_own=False)))
            while len(self._claims) > MAX_CLAIMS:
                del self._claims[next(iter(self._claims))]

    def send(self, entry: Entry, since_ms: int) -> None:
        """Remember that this process is about to write an entry on which it has decided since then."""
        with self._mutex:
            self._remember(entry, self._claims.pop(entry.digest, {}), Sighting(since_ms, is_own=True))

    def _remember(self, entry: Entry, beats: dict[str, Sighting], sighting: Sighting) -> None:
        # What was not seen for longest is first, and is forgotten first.
        beats[entry.beat] = sighting
        if len(beats) > MAX_BEATS:
            del beats[next(iter(beats))]
        self._claims[entry.digest] = beats

    def _of(self, entry: Entry, now_ms: int) -> Sighting:
        with self._mutex:  # Another thread may be putting the claim last.
            return self._claims.get(entry.digest, {}).get(entry.beat, Sighting(now_ms, is_own=False))

    def is_own(self, entry: Entry) -> bool:
        """Return whether this process has sent the write that made or extended the entry last."""
        return self._of(entry, 0).is_own

    def at_most_ms(self, entry: Entry, now_ms: int, date_ms: int | None) -> int:
        """Return the most time that its holder may count on; 0: it is over."""
        sighting = self._of(entry, now_ms)
        left_ms = sighting.since_ms + entry.ttl_ms - now_ms
        # Of its own writes this process knows the time: a date that jumps must not end a lease that nobody took over.
        if not sighting.is_own and date_ms is not None and entry.dated_ms is not None:
            left_ms = min(left_ms, entry.dated_ms + entry.ttl_ms + DATE_MARGIN_MS - date_ms)
        return max(0, min(left_ms, entry.ttl_ms))

    def at_least_ms(self, entry: Entry, now_ms: int, date_ms: int | None) -> int:
        """Return the time that its holder may count on for certain, as far as dates tell; 0: it may be over."""
        left_ms = self.at_most_ms(entry, now_ms, date_ms)
        if self.is_own(entry):
            return left_ms
        if date_ms is None or entry.dated_ms is None:
            return 0  # It may have been extended long before it was first seen here.
        return max(0, min(left_ms, entry.dated_ms + entry.ttl_ms - DATE_MARGIN_MS - date_ms))
