"""Which leases a server may have ended early: by a crash that lost them, by a restore, or as a frozen leader woke.

Promise: a lease loses only what the store's own reference allows, and only if it was granted before. Checkers then know
of such a lease only that it was held until the server was gone.
"""

from collections.abc import Iterator
from typing import NamedTuple

from fencelock_lab.campaigns.history import (
    ACQUIRE,
    NS_PER_S,
    OK,
    SERVER_BACK,
    SERVER_FREEZE,
    SERVER_KILL,
    SERVER_RESTORE,
    History,
)


class Ending(NamedTuple):
    """A moment at which leases may have ended early: those begun before `begun_ns`, of which something was told from
    `told_ns` until `unaware_ns`, may be over since `gone_ns`.
    """

    gone_ns: int
    begun_ns: int
    told_ns: int = 0
    unaware_ns: float = float("inf")


def shorten_leases(history: History) -> None:
    """Limit each lease that a server may have ended early to the moment at which it may have done so."""
    endings = list(_endings(history))
    if not endings:
        return
    begun: dict[tuple[str, int | None], int] = {}
    for one in history.operations:
        if one.kind == ACQUIRE and one.outcome == OK:
            begun.setdefault((one.process, one.token), one.invoked_ns)  # One that enters again has it already.
    for one in history.operations:
        for ending in endings:
            if one.until_ns is None or one.completed_ns is None:
                continue
            is_told = ending.told_ns <= one.completed_ns <= ending.unaware_ns
            if is_told and begun.get((one.process, one.token), one.invoked_ns) < ending.begun_ns:
                one.until_ns = min(one.until_ns, ending.gone_ns)


def _endings(history: History) -> Iterator[Ending]:
    """Yield the moments at which servers may have ended leases early."""
    for number, event in enumerate(history.events):
        if event.kind == SERVER_RESTORE:
            yield Ending(event.time_ns, event.time_ns)
        elif event.kind == SERVER_KILL and "forgets" in event.facts:
            # What was confirmed earlier outlives the crash.
            forgets_ns = int(float(event.facts["forgets"]) * NS_PER_S)
            yield Ending(event.time_ns, event.time_ns, told_ns=event.time_ns - forgets_ns)
        elif event.kind == SERVER_FREEZE and "overlap" in event.facts:
            # Leases that the other servers granted or renewed meanwhile may end as it wakes, too.
            backs = (one.time_ns for one in history.events[number:] if one.kind == SERVER_BACK)
            back_ns = next(backs, history.end_ns)
            overlap_ns = int(float(event.facts["overlap"]) * NS_PER_S)
            yield Ending(event.time_ns, back_ns, unaware_ns=back_ns + overlap_ns)
