"""The shortest explanation of a violation: who held what, who was frozen, who wrote, in order.

Promise: it shows only what the history holds. A step is there because one of the violation's operations cannot be
understood without it: the grant of its token, the last read before a write, and the freezes in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fencelock_lab.campaigns.findings import CampaignViolation
from fencelock_lab.campaigns.history import (
    ACQUIRE,
    FREEZE,
    INFO,
    LOST,
    NS_PER_S,
    OK,
    READ,
    SERVER_EVENTS,
    THAW,
    WRITE,
    History,
    HistoryEvent,
    Operation,
)

MAX_STEPS = 16


@dataclass(frozen=True, slots=True)
class EvidenceStep:
    """One sentence of an explanation; `at` is in seconds since the history began."""

    at: float
    process: str
    text: str


def explain(history: History, violation: CampaignViolation) -> list[EvidenceStep]:
    """Return the steps that lead to the violation, in the order in which they happened."""
    zero_ns = history.operations[0].invoked_ns if history.operations else 0
    told: dict[tuple[int, str, str], EvidenceStep] = {}
    found = [step for one in violation.operations for step in _about(history, one)]
    for at_ns, process, text in (*found, *_about_servers(history, violation.operations)):
        told[at_ns, process, text] = EvidenceStep(round((at_ns - zero_ns) / NS_PER_S, 6), process, text)
    return [told[key] for key in sorted(told)][-MAX_STEPS:]


def _about(history: History, one: Operation) -> Iterator[tuple[int, str, str]]:
    """Yield what led to this operation, and the operation."""
    began_ns = one.invoked_ns
    for earlier in _tenure_of(history, one):
        began_ns = min(began_ns, earlier.invoked_ns)
        yield earlier.completed_ns or earlier.invoked_ns, one.process, _told(earlier)
    yield one.completed_ns or one.invoked_ns, one.process, _told(one)
    ended_ns = one.completed_ns or history.end_ns
    for event in history.events:
        if event.victim == one.process and began_ns <= event.time_ns <= ended_ns:
            yield event.time_ns, one.process, _done(event)


def _about_servers(history: History, operations: tuple[Operation, ...]) -> Iterator[tuple[int, str, str]]:
    """Yield what was done to servers from the first of the operations to the last."""
    began_ns = min((one.invoked_ns for one in operations), default=history.end_ns)
    ended_ns = max((one.completed_ns or history.end_ns for one in operations), default=0)
    for event in history.events:
        if event.kind in SERVER_EVENTS and began_ns <= event.time_ns <= ended_ns:
            yield event.time_ns, ", ".join(event.facts["servers"]), _done(event)


def _tenure_of(history: History, one: Operation) -> list[Operation]:
    """Return the grant under which an operation was made, and the last read of its place before it."""
    grant: Operation | None = None
    read: Operation | None = None
    for other in history.operations:
        if other is one or other.invoked_ns > one.invoked_ns:
            break
        if other.process != one.process or other.token != one.token or other.outcome != OK:
            continue
        if other.kind == ACQUIRE:
            grant = other
        elif other.kind == READ and one.kind == WRITE and other.place == one.place:
            read = other
    return [other for other in (grant, read) if other is not None]


def _told(one: Operation) -> str:
    token = f" with token {one.token}" if one.token is not None else ""
    what = {
        ACQUIRE: f"acquire of lock {one.place}",
        READ: f"read of resource {one.place}",
        WRITE: f"write {one.write} to resource {one.place}",
    }.get(one.kind, f"{one.kind} of {one.place}")
    if one.outcome == OK:
        seen = {READ: f", {writes_seen(one)}", WRITE: f", as number {one.position}"}
        return f"{what}{token}: ok{seen.get(one.kind, '') if one.position is not None else ''}"
    if one.outcome == INFO:
        return f"{what}{token}: outcome unknown ({one.error or 'no answer'})"
    mark = f", mark {one.mark}" if one.mark is not None else ""
    return f"{what}{token}: refused ({one.error}{mark})"


def writes_seen(read: Operation) -> str:
    """Return how many writes a read has seen, in words."""
    return f"{read.position} {'write' if read.position == 1 else 'writes'} seen"


def _done(event: HistoryEvent) -> str:
    texts = {FREEZE: "is frozen", THAW: "wakes up", LOST: "is told that its lease is lost"}
    detail = " ".join(f"{key} {value}" for key, value in event.facts.items() if key not in {"victim", "servers"})
    return f"{texts.get(event.kind, event.kind)}{f' ({detail})' if detail else ''}"
