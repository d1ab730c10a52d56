"""Whether a resource, once it has known a token, accepts a lower one: what a guard is for.

What shows that a resource knows a token: that it accepted it, or that it refused another one because of it. What shows
that it accepted one: that its process was told so, or that the write is there in the end.

The resources of one lock know a token together: a tenure seals all of them before it reads any. One that is sealed late
lets in a stale write that another, already read, does not show.

Promise: what may have been at the same moment is not ordered, and a restored resource owes nothing to what came before.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from fencelock_lab.campaigns.findings import Findings
from fencelock_lab.campaigns.history import FAIL, OK, READ, WRITE, Final, History, Operation


def check_accepted_tokens(history: History, findings: Findings) -> None:
    """No resource accepts a token below one that it had accepted, or below the mark by which it had refused another.

    Nor below one that another resource of its lock had accepted.
    """
    for resource, final in history.finals.items():
        _check_rows(resource, final, history, findings)
    operations = history.by_place(READ, WRITE)
    accepted = {
        resource: list(_accepted(of_resource, history.finals.get(resource)))
        for resource, of_resource in operations.items()
    }
    for resource, of_resource in operations.items():
        _check_real_time(resource, of_resource, accepted, history, findings)


def _check_real_time(
    resource: str,
    operations: Iterable[Operation],
    accepted: Mapping[str, Sequence[Operation]],
    history: History,
    findings: Findings,
) -> None:
    """Judge what a resource has accepted by what it must have known: from itself, and from its lock's others."""
    siblings = history.beside(resource)
    refused = [one for one in operations if one.outcome == FAIL and one.error == "StaleTokenError"]
    elsewhere = [one for other in siblings if other != resource for one in accepted.get(other, ())]
    for rule, evidence, places in (
        ("stale-token-accepted", accepted[resource], [resource]),
        # A refusal names the mark of any of its lock's resources.
        ("stale-token-accepted", refused, siblings),
        ("sealed-late", elsewhere, siblings),
    ):
        moments = sorted(at_ns for place in places for at_ns, _ in history.restores(place))
        if (found := _first_stale(accepted[resource], evidence, moments)) is not None:
            findings.blame(rule, resource, _message(*found), *found)
            return  # The first one explains the others.


def _accepted(operations: Iterable[Operation], final: Final | None) -> Iterable[Operation]:
    """Yield what was accepted: of a write of unknown outcome the final state tells."""
    present = {row.write for row in final.rows} if final else set[str]()
    for one in operations:
        if one.outcome == OK or (one.outcome != FAIL and one.write in present):
            yield one


def _check_rows(resource: str, final: Final, history: History, findings: Findings) -> None:
    highest = None
    for row in final.rows:
        if highest is not None and row.token < highest.token:
            message = (
                f"write {row.write} was accepted with token {row.token}, and write {highest.write} before it with "
                f"{highest.token}"
            )
            shown = [one for one in history.operations if one.write in {row.write, highest.write}]
            findings.blame("stale-token-accepted", resource, message, *shown)
            return  # The first is the one that explains; those behind it follow from it.
        if highest is None or row.token > highest.token:
            highest = row


def _first_stale(
    accepted: Iterable[Operation], evidence: Iterable[Operation], restores: Sequence[int]
) -> tuple[Operation, Operation] | None:
    """Return the first that was accepted with too low a token, after what shows that a higher one was known.

    Only what one process was told of before the other began is compared: that order needs no final state.

    A restored resource knows nothing of the tokens that it had known before, and may have been restored meanwhile.
    """
    era_ns = -1
    moments = deque(restores)
    ended = deque(sorted(evidence, key=lambda one: one.ended_ns))
    highest: Operation | None = None
    for one in accepted:  # In the order of their beginnings.
        while moments and moments[0] <= one.invoked_ns:
            era_ns, highest = moments.popleft(), None
        while ended and ended[0].ended_ns < one.invoked_ns:
            candidate = ended.popleft()
            if candidate.invoked_ns > era_ns and (highest is None or _least_after(candidate) > _least_after(highest)):
                highest = candidate
        may_be_restored = bool(moments) and moments[0] <= one.ended_ns
        if highest is not None and not may_be_restored and (one.token or 0) < _least_after(highest):
            return highest, one
    return None


def _least_after(one: Operation) -> int:
    """Return the lowest token that may be accepted after this: the mark may be the refused token's own, if closed."""
    token = one.token or 0
    return max(one.mark or 0, token + 1) if one.outcome == FAIL else token


def _message(before: Operation, one: Operation) -> str:
    where = f" of resource {before.place}" if before.place != one.place else ""
    how = f"a {before.kind}{where} with {before.token}"
    if before.outcome == FAIL:
        how += f" was refused{f' by the mark {before.mark}' if before.mark is not None else ''}"
    return f"a {one.kind} was accepted with token {one.token} after {how}"
