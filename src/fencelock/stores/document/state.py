"""What the connections of one source object share: the claims that it has asked for, and what it has seen.

Promise: a claim that ended in this process, or was written once and is gone from its lock's document, is never granted
again (H4). A write whose reply was lost is told apart from one that never arrived by the version that it was to
replace. A source that went back is refused (T7). A forked child forgets its parent's claims and sightings, and makes
new locks, since a thread of the parent may have held the old ones.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from fencelock._platform import renew_after_fork
from fencelock.errors import SourceError
from fencelock.model import MAX_TOKEN
from fencelock.stores.document.layout import SourceDocument
from fencelock.stores.document.sightings import Sightings
from fencelock.stores.ended_claims import EndedClaims
from fencelock.stores.source_clock import SourceIdentity

LOCATION_CHECK_MS = 60_000
"""How often a process asks the store whether the source is still in the location where it was installed."""
FIRST_WAIT_MS = 20
"""The first sleep of a waiter between two polls; each is twice as long as the one before, up to the store's limit."""
_US_PER_MS = 1000


@dataclass(slots=True)
class OwnClaim:
    """A claim that this process has written, or is about to write, into its lock's document.

    `doubt`: the version that a write was to replace whose outcome is not known yet.
    """

    born_us: int
    is_written: bool = False
    doubt: str | None = None
    is_head: bool = False
    wait_ms: int = FIRST_WAIT_MS

    def has_ended(self, version: str | None) -> bool:
        """Return whether the claim has ended, if the document with this version does not name it.

        A write in doubt that was to replace this version has not arrived; one that was to replace another did, or
        never will.
        """
        return self.is_written or self.doubt not in (None, version)


class DocumentState:
    """The memory of one source object. Safe to use from any thread."""

    def __init__(self, url: str, now_us: Callable[[], int], longest_wait_ms: int) -> None:
        self.url = url
        self.now_us = now_us
        self.longest_wait_ms = longest_wait_ms
        self.random = random.random
        self.identity = SourceIdentity(url)
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """Forget the claims and sightings of the parent, and the locks that its threads may have held."""
        self.sightings = Sightings()
        self.ended = EndedClaims()
        self.own: dict[str, OwnClaim] = {}
        self.location_due_ms: int | None = None

    def now_ms(self) -> int:
        """Return this process's time, rounded down."""
        return self.now_us() // _US_PER_MS

    def end(self, digest: str, reason: str) -> None:
        """Refuse a claim from now on, if this process has asked for it."""
        if self.own.pop(digest, None) is not None:
            self.ended.remember(digest, self.now_us(), reason)

    def check_token(self, source: SourceDocument, count: int, highest_before: int) -> int:
        """Return the token for this number of the history's counter; SourceError if it is not a new one."""
        token = source.start + count
        if token >= source.next_start or token > MAX_TOKEN:
            raise SourceError(
                f"{self.url}: no token is left in epoch {source.epoch}: run `fencelock epoch --raise --reason …`"
            )
        self.identity.check_token(token, highest_before)
        return token

    def check_location(self, source: SourceDocument, location: str | None) -> None:
        """Raise SourceError if the documents are in another location than the source: in a copy."""
        if None not in (source.location, location) and source.location != location:
            raise SourceError(
                f"{self.url} holds a copy of a source: it was installed in {source.location}, and this is {location}. "
                f"A restored copy would issue tokens twice. No lock is granted: stop everything that uses either, then "
                f"run `fencelock epoch --raise --reason …`"
            )
        self.location_due_ms = self.now_ms() + LOCATION_CHECK_MS
