"""Whether everything went on once the faults had ended, and nobody was left in a queue.

Promise: a place is blamed only if it stood still for the whole patience that the history states.
"""

from collections.abc import Iterator
from itertools import zip_longest

from fencelock_lab.campaigns.findings import Findings
from fencelock_lab.campaigns.history import (
    ACQUIRE,
    NS_PER_S,
    OK,
    QUIET,
    REST,
    SERVER_BACK,
    SERVER_FAULTS,
    WRITE,
    History,
    HistoryEvent,
    Operation,
)


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
