"""Whether every acknowledged write is there, once, in its order, and on top of what the one before it had left.

Each write of a campaign has a name, and says how many writes its process had read before: it is the next one. So the
final state of a resource tells of each write whether it was computed from everything below it.

Promise: a write of unknown outcome may be there or not. A write that was refused must not be there.
"""

from bisect import bisect_left
from collections import Counter
from itertools import accumulate

from fencelock_lab.campaigns.findings import Findings
from fencelock_lab.campaigns.history import FAIL, OK, WRITE, Final, History, Operation


def check_writes(history: History, findings: Findings) -> None:
    """Compare what processes were told of their writes with what is there in the end."""
    made = history.by_place(WRITE)
    for resource in history.resources:
        operations, final = made.get(resource, []), history.finals.get(resource)
        if final is None:
            findings.doubt("lost-write", resource, "the history has no final state of this resource")
            continue
        told = {one.write: one for one in operations if one.write is not None}
        undone = _undone(told, history.restores(resource))
        _check_presence(resource, final, told, findings)
        _check_likeness(resource, final, told, findings)
        _check_absence(resource, final, told, undone, findings)
        _check_order(resource, final, told, findings)
        _check_ground(resource, final, told, findings)
        if final.counter != len(final.rows):
            message = f"the counter says {final.counter}, and {len(final.rows)} writes that added 1 each are there"
            findings.blame("lost-write", resource, message)


def _undone(told: dict[str, Operation], restores: list[tuple[int, int]]) -> set[str]:
    """Return the writes that may be gone since the resource was restored, which is no guard's fault."""
    times = [at_ns for at_ns, _ in restores]
    # The fewest writes that are left by a restore and by all those after it.
    least = list(accumulate((position for _, position in reversed(restores)), min))[::-1]
    undone = set()
    for name, one in told.items():
        at = bisect_left(times, one.invoked_ns)
        if at < len(times) and (one.position or 0) > least[at]:
            undone.add(name)
    return undone


def _check_presence(resource: str, final: Final, told: dict[str, Operation], findings: Findings) -> None:
    """What is there was made once, by a process that was not told that it was refused."""
    present = Counter(row.write for row in final.rows)
    for write, times in present.items():
        one = told.get(write)
        if times > 1:
            findings.blame("duplicated-write", resource, f"write {write} is there {times} times", one)
        if one is None:
            findings.blame("invented-write", resource, f"write {write} is there, and no process made it")
        elif one.outcome == FAIL:
            message = f"write {write} is there, though its process was told that it was refused ({one.error})"
            findings.blame("refused-write-is-there", resource, message, one)
        elif one.outcome != OK:
            findings.count("unanswered writes that are there")


def _check_likeness(resource: str, final: Final, told: dict[str, Operation], findings: Findings) -> None:
    """What is there is as its process made it."""
    for row in final.rows:
        one = told.get(row.write)
        if one is not None and (row.position, row.token) != (one.position, one.token):
            message = (
                f"write {row.write} is there as number {row.position} with token {row.token}, and its process made it "
                f"as number {one.position} with token {one.token}"
            )
            findings.blame("invented-write", resource, message, one)


def _check_absence(
    resource: str, final: Final, told: dict[str, Operation], undone: set[str], findings: Findings
) -> None:
    """What was acknowledged is there, unless a restore took it."""
    present = {row.write for row in final.rows}
    for write, one in told.items():
        if one.outcome == OK and write not in present and write not in undone:
            message = f"write {write} was acknowledged with token {one.token}, and is not there"
            findings.blame("lost-write", resource, message, one)


def _check_order(resource: str, final: Final, told: dict[str, Operation], findings: Findings) -> None:
    """What was acknowledged before another write began stands before it."""
    latest: Operation | None = None
    for row in final.rows:
        one = told.get(row.write)
        if one is None:
            continue
        if latest is not None and one.ended_ns < latest.invoked_ns:
            message = f"write {row.write} was acknowledged before write {latest.write} began, and stands behind it"
            findings.blame("reordered-write", resource, message, one, latest)
        if latest is None or one.invoked_ns > latest.invoked_ns:
            latest = one


def _check_ground(resource: str, final: Final, told: dict[str, Operation], findings: Findings) -> None:
    """Each write was computed from a read that had seen all those below it."""
    rows = final.rows
    for number, row in enumerate(rows):
        below = rows[number - 1] if number else None
        expected = below.position + 1 if below else 1
        if row.position == expected:
            continue
        one, other = told.get(row.write), told.get(below.write) if below else None
        if row.position < expected:
            message = (
                f"write {row.write} (token {row.token}) was computed from {row.position - 1} writes, and accepted on "
                f"top of {expected - 1}: it undoes write {below.write if below else ''} and what else it had not seen"
            )
            findings.blame("overwritten-write", resource, message, other, one)
        else:
            message = (
                f"write {row.write} (token {row.token}) was computed from {row.position - 1} writes, and accepted on "
                f"top of {expected - 1}: {row.position - expected} that its process had read are not there"
            )
            findings.blame("lost-write", resource, message, other, one)
