"""Whether each process whose lease was lost while it went on was told so in time.

What shows the loss is another one's grant: until then the lease may have been renewed. A process that is frozen is told
after it wakes up, and one that has begun to release its lock is told nothing.

Promise: a history is judged only if its first line says within how many seconds a loss is told.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from fencelock_lab.campaigns.check_order import first_grants, os_process
from fencelock_lab.campaigns.findings import Findings
from fencelock_lab.campaigns.history import (
    ACQUIRE,
    FREEZE,
    KILL,
    LOST,
    NS_PER_S,
    RELEASE,
    THAW,
    History,
    Operation,
)

LOSS_SLACK_S = 5.0
"""How much later than promised a loss may be told: a loaded machine holds up the callback, and what records it."""


class Loss(NamedTuple):
    """A lease of a process that went on until `end_ns`, from when its loss was due, and when it was told, if ever."""

    grant: Operation
    successor: Operation
    due_ns: int
    end_ns: int
    told_ns: int | None


def check_losses(history: History, findings: Findings) -> None:
    """Each process that goes on after its lock was granted to another one is told of it in time."""
    promised_s = history.settings.get("loss_within")
    if promised_s is None:
        return
    allowed_ns = int((float(promised_s) + LOSS_SLACK_S) * NS_PER_S)
    for loss in losses_of(history):
        late_ns = loss.due_ns + allowed_ns
        if loss.end_ns <= late_ns or (loss.told_ns is not None and loss.told_ns <= late_ns):
            continue
        told = "never" if loss.told_ns is None else f"{(loss.told_ns - loss.due_ns) / NS_PER_S:.1f} s later"
        message = (
            f"process {loss.grant.process} went on with token {loss.grant.token} after the lock was granted with "
            f"{loss.successor.token}, and was told of its loss {told}; {promised_s} s are promised, and "
            f"{LOSS_SLACK_S} s are the slack"
        )
        findings.blame("loss-untold", loss.grant.place, message, loss.grant, loss.successor)


def losses_of(history: History) -> Iterator[Loss]:
    """Yield the leases that were lost while their processes went on."""
    moments = Moments(history)
    for lock, operations in history.by_place(ACQUIRE, RELEASE).items():
        ends = _ends(operations)
        grants = sorted(first_grants(operations), key=lambda one: one.token or 0)
        for grant, successor in pairwise(grants):
            due_ns = int(max(grant.ended_ns, successor.ended_ns))
            end_ns = min(ends.get((grant.process, grant.token), history.end_ns), moments.killed_ns(grant.process))
            due_ns = moments.awake_ns(grant.process, due_ns, end_ns)
            if grant.process != successor.process and due_ns < end_ns:
                told_ns = moments.told_ns(grant.process, lock, grant.invoked_ns, end_ns)
                yield Loss(grant, successor, due_ns, end_ns, told_ns)


def _ends(operations: list[Operation]) -> dict[tuple[str, int | None], int]:
    """Return when the process of each lease began to release it, or asked for the lock anew."""
    holding: dict[str, int | None] = {}
    ends: dict[tuple[str, int | None], int] = {}
    for one in operations:
        token = holding.get(one.process)
        if token is not None and (one.kind == RELEASE or one.token != token):
            ends.setdefault((one.process, token), one.invoked_ns)
        if one.kind == ACQUIRE and one.token is not None:
            holding[one.process] = one.token
    return ends


class Moments:
    """When each process was frozen, woken, killed, and told of a loss."""

    def __init__(self, history: History) -> None:
        self._end_ns = history.end_ns
        self._stops: dict[str, list[tuple[int, str]]] = {}
        self._told: dict[tuple[str, str], list[int]] = {}
        for event in history.events:
            if event.victim is not None and event.kind in {FREEZE, THAW, KILL}:
                self._stops.setdefault(os_process(event.victim), []).append((event.time_ns, event.kind))
            elif event.victim is not None and event.kind == LOST:
                self._told.setdefault((event.victim, event.facts["lock"]), []).append(event.time_ns)

    def killed_ns(self, process: str) -> int:
        """Return when a process was killed; the history's end if it never was."""
        stops = self._stops.get(os_process(process), ())
        return next((at_ns for at_ns, kind in stops if kind == KILL), self._end_ns)

    def awake_ns(self, process: str, due_ns: int, end_ns: int) -> int:
        """Return since when a process runs without a break until `end_ns`, at the earliest `due_ns`."""
        stops = [(at_ns, kind) for at_ns, kind in self._stops.get(os_process(process), ()) if at_ns < end_ns]
        if stops and stops[-1][1] == FREEZE:
            return end_ns
        return max([due_ns, *(at_ns for at_ns, kind in stops if kind == THAW)])

    def told_ns(self, process: str, lock: str, begin_ns: int, end_ns: int) -> int | None:
        """Return when a process was told of a loss, between these times."""
        found = self._told.get((process, lock), ())
        return next((at_ns for at_ns in found if begin_ns <= at_ns <= end_ns), None)
