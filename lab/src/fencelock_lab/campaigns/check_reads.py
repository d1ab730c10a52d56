"""Whether each read that a guard let through saw what was there: all that had been told of before, and nothing else.

A read says how many writes it has seen, and the final state which ones those were. So a read shows what no later write
does, for example if its process was killed before it wrote.

Promise: a read is compared with what ended before it, or began after it. Never judges a resource whose writes were not
computed from each other: numbers mean something else there, and another checker finds that.
"""

from bisect import bisect_right
from collections.abc import Iterable

from fencelock_lab.campaigns.findings import Findings
from fencelock_lab.campaigns.history import OK, READ, WRITE, History, Operation

Numbered = list[tuple[int, Operation]]
"""Operations, each with how many writes there were after it, at least."""


def check_reads(history: History, findings: Findings) -> None:
    """Compare what reads have seen with what was told before, and with the final state."""
    writes, reads = history.by_place(WRITE), history.by_place(READ)
    for resource, final in history.finals.items():
        if any(row.position != number for number, row in enumerate(final.rows, 1)):
            continue
        told = {one.write: one for one in writes.get(resource, [])}
        there = [(number, told[row.write]) for number, row in enumerate(final.rows, 1) if row.write in told]
        answered = [one for one in reads.get(resource, []) if one.outcome == OK]
        restored_ns = max((at_ns for at_ns, _ in history.restores(resource)), default=-1)
        lasting = [(one.position or 0, one) for one in answered if one.invoked_ns > restored_ns]
        _check_fresh(resource, answered, there + lasting, findings)
        _check_lasting(resource, lasting, there, len(final.rows), findings)


def _check_fresh(resource: str, reads: Iterable[Operation], told: Numbered, findings: Findings) -> None:
    """Blame the first read that has not seen what a process had been told of before it began."""
    told.sort(key=lambda one: one[1].ended_ns)
    number, newest = 0, None
    at = 0
    for read in reads:  # In the order of their beginnings.
        while at < len(told) and told[at][1].ended_ns < read.invoked_ns:
            if told[at][0] > number:
                number, newest = told[at]
            at += 1
        if newest is not None and (read.position or 0) < number:
            message = (
                f"a read with token {read.token} saw {read.position} writes, and a {newest.kind} that had ended before "
                f"had told process {newest.process} of {number}"
            )
            findings.blame("stale-read", resource, message, newest, read)
            return


def _check_lasting(resource: str, reads: Numbered, there: Numbered, count: int, findings: Findings) -> None:
    """Blame the first read that has seen a write which is missing in the end."""
    begun = sorted((write.invoked_ns, number) for number, write in there)
    # The lowest number of this write and of all that began after it.
    lowest = [number for _, number in begun]
    for at in range(len(lowest) - 2, -1, -1):
        lowest[at] = min(lowest[at], lowest[at + 1])
    for seen, read in reads:
        at = bisect_right(begun, (read.ended_ns, count))
        of_before = min(lowest[at] - 1, count) if at < len(lowest) else count
        if seen > of_before:
            message = (
                f"a read with token {read.token} saw {seen} writes, and of those that had begun by then "
                f"{of_before} are there at the most"
            )
            findings.blame("lost-write", resource, message, read)
            return
