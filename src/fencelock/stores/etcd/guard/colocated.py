"""The key by which a lock's holder holds it, for a guard beside the locks, as its URL says by `locks=prefix`.

Promise: it is found by the revision that the lease's token stands for, and its claim is compared. A block then relies
on it and on the source's record: once the key is gone, or the epoch was raised, nothing of the block is written. Never:
a key of another lease.
"""

from typing import Any

from fencelock.errors import SchemaError
from fencelock.model import Sequencer
from fencelock.stores.etcd.connection import messages as say
from fencelock.stores.etcd.connection.operations import get, prefix_end, txn, was_created
from fencelock.stores.etcd.guard.block import EtcdCondition, look_at, unchanged
from fencelock.stores.etcd.source.layout import EtcdLayout, EtcdRecord, claim_of, record_of
from fencelock.stores.quorum.colocated import RememberedKeys, check_source, lease_is_over
from fencelock.stores.quorum.guard_codec import Operations


class EtcdColocatedLocks:
    """The source of locks that is in the guard's own etcd."""

    def __init__(self, prefix: bytes) -> None:
        self._layout = EtcdLayout(prefix)
        self._found: RememberedKeys[bytes] = RememberedKeys()
        self._where = prefix.decode(errors="replace") or "the whole of etcd"

    def conditions(self, sequencer: Sequencer) -> Operations:
        """Return what has to stay as it is for as long as the lease is not over; GuardError if it is over now."""
        known = self._found.of(sequencer)
        looks = [get(self._layout.record)] if known is None else [get(self._layout.record), look_at(known)]
        stored, *places = [one.response_range.kvs for one in (yield txn((), looks)).responses]
        if not stored:
            raise SchemaError(
                f"there is no source of locks at {self._where}: say by locks=… in the guard's URL where it is"
            )
        record = record_of(stored[0].value, stored[0].mod_revision, self._where)
        check_source(sequencer, record.source_id, self._where)
        revision = sequencer.token - record.offset
        if known is None:
            places = [(yield from self._search(sequencer, revision))]
        place = next((one.key for one in places[0] if one.create_revision == revision), None)
        if place is None or record.history_id != sequencer.history_id or revision <= record.revision:
            raise lease_is_over(sequencer, self._where)
        self._found.remember(sequencer, place)
        return self._unchanged(sequencer, record, place, revision)

    def _search(self, sequencer: Sequencer, revision: int) -> Operations:
        """Return the key in the lock's queue that was created at this revision under the lease's claim."""
        answer = yield txn((), (_created_at(self._layout.queue(sequencer.lock), revision),))
        return [one for one in answer.responses[0].response_range.kvs if claim_of(one) == sequencer.claim]

    def _unchanged(self, sequencer: Sequencer, record: EtcdRecord, place: bytes, revision: int) -> list[EtcdCondition]:
        lock = f"lock {sequencer.lock!r}"
        name = f"the key by which this lease held {lock}"
        return [
            unchanged(self._layout.record, record.revision, f"the record of the source of {lock}"),
            EtcdCondition(
                was_created(place, revision), look_at(place), lambda kvs: None if kvs else f"{name} has changed"
            ),
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
