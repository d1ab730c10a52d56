"""The key by which a lock's holder holds it, for a guard beside the locks, as its URL says by `locks=prefix`.

Promise: it is found by the revision that the lease's token stands for, and its claim is compared. A block then relies
on it and on the source's record: once the key is gone, or the epoch was raised, nothing of the block is written. Never:
a key of another lease.
"""

from typing import Any

from fenceline.errors import SchemaError
from fenceline.model import Sequencer
from fenceline.stores.beside import check_source, is_over
from fenceline.stores.etcd import messages as say
from fenceline.stores.etcd.guard_work import Condition, look_at, unchanged
from fenceline.stores.etcd.layout import Layout, claim_of, record_of
from fenceline.stores.etcd.operations import get, prefix_end, txn, was_created
from fenceline.stores.optimistic import Talk


def owner_conditions(layout: Layout, sequencer: Sequencer) -> Talk:
    """Return what has to stay as it is for as long as the lease is not over; GuardError if it is over now."""
    where = layout.prefix.decode(errors="replace") or "the whole of etcd"
    answer = yield txn((), (get(layout.record),))
    found = answer.responses[0].response_range.kvs
    if not found:
        raise SchemaError(f"there is no source of locks at {where}: say by locks=… in the guard's URL where it is")
    record = record_of(found[0].value, found[0].mod_revision, where)
    check_source(sequencer, record.source_id, where)
    revision = sequencer.token - record.offset
    answer = yield txn((), (_created_at(layout.queue(sequencer.lock), revision),))
    places = answer.responses[0].response_range.kvs
    is_this_history = record.history_id == sequencer.history_id and revision > record.revision
    place = next((one.key for one in places if claim_of(one) == sequencer.claim), None)
    if place is None or not is_this_history:
        raise is_over(sequencer, where)
    lock = f"lock {sequencer.lock!r}"
    name = f"the key by which this lease held {lock}"
    return [
        unchanged(layout.record, record.revision, f"the record of the source of {lock}"),
        Condition(was_created(place, revision), look_at(place), lambda kvs: None if kvs else f"{name} has changed"),
    ]


def _created_at(prefix: bytes, revision: int) -> Any:
    """Read the keys that begin with the prefix and were created at this revision."""
    request = say.RangeRequest(
        key=prefix,
        range_end=prefix_end(prefix),
        min_create_revision=revision,
        max_create_revision=revision,
    )
    return say.RequestOp(request_range=request)
