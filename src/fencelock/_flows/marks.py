"""Read the marks of a guard's resources, in any of its flows.

Promise: where only `protect` creates a mark, a resource without one refuses every lease, and every operator but the one
who is about to create it. The error names the commands for a new resource and for a mark that was lost.
"""

import shlex

from fencelock._flows.tenure import Scope, Tenure
from fencelock.errors import GuardError, SealLostError
from fencelock.model import Mark
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import GuardFlow, ReadMarks


def read_marks(
    scope: Scope,
    tenure: Tenure | None = None,
    resources: tuple[str, ...] | None = None,
    *,
    shared_by: str | None = None,
    is_to_create: bool = False,
) -> GuardFlow[tuple[Mark, ...]]:
    """Return the marks of all resources of the guard, or of these; token 0 for one that was never sealed.

    Where only `protect` creates a mark, one that is missing raises the error for this tenure, or for an operator (None)
    who is not about to create it. `shared_by`: the marks with this digest will not be written.
    """
    wanted = scope.resources if resources is None else resources
    known = yield from ask(ReadMarks(wanted, shared_by))
    if not (scope.first_seal_creates or is_to_create):
        for resource in wanted:
            if resource not in known:
                raise _missing_mark(scope, resource, tenure)
    return tuple(known.get(resource) or Mark(resource, scope.lock) for resource in wanted)


def _missing_mark(scope: Scope, resource: str, tenure: Tenure | None) -> GuardError:
    command = shlex.join(["fencelock", "protect", scope.url, "--resource", resource, "--lock", scope.lock])
    if_lost = (
        f"run `{command} --source SOURCE`, which refuses every token issued until then, and `fencelock marks "
        f"{shlex.quote(scope.url)} --raise-to SOURCE --reason …` for the other resources there"
    )
    if tenure is not None and tenure.has_sealed((scope.url, resource)):
        return SealLostError(
            f"resource {resource!r} at {scope.url}: this tenure sealed it, and now it has no mark: the store lost it, "
            f"or somebody deleted or purged it. All that was read from the resource is void: drop it. Then {if_lost}, "
            f"and acquire the lock again"
        )
    return GuardError(
        f"resource {resource!r} at {scope.url} has no mark, so it refuses every token; nothing was written. If the "
        f"resource is new, run `{command}`. If it had a mark, the store lost it: {if_lost}"
    )
