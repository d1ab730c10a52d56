"""How brief transactions of a guard get past others at stores that hold nothing still while one decides.

Such a store, etcd or ZooKeeper, reads at once, keeps what is to be written, and writes all of it by one conditional
request at the end, if what was read is still as it was.

Promise: a transaction that was refused because something had changed, and has therefore written nothing, begins anew
with the state of now, and decides again. Never: without end; after an outcome that is unknown, which is the flow's own
to look into.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from fencelock.errors import SourceUnavailableError
from fencelock.protocol.guard_requests import ConflictError
from fencelock.protocol.source_requests import Flow

MAX_BEGINNINGS = 16
"""Each refusal means that somebody else's write succeeded: so many in a row are no accident."""

Result = TypeVar("Result")
Terms = ParamSpec("Terms")


def retry_on_conflict(flow: Callable[Terms, Flow[Result]]) -> Callable[Terms, Flow[Result]]:
    """Have a flow of brief transactions begin anew when one is refused; SourceUnavailableError if that goes on."""

    @wraps(flow)
    def begun(*arguments: Terms.args, **named: Terms.kwargs) -> Flow[Result]:
        for tries_left in reversed(range(MAX_BEGINNINGS)):
            try:
                return (yield from flow(*arguments, **named))
            except ConflictError as conflict:
                if not tries_left:
                    raise _goes_on(conflict) from conflict
        raise AssertionError("the loop ends by its return or its raise")

    return begun


def _goes_on(conflict: ConflictError) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"{conflict}, {MAX_BEGINNINGS} times in a row: others write there all the time. Nothing was written: try again"
    )
