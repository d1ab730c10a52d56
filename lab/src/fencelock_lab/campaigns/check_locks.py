"""Whether each lock kept its promises: fresh tokens, one holder at a time, its newest holder never turned away.

Promise: an overlap of two holders that an expired lease explains is information. So is a process that goes on believing
in its lease; another checker judges what it then writes.
"""

from bisect import bisect_right

from fencelock_lab.campaigns.findings import Findings
from fencelock_lab.campaigns.history import ACQUIRE, FAIL, INFO, OK, READ, RELEASE, STRAY, WRITE, History, Operation
from fencelock_lab.campaigns.linearize import (
    FencedMutex,
    Linearization,
    LinearizedCall,
    Mutex,
    ReentrantMutex,
    Search,
    calls_of,
    is_reentrant,
)


def check_tokens(history: History, findings: Findings) -> None:
    """A lock's tokens are unique, and grow from each grant to the ones that were asked for after it."""
    for lock, operations in history.by_place(ACQUIRE).items():
        owners: dict[int, Operation] = {}
        granted = [one for one in operations if one.outcome == OK and one.token is not None]
        fresh: list[Operation] = []
        for one in granted:
            token = one.token or 0
            owner = owners.setdefault(token, one)
            if owner is one:
                fresh.append(one)
            elif owner.process != one.process:
                message = f"token {token} was granted to process {owner.process} and to process {one.process}"
                findings.blame("token-granted-twice", lock, message, owner, one)
        _check_growth(lock, fresh, findings)


def _check_growth(lock: str, granted: list[Operation], findings: Findings) -> None:
    ended = sorted(granted, key=lambda one: one.ended_ns)
    highest: Operation | None = None
    next_ended = 0
    for one in granted:
        while next_ended < len(ended) and ended[next_ended].ended_ns < one.invoked_ns:
            if highest is None or (ended[next_ended].token or 0) > (highest.token or 0):
                highest = ended[next_ended]
            next_ended += 1
        if highest is not None and (one.token or 0) <= (highest.token or 0):
            message = f"token {one.token} was granted after {highest.token}, to a process that asked later"
            findings.blame("token-went-back", lock, message, highest, one)
            return


def check_exclusion(history: History, findings: Findings) -> None:
    """The operations on each lock have an order that one lock could have shown."""
    of_lock = history.by_place(ACQUIRE, RELEASE)
    for resource, operations in history.by_place(READ, WRITE).items():
        lock = history.lock_of(resource)
        if lock in of_lock:
            of_lock[lock] += operations
    for lock, operations in of_lock.items():
        calls = calls_of(operations)
        findings.count("overlaps that an expired lease explains", _overlaps(calls))
        if is_reentrant(calls):
            _judge(lock, calls, Search(calls, ReentrantMutex()).run(), "a re-entrant fenced mutex", findings)
            continue
        found = Search(calls, FencedMutex()).run()
        is_mutex = found.is_linearizable is False and Search(calls, Mutex()).run().is_linearizable
        model = "a fenced mutex, though as a mutex without tokens it would pass" if is_mutex else "a mutex"
        _judge(lock, calls, found, model, findings)


def _judge(lock: str, calls: list[LinearizedCall], found: Linearization, model: str, findings: Findings) -> None:
    if found.is_linearizable is None:
        findings.doubt("lock-not-exclusive", lock, "the search for an order took more steps than it may")
    elif found.culprit is not None:
        culprit = found.culprit
        held = ", ".join(f"process {process} with token {token}" for process, token in found.holders) or "no process"
        message = (
            f"process {culprit.process} was granted token {culprit.token}, which no order of the operations on {model} "
            f"allows: the holder until then was {held}"
        )
        grants = (call.operation for call in calls if call.is_acquire and (call.process, call.token) in found.holders)
        findings.blame("lock-not-exclusive", lock, message, *grants, culprit.operation)


def _overlaps(calls: list[LinearizedCall]) -> int:
    """Count the grants that came while an earlier holder had not begun to release, and its lease could have ended."""
    left = {(call.process, call.token): call.invoked_ns for call in calls if not call.is_acquire}
    count = 0
    before: LinearizedCall | None = None
    for call in sorted((one for one in calls if one.is_acquire), key=lambda one: one.token):
        if before is not None and before.token != call.token:
            count += left.get((before.process, before.token), float("inf")) > call.returned_ns
        before = call
    return count


def check_refusals(history: History, findings: Findings) -> None:
    """No process is refused as stale while the resource can know of no higher token."""
    ceilings = {lock: Ceiling(operations) for lock, operations in history.by_place(ACQUIRE).items()}
    for resource, operations in history.by_place(READ, WRITE).items():
        ceiling = ceilings.get(history.lock_of(resource) or "")
        if ceiling is None:
            continue
        raised = history.raised_marks(resource)
        for one in operations:
            if one.outcome != FAIL or one.error != "StaleTokenError" or one.token is None:
                continue
            now_ns = one.completed_ns or 0
            if any(at_ns <= now_ns and one.token <= mark for at_ns, mark in raised):
                continue  # An operator has raised the mark, as is due after a restore.
            if not ceiling.may_exceed(one.token, now_ns):
                message = f"token {one.token} was refused as stale, and no process had been told of a higher one"
                findings.blame("newest-holder-refused", resource, message, one)
                break


def check_alarms(history: History, findings: Findings) -> None:
    """No guard reported a token with two leases, or a lost seal at a resource that was not restored."""
    for resource, operations in history.by_place(READ, WRITE).items():
        restored_ns = [at_ns for other in history.beside(resource) for at_ns, _ in history.restores(other)]
        for one in operations:
            if one.outcome != FAIL:
                continue
            if one.error == "TokenCollisionError":
                message = f"token {one.token} was refused, since another lease had sealed the resource with it"
                findings.blame("token-granted-twice", resource, message, one)
            elif one.error == "SealLostError" and one.ended_ns < min(restored_ns, default=float("inf")):
                message = f"the seal with token {one.token} is gone, and the resource was not restored"
                findings.blame("seal-lost", resource, message, one)


def check_errors(history: History, findings: Findings, allowed: frozenset[str]) -> None:
    """No read or write ended with another error than these."""
    for resource, operations in history.by_place(READ, WRITE).items():
        for one in operations:
            if one.error is not None and one.error not in allowed:
                findings.blame("unexpected-error", resource, f"a {one.kind} ended with {one.error}", one)
                break


class Ceiling:
    """When the first of the grants above each token was answered.

    Until then its process had no token to show to a resource: that others wait for the lock raises no mark.
    """

    def __init__(self, operations: list[Operation]) -> None:
        granted = sorted((one.token, one.ended_ns) for one in operations if one.outcome == OK and one.token)
        self._tokens = [token for token, _ in granted]
        self._earliest = [ended_ns for _, ended_ns in granted]
        for at in range(len(granted) - 2, -1, -1):
            self._earliest[at] = min(self._earliest[at], self._earliest[at + 1])

    def may_exceed(self, token: int, now_ns: int) -> bool:
        """Return whether a higher token may have reached the resource by now."""
        at = bisect_right(self._tokens, token)
        return at < len(self._tokens) and self._earliest[at] <= now_ns


def check_strays(history: History, findings: Findings) -> None:
    """No write without a token reaches a resource."""
    for resource, operations in history.by_place(STRAY).items():
        for one in operations:
            if one.outcome == OK:
                message = "a write that presented no token was accepted"
                findings.blame("unfenced-write-accepted", resource, message, one)
                break
            if one.outcome == INFO:
                findings.count("writes without a token that were not answered")
