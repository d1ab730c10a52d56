"""The holder's own key, for a guard in the same etcd as its locks (`locks=prefix` in the guard's URL).

Promise: the key is found by the revision that the lease's token stands for, and its digest is compared. The block then
relies on this key and on the source's record: once the key is gone, or the epoch was raised, nothing of the block is
written.
Never: the key of another lease.
"""

from typing import Any

from fencelock.model import Sequencer
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.wire import get, prefix_end, txn, was_created
from fencelock.stores.etcd.guard.block import EtcdCondition, read_metadata, unmodified
from fencelock.stores.etcd.source.layout import EtcdLayout, EtcdRecord, decode_digest, decode_record
from fencelock.stores.optimistic.effects import Operations
from fencelock.stores.quorum.colocated import RememberedKeys, check_source, lease_is_over, no_source


class EtcdColocatedLocks:
    """The source of locks that is in the guard's own etcd."""

    def __init__(self, prefix: bytes) -> None:
        self.layout = EtcdLayout(prefix)
        self._remembered: RememberedKeys[bytes] = RememberedKeys()
        self._where = prefix.decode(errors="replace") or "the whole of etcd"

    def conditions(self, sequencer: Sequencer) -> Operations:
        """Return what must stay unchanged while the lease is not over; GuardError if it is over now."""
        known = self._remembered.of(sequencer)
        reads = [get(self.layout.record)] if known is None else [get(self.layout.record), read_metadata(known)]
        stored, *entries = [one.response_range.kvs for one in (yield txn((), reads)).responses]
        if not stored:
            raise no_source(self._where)
        record = decode_record(stored[0].value, stored[0].mod_revision, self._where)
        check_source(sequencer, record.source_id, self._where)
        revision = sequencer.token - record.offset
        if known is None:
            entries = [(yield from self._search(sequencer, revision))]
        info = next((one.key for one in entries[0] if one.create_revision == revision), None)
        # An entry that is older than the record's last write belongs to an epoch that is over.
        if info is None or record.history_id != sequencer.history_id or revision <= record.revision:
            raise lease_is_over(sequencer, self._where)
        self._remembered.remember(sequencer, info)
        return self._unchanged(sequencer, record, info, revision)

    def _search(self, sequencer: Sequencer, revision: int) -> Operations:
        """Return the key in the lock's queue that was created at this revision with the lease's digest."""
        answer = yield txn((), (_get_created_at(self.layout.queue(sequencer.lock), revision),))
        return [one for one in answer.responses[0].response_range.kvs if decode_digest(one) == sequencer.digest]

    def _unchanged(self, sequencer: Sequencer, record: EtcdRecord, info: bytes, revision: int) -> list[EtcdCondition]:
        lock = f"lock {sequencer.lock!r}"
        name = f"the key by which this lease held {lock}"
        return [
            unmodified(self.layout.record, record.revision, f"the record of the source of {lock}"),
            EtcdCondition(
                was_created(info, revision), read_metadata(info), lambda kvs: None if kvs else f"{name} has changed"
            ),
        ]


def _get_created_at(prefix: bytes, revision: int) -> Any:
    """Read the keys that begin with the prefix and were created at this revision."""
    request = wire.RangeRequest(
        key=prefix,
        range_end=prefix_end(prefix),
        min_create_revision=revision,
        max_create_revision=revision,
    )
    return wire.RequestOp(request_range=request)
