"""How much happened, in all and at each lock, and whether that is enough to prove anything.

Promise: what is counted is what was done and told, not what was planned. A freeze counts if it lasted past the ttl and
hit a process that held a lock: only that process can wake up stale.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise

from fencelock_lab.campaigns.check_losses import losses_of
from fencelock_lab.campaigns.history import (
    ACQUIRE,
    DISTURBANCES,
    FAIL,
    FREEZE,
    JUMP,
    KILL,
    NS_PER_S,
    OK,
    QUIET,
    READ,
    RELEASE,
    SERVER_FAULTS,
    STRAY,
    THAW,
    WRITE,
    History,
    Operation,
)

USUAL_LEAST = {"handoffs": 20, "freezes": 5, "refusals": 3}
"""What must have happened, by the names of amounts, for a history to prove something."""
LEAST_PER_LOCK = 3
"""How many hand-offs each lock must have had before the faults ended: one that nobody got proves nothing."""


@dataclass(slots=True)
class Amounts:
    """How much happened: `freezes` of a holder past the ttl, `disturbances` of a network, `refusals` as stale.

    `strays` presented no token, and were refused. `jumps` are of clocks, `server_faults` hit the run's own servers.
    `losses` were told to processes that went on, the slowest in `slowest_loss` seconds.
    """

    events: int = 0
    grants: int = 0
    handoffs: int = 0
    reads: int = 0
    writes: int = 0
    refusals: int = 0
    strays: int = 0
    unknown: int = 0
    freezes: int = 0
    kills: int = 0
    disturbances: int = 0
    jumps: int = 0
    server_faults: int = 0
    losses: int = 0
    slowest_loss: float = 0.0
    duration: float = 0.0

    def shortfalls(self, minimums: Mapping[str, int]) -> list[str]:
        """Return what was too little for a verdict, each with its minimum."""
        have = asdict(self)
        return [
            f"{have[what]} {what}, and {least} are the least" for what, least in minimums.items() if have[what] < least
        ]


@dataclass(slots=True)
class LockAmounts:
    """What happened to one lock until the faults had ended.

    `longest_gap` is the longest time in seconds without a grant while somebody asked for the lock.
    """

    grants: int = 0
    handoffs: int = 0
    longest_gap: float = 0.0


def amounts_of(history: History) -> Amounts:
    """Count what happened."""
    amounts = Amounts(events=history.lines)
    first = history.operations[0].invoked_ns if history.operations else history.end_ns
    amounts.duration = (history.end_ns - first) / NS_PER_S
    for one in history.operations:
        amounts.grants += one.kind == ACQUIRE and one.outcome == OK
        amounts.reads += one.kind == READ and one.outcome == OK
        amounts.writes += one.kind == WRITE and one.outcome == OK
        amounts.refusals += one.outcome == FAIL and one.error == "StaleTokenError"
        amounts.strays += one.kind == STRAY and one.outcome == FAIL
        amounts.unknown += one.ended_ns == float("inf")
    for operations in history.by_place(ACQUIRE).values():
        granted = sorted((one for one in operations if one.outcome == OK), key=lambda one: one.token or 0)
        amounts.handoffs += sum(a.process != b.process for a, b in pairwise(granted))
    amounts.kills = sum(event.kind == KILL for event in history.events)
    amounts.disturbances = sum(event.kind in DISTURBANCES for event in history.events)
    amounts.jumps = sum(event.kind == JUMP for event in history.events)
    amounts.server_faults = sum(event.kind in SERVER_FAULTS for event in history.events)
    amounts.freezes = _freezes(history)
    delays_ns = [max(0, one.told_ns - one.due_ns) for one in losses_of(history) if one.told_ns is not None]
    amounts.losses = len(delays_ns)
    amounts.slowest_loss = max(delays_ns, default=0) / NS_PER_S
    return amounts


def amounts_of_locks(history: History) -> dict[str, LockAmounts]:
    """Count what happened to each lock until the faults had ended."""
    quiet_ns = next((event.time_ns for event in history.events if event.kind == QUIET), history.end_ns)
    killed_ns = {event.victim: event.time_ns for event in history.events if event.kind == KILL}
    asked = history.by_place(ACQUIRE)
    found = {}
    for lock in dict.fromkeys((*history.locks, *asked)):
        operations = [one for one in asked.get(lock, ()) if one.invoked_ns <= quiet_ns]
        granted = [one for one in operations if one.outcome == OK and one.ended_ns <= quiet_ns]
        by_token = sorted(granted, key=lambda one: one.token or 0)
        handoffs = sum(a.process != b.process for a, b in pairwise(by_token))
        intervals = [(one.invoked_ns, min(_asked_until(one, history, killed_ns), quiet_ns)) for one in operations]
        gap_ns = _longest_gap(intervals, [int(one.ended_ns) for one in granted])
        found[lock] = LockAmounts(len(granted), handoffs, gap_ns / NS_PER_S)
    return found


def _asked_until(one: Operation, history: History, killed_ns: Mapping[str | None, int]) -> int:
    """Return until when the process asked for the lock; one that was not granted it asks again soon."""
    if one.completed_ns is None:
        return killed_ns.get(one.process, history.end_ns)
    return one.completed_ns if one.outcome == OK else one.completed_ns + history.ttl_ns


def _longest_gap(asked: list[tuple[int, int]], granted: list[int]) -> int:
    """Return the longest time in which somebody asked and nobody was granted the lock."""
    moments = sorted(
        [(begin, 0) for begin, _ in asked] + [(at, 1) for at in granted] + [(end, 2) for _, end in asked],
    )
    longest, asking, since = 0, 0, 0
    for at, what in moments:
        if what == 0 and asking == 0:
            since = at
        if asking and (what == 1 or (what == 2 and asking == 1)):  # noqa: PLR2004 - the order above
            longest = max(longest, at - since)
        since = at if what == 1 else since
        asking += (1, 0, -1)[what]
    return longest


def shortfalls_of_locks(history: History, locks: Mapping[str, LockAmounts], least: int) -> list[str]:
    """Return what was too little at each lock: hand-offs, or grants for as long as its processes are patient."""
    patience = next((event.facts["patience"] for event in history.events if event.kind == QUIET), float("inf"))
    found = [
        f"{one.handoffs} handoffs of lock {lock}, and {least} are the least"
        for lock, one in locks.items()
        if one.handoffs < least
    ]
    return found + [
        f"lock {lock} was asked for and not granted for {one.longest_gap:.1f} s, and {patience:.1f} s are the most"
        for lock, one in locks.items()
        if one.longest_gap > patience
    ]


def missing_faults(history: History) -> list[str]:
    """Return which faults of servers were to come, and did not: a run without them says nothing about them."""
    asked = [kind for kind in history.settings.get("faults", ()) if kind in SERVER_FAULTS]
    happened = {event.kind for event in history.events}
    return [f"no {kind}, which was to come" for kind in asked if kind not in happened]


def _freezes(history: History) -> int:
    """Count the freezes past the ttl of processes that held a lock."""
    held = _tenures(history)
    since: dict[str, int] = {}
    count = 0
    for event in history.events:
        victim = event.victim or ""
        if event.kind == FREEZE:
            since[victim] = event.time_ns
        elif event.kind == THAW and victim in since:
            began = since.pop(victim)
            was_held = any(start <= began <= end for start, end in held.get(victim, ()))
            count += was_held and event.time_ns - began >= history.ttl_ns
    return count


def _tenures(history: History) -> dict[str, list[tuple[float, float]]]:
    """Return for each process from when to when it held a lock, as far as it knew."""
    since: dict[tuple[str, str], float] = {}
    found: dict[str, list[tuple[float, float]]] = {}
    for one in history.operations:
        key = (one.process, one.place)
        if one.kind == ACQUIRE and one.outcome == OK:
            since[key] = one.ended_ns
        elif one.kind == RELEASE and key in since:
            found.setdefault(one.process, []).append((since.pop(key), one.ended_ns))
    for (process, _), began in since.items():
        found.setdefault(process, []).append((began, float("inf")))
    return found
