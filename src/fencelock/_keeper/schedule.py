"""Decide which leases are due for renewal, and when to check next. Pure: the time is a parameter.

Promise: every lease is due a third of its ttl after its last confirmation; a new lease is due after half of its time
left, if that is sooner. Leases of one source that are due at about the same time are due together, so that one request
renews them (H2). While a renewal is in doubt the group is due again after a quarter of its interval, and the next check
is no later than its earliest deadline; one source in doubt is asked at a time.
"""

from collections.abc import Iterator

from fencelock._drivers.sync import SyncDriver
from fencelock._keeper.record import HELD, LeaseRecord

BEATS_PER_TTL = 3
SLACK_FRACTION = 5
DOUBT_FRACTION = 4
Batch = tuple[SyncDriver, list[LeaseRecord]]


def first_beat_ms(record: LeaseRecord, now_ms: int) -> int:
    """Return when a new lease is due: sooner than after a beat if the grant took long and little time is left."""
    left_ms = max(0, record.deadline_ms - now_ms)
    return now_ms + min(record.ttl_ms // BEATS_PER_TTL, left_ms // 2)


class Group:
    """The leases of one source with one ttl: they share a beat."""

    __slots__ = ("in_doubt", "interval_ms", "next_ms", "records")

    def __init__(self, ttl_ms: int, next_ms: int) -> None:
        self.interval_ms = max(1, ttl_ms // BEATS_PER_TTL)
        self.next_ms = next_ms
        self.in_doubt = False
        self.records: dict[str, LeaseRecord] = {}


class Schedule:
    """All leases of the process, by source and ttl. Used by the keeper's thread alone."""

    def __init__(self) -> None:
        self._groups: dict[tuple[SyncDriver, int], Group] = {}

    def __iter__(self) -> Iterator[LeaseRecord]:
        for group in self._groups.values():
            yield from group.records.values()

    def add(self, record: LeaseRecord, now_ms: int) -> None:
        """Add a new lease; it joins the beat of its group, which comes earlier if the lease needs it."""
        key = (record.driver, record.ttl_ms)
        due_ms = first_beat_ms(record, now_ms)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(record.ttl_ms, due_ms)
        group.records[record.claim] = record
        group.next_ms = min(group.next_ms, due_ms)

    def remove(self, record: LeaseRecord) -> None:
        """Forget a lease that ended."""
        key = (record.driver, record.ttl_ms)
        group = self._groups.get(key)
        if group is not None:
            group.records.pop(record.claim, None)
            if not group.records:
                del self._groups[key]

    def drop_ended(self) -> None:
        """Forget the leases that their holders released meanwhile."""
        for group in list(self._groups.values()):
            for record in [record for record in group.records.values() if record.state != HELD]:
                self.remove(record)

    def is_due(self, now_ms: int) -> bool:
        """Return whether a lease is due now."""
        return any(group.next_ms <= now_ms for group in self._groups.values())

    def take_due(self, now_ms: int) -> list[Batch]:
        """Return the leases to renew now, one batch for each source, and set their next beat.

        Of the sources in doubt only the one that has waited longest is included, as the last one: each may cost the
        keeper its whole request timeout, and the leases of other sources must not wait for all of them.
        """
        doubted = {driver for (driver, _), group in self._groups.items() if group.in_doubt}
        due: dict[SyncDriver, int] = {}
        for (driver, _), group in self._groups.items():
            if group.next_ms <= now_ms:
                due[driver] = min(group.next_ms, due.get(driver, now_ms))
        answering = [driver for driver in due if driver not in doubted]
        silent = sorted(due.keys() & doubted, key=due.__getitem__)
        batches: dict[SyncDriver, list[LeaseRecord]] = {driver: [] for driver in [*answering, *silent[:1]]}
        for (driver, _), group in self._groups.items():
            # Groups of these sources that are nearly due come along: one request renews them together (H2).
            if driver in batches and group.next_ms <= now_ms + group.interval_ms // SLACK_FRACTION:
                batches[driver].extend(group.records.values())
                group.next_ms = now_ms + group.interval_ms
                group.in_doubt = False
        return list(batches.items())

    def doubt(self, records: list[LeaseRecord], now_ms: int) -> None:
        """Plan an early retry for leases whose source did not answer."""
        for key in {(record.driver, record.ttl_ms) for record in records}:
            group = self._groups.get(key)
            if group is not None:
                group.in_doubt = True
                group.next_ms = now_ms + group.interval_ms // DOUBT_FRACTION

    def overdue(self, now_ms: int) -> list[LeaseRecord]:
        """Return the leases whose deadline has passed, of the groups where that is possible."""
        suspects = [group for group in self._groups.values() if group.in_doubt or group.next_ms <= now_ms]
        return [record for group in suspects for record in group.records.values() if record.deadline_ms <= now_ms]

    def next_ms(self) -> int | None:
        """Return when to check next; None without leases."""
        moments = [group.next_ms for group in self._groups.values()]
        for group in self._groups.values():
            if group.in_doubt:
                moments.append(min(record.deadline_ms for record in group.records.values()))
        return min(moments, default=None)
