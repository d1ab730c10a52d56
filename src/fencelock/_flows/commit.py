"""The end of a user's guarded transaction: commit it, or say why the store would not.

Promise: where the store holds the marks still, the commit is all. Where it only compares at the end, a refusal is told
in the guard's words: whose mark it met, with both numbers, or that what the block had read was changed meanwhile.
Never: the user's work committed a second time.
"""

from fencelock._flows.admit import Tenure, admit
from fencelock._flows.guarding import Scope, check_bound, read_marks
from fencelock.errors import GuardError
from fencelock.model import Sequencer
from fencelock.protocol.guard_requests import Begin, ConflictError, Finish
from fencelock.protocol.source_requests import Flow


def finish(scope: Scope, sequencer: Sequencer, tenure: Tenure, presented: tuple[str, ...]) -> Flow[None]:
    """Commit the open transaction, in which the lease was presented to these resources."""
    try:
        yield Finish(presented)
    except ConflictError as conflict:
        yield Begin()
        for mark in (yield from read_marks(scope, sequencer.claim)):
            check_bound(mark, scope.lock)
            admit(mark, sequencer, was_sealed=(scope.place, mark.resource) in tenure.sealed)
        raise GuardError(
            f"the marks are still this lease's, but {conflict}: nothing of the block was written. Another block of the "
            f"same lease was faster, or somebody writes there without the guard: begin it anew"
        ) from conflict
