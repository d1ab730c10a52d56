"""Repeat a guard's transaction that met a conflict, at stores that compare only at the end of a transaction.

Such a store (etcd, S3) reads at once, keeps what is to be written, and writes all of it by one conditional
request at the end, if what was read is still as it was.

Promise: a transaction that was refused because something had changed, and has therefore written nothing, begins again
with the present state, and decides again. Never: repeated without end, or after an unknown outcome, which is for the
flow itself to resolve.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from fencelock.errors import SourceUnavailableError
from fencelock.protocol.guard_requests import ConflictError, GuardFlow

MAX_CONFLICTS = 16
"""Each conflict means that another client's write succeeded: so many in a row are no accident."""

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


def retry_on_conflict(flow: Callable[Parameters, GuardFlow[Result]]) -> Callable[Parameters, GuardFlow[Result]]:
    """Run a flow of brief transactions again when it meets a conflict; SourceUnavailableError after MAX_CONFLICTS."""

    @wraps(flow)
    def retried(*arguments: Parameters.args, **named: Parameters.kwargs) -> GuardFlow[Result]:
        for tries_left in reversed(range(MAX_CONFLICTS)):
            try:
                return (yield from flow(*arguments, **named))
            except ConflictError as conflict:
                if not tries_left:
                    raise _too_many_conflicts(conflict) from conflict
        raise AssertionError("the loop ends by its return or its raise")

    return retried


def _too_many_conflicts(conflict: ConflictError) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"{conflict}, {MAX_CONFLICTS} times in a row: others write there all the time. Nothing was written: try again"
    )
