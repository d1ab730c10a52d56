"""Whether enough happened to prove anything, and everything went on once the faults had ended.

Promise: what is counted is what was done and told, not what was planned. A freeze counts if it lasted past the ttl and
hit a process that held a lock: only that process can wake up stale.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise, zip_longest

from fencelock_lab.campaigns.findings import Findings
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
    REST,
    SERVER_BACK,
    SERVER_FAULTS,
    STRAY,
    THAW,
    WRITE,
    History,
    HistoryEvent,
    Operation,
)

USUAL_LEAST = {"handoffs": 20, "freezes": 5, "refusals": 3}
"""What must have happened, by the names of amounts, for a history to prove something."""


@dataclass(slots=True)
class Amounts:
    """How much happened: `freezes` of a holder past the ttl, `disturbances` of a network, `refusals` as stale.

    `strays` presented no token, and were refused. `jumps` are of clocks, `server_faults` hit the run's own servers.
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
    duration: float = 0.0

    def shortfalls(self, minimums: Mapping[str, int]) -> list[str]:
        """Return what was too little for a verdict, each with its minimum."""
        have = asdict(self)
        return [
            f"{have[what]} {what}, and {least} are the least" for what, least in minimums.items() if have[what] < least
        ]


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
    return amounts


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


def check_progress(history: History, findings: Findings) -> None:
    """Each lock is granted and each resource written again, soon after the faults have ended."""
    quiet = next((event for event in history.events if event.kind == QUIET), None)
    for kind, places in ((ACQUIRE, history.locks), (WRITE, history.resources)):
        asked = history.by_place(kind)
        for place in dict.fromkeys((*places, *asked)):
            operations = asked.get(place, [])
            for begin, end_ns in _pauses(history):
                _check_within(kind, place, operations, begin, end_ns, findings)
            if quiet is None:
                findings.doubt("no-progress", place, "the history does not tell when the faults had ended")
            else:
                _check_again(kind, place, operations, quiet, history.end_ns, findings)


def _pauses(history: History) -> Iterator[tuple[HistoryEvent, int]]:
    """Yield each moment at which servers were back that had a patience, and when the next fault of servers came."""
    of_servers = [one for one in history.events if one.kind in {*SERVER_FAULTS, SERVER_BACK}]
    for event, following in zip_longest(of_servers, of_servers[1:]):
        if event.kind == SERVER_BACK and "patience" in event.facts:
            yield event, history.end_ns if following is None else following.time_ns


def _check_within(
    kind: str, place: str, operations: list[Operation], begin: HistoryEvent, end_ns: int, findings: Findings
) -> None:
    """Blame a place that stood still for its whole patience after servers were back; less says nothing."""
    until_ns = begin.time_ns + int(begin.facts["patience"] * NS_PER_S)
    has_gone_on = any(one.outcome == OK and begin.time_ns < one.ended_ns <= until_ns for one in operations)
    if until_ns <= end_ns and not has_gone_on:
        servers = ", ".join(begin.facts["servers"])
        message = f"{begin.facts['patience']:.1f} s after {servers} were back there was no {kind} yet"
        findings.blame("no-progress", place, message, *operations[-1:])


def _check_again(
    kind: str, place: str, operations: list[Operation], quiet: HistoryEvent, end_ns: int, findings: Findings
) -> None:
    patience_ns = int(quiet.facts["patience"] * NS_PER_S)
    ends = [one.ended_ns for one in operations if one.outcome == OK and one.ended_ns > quiet.time_ns]
    waited_ns = min(ends, default=end_ns) - quiet.time_ns
    if waited_ns > patience_ns:
        message = f"{waited_ns / NS_PER_S:.1f} s after the faults had ended there was no {kind} yet"
        findings.blame("no-progress", place, message, *operations[-1:])
    elif not ends:
        findings.doubt("no-progress", place, f"the history ends before a {kind} after the last fault")


def check_rest(history: History, findings: Findings) -> None:
    """No lock has a holder or a waiter left when all processes have ended."""
    for event in history.events:
        if event.kind == REST and event.facts["left"]:
            message = f"{event.facts['left']} still hold the lock or wait for it, and all processes have ended"
            findings.blame("left-in-queue", event.facts["lock"], message)
