"""Whether a lock was granted in the order in which processes asked for it.

A process that asks enters the queue some time later, and one that cannot look for a ttl loses its place. So a wait is
judged only if nothing was done to its process meanwhile, another grant overtakes it only if it was asked for more than
a ttl and a slack later, and a few of them are no violation: a loaded machine holds processes up, too.

Promise: a history is judged only if its first line promises `fifo`. Nothing is blamed that a freeze, a kill, a network
or a server explains.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from fencelock_lab.campaigns.findings import Findings
from fencelock_lab.campaigns.history import (
    ACQUIRE,
    DISTURBANCES,
    FAIL,
    FREEZE,
    KILL,
    NS_PER_S,
    OK,
    SERVER_EVENTS,
    THAW,
    History,
    Operation,
)

ROUNDS = 3
"""A wait may be overtaken so many times by as many grants as there are processes at the lock."""
ORDER_SLACK_S = 2.0
"""How much longer than a ttl a process may take to enter the queue, or to find back to it after a fault."""


def check_order(history: History, findings: Findings) -> None:
    """No process waits while others, which asked later, are granted the lock again and again."""
    if not history.settings.get("fifo"):
        return
    slack_ns = history.ttl_ns + int(ORDER_SLACK_S * NS_PER_S)
    faults = _Faults(history, slack_ns)
    for lock, operations in history.by_place(ACQUIRE).items():
        granted = first_grants(operations)
        begun = [one.invoked_ns for one in granted]
        allowed = ROUNDS * len({os_process(one.process) for one in operations})
        for wait in (*granted, *(one for one in operations if one.outcome == FAIL)):
            behind = granted[bisect_right(begun, wait.invoked_ns + slack_ns) :]
            overtaking = list(_ended_before(wait, behind))
            if not overtaking or faults.has_hit(wait):
                continue
            findings.count("grants that overtook a process which had asked much earlier", len(overtaking))
            if len(overtaking) > allowed:
                message = (
                    f"process {wait.process} asked and waited while the lock was granted {len(overtaking)} times to "
                    f"processes that had asked more than {slack_ns / NS_PER_S:.1f} s later; {allowed} are the most"
                )
                findings.blame("overtaken", lock, message, wait, *overtaking[:1], *overtaking[-1:])
                break


def _ended_before(wait: Operation, behind: list[Operation]) -> Iterator[Operation]:
    """Yield the grants before the wait's own, by their tokens, since one may be told late; or before it gave up."""
    for one in behind:  # In the order of their beginnings.
        if one.invoked_ns >= wait.ended_ns:
            return
        if (one.token or 0) < wait.token if wait.token is not None else one.ended_ns < wait.ended_ns:
            yield one


def os_process(name: str) -> str:
    """Return the name of a process without that of its thread."""
    return name.partition("/")[0]


def first_grants(operations: Iterable[Operation]) -> list[Operation]:
    """Return the grants among the operations on one lock, without those of a holder that enters again."""
    found: dict[tuple[str, int | None], Operation] = {}
    for one in operations:
        if one.kind == ACQUIRE and one.outcome == OK:
            found.setdefault((one.process, one.token), one)
    return list(found.values())


class _Faults:
    """When something was done to a process, its network, or the servers."""

    def __init__(self, history: History, slack_ns: int) -> None:
        self._of_process: dict[str, list[tuple[int, int]]] = {}
        self._of_servers: list[tuple[int, int]] = []
        for event in history.events:
            lasts_ns = int(float(event.facts.get("seconds", 0.0)) * NS_PER_S) if event.kind in DISTURBANCES else 0
            # What was held up comes later: some time after the end of a fault all is as before.
            interval = (event.time_ns, event.time_ns + lasts_ns + slack_ns)
            if event.kind in {FREEZE, THAW, KILL, *DISTURBANCES}:
                self._of_process.setdefault(os_process(event.victim or ""), []).append(interval)
            elif event.kind in SERVER_EVENTS:
                self._of_servers.append(interval)

    def has_hit(self, one: Operation) -> bool:
        """Return whether the process, its network or a server was disturbed while the operation was under way."""
        intervals = (*self._of_process.get(os_process(one.process), ()), *self._of_servers)
        return any(begin <= one.ended_ns and one.invoked_ns <= end for begin, end in intervals)
