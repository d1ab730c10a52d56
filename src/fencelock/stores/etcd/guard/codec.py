"""The operations of a guard at etcd, and where it keeps what: pure.

    <prefix><resource>/…                     the guarded keys of a resource
    <prefix>.fencelock/marks/<resource>      its mark
    <prefix>.fencelock/floors                the floors of purged marks, by their sources
    <prefix>.fencelock/audit/<random id>     what operators did; the revision that created the key gives the order
    <prefix>.fencelock/effects/<resource>/<key>    a job that is done once (`once=`, `fencelock.dispatch`)

Each operation is one Txn. Promise: names are escaped, so two resources never share a key.
Never: a decision about a token.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from fencelock.protocol import guard_requests as ask
from fencelock.stores.encoding import RESERVED, escape_name, unescape_name
from fencelock.stores.etcd.connection.wire import delete, get, get_prefix, put, txn, was_modified
from fencelock.stores.etcd.guard.block import (
    Area,
    EtcdCondition,
    EtcdWriteBuffer,
    raise_conflict,
    unchanged,
)
from fencelock.stores.etcd.guard.colocated import EtcdColocatedLocks
from fencelock.stores.etcd.source.prefix_conflicts import conflicts_of_guard, find_conflict, floors_key, marks_prefix
from fencelock.stores.optimistic.effects import Operations
from fencelock.stores.optimistic.purging import PurgingGuardCodec
from fencelock.stores.optimistic.stored_values import FLOORS, PendingChanges, StoredValue, encode_entry

_NAMES_OF_EFFECT = 2
MakeWork = Callable[[Mapping[str, Area], Iterable[EtcdCondition]], EtcdWriteBuffer]


class EtcdGuardLayout(NamedTuple):
    """Where a guard keeps what, behind its prefix."""

    prefix: bytes

    @property
    def marks(self) -> bytes:
        """The key prefix of all marks."""
        return marks_prefix(self.prefix)

    @property
    def floors(self) -> bytes:
        """The key of the floors."""
        return floors_key(self.prefix)

    def new_entry(self) -> bytes:
        """Return a new key for an audit entry."""
        return self.prefix + f"{RESERVED}/audit/{uuid4().hex}".encode()

    def mark(self, resource: str) -> bytes:
        """Return the key of a mark; of the floors for FLOORS."""
        return self.floors if resource == FLOORS else self.marks + escape_name(resource).encode()

    @property
    def all_effects(self) -> bytes:
        """The key prefix of all effects."""
        return self.prefix + f"{RESERVED}/effects/".encode()

    def effects(self, resource: str) -> bytes:
        """Return the key prefix of a resource's effects."""
        return self.all_effects + f"{escape_name(resource)}/".encode()

    def effect(self, resource: str, key: str) -> bytes:
        """Return the key of an effect."""
        return self.effects(resource) + escape_name(key).encode()

    def area(self, resource: str) -> bytes:
        """Return the key prefix of a resource."""
        return self.prefix + f"{escape_name(resource)}/".encode()


class EtcdGuardCodec(PurgingGuardCodec):
    """The operations of one connection, over a client that other connections share."""

    def __init__(
        self, url: str, layout: EtcdGuardLayout, locks: EtcdColocatedLocks | None, make_work: MakeWork
    ) -> None:
        super().__init__(url)
        self._layout = layout
        self._locks = locks
        self._make_work = make_work

    def _read(self, resources: Iterable[str]) -> Operations:
        names = tuple(resources)
        answer = yield txn((), (get(self._layout.mark(name)) for name in names))
        return {name: _decode_stored(one.response_range.kvs) for name, one in zip(names, answer.responses, strict=True)}

    def _read_all(self) -> Operations:
        answer = yield txn((), (get(self._layout.floors), get_prefix(self._layout.marks)))
        floors, marks = (one.response_range.kvs for one in answer.responses)
        named = ((self._resource(one.key), one) for one in marks)
        return {FLOORS: _decode_stored(floors)} | {name: _decode_stored([one]) for name, one in named if name}

    def _resource(self, key: bytes) -> str | None:
        """Return the resource of a mark's key; None if the guard never writes this key."""
        return unescape_name(key[len(self._layout.marks) :].decode("utf-8", "replace"))

    def _read_names(self) -> Operations:
        answer = yield txn((), (get_prefix(self._layout.marks, is_keys_only=True),))
        return list(filter(None, (self._resource(one.key) for one in answer.responses[0].response_range.kvs)))

    def _find_limited(self, resources: Collection[str]) -> Operations:
        """Return none: a role's right is to a key, whether or not that exists."""
        yield from ()
        return set()

    def _find_conflict(self) -> Operations:
        return (yield from find_conflict_of_guard(self._layout))

    def _write(self, changes: PendingChanges) -> Operations:
        conditions = self._unchanged(changes.seen)
        places = [(self._layout.mark(name), value) for name, value in changes.writes.items()]
        writes = [delete(key) if value is None else put(key, value) for key, value in places]
        writes += [put(self._layout.new_entry(), encode_entry(entry)) for entry in changes.entries]
        answer = yield txn((one.compare for one in conditions), writes, (one.read for one in conditions))
        raise_conflict(answer, conditions)
        return changes.left(answer.header.revision)

    def _unchanged(self, seen: Mapping[str, StoredValue]) -> list[EtcdCondition]:
        return [unchanged(self._layout.mark(name), stored.value, _name(name)) for name, stored in seen.items()]

    def _open_work(self, request: ask.Open, seen: Mapping[str, StoredValue]) -> Operations:
        conditions = self._unchanged(seen)
        if self._locks is not None:
            conditions += yield from self._locks.conditions(request.sequencer)
        areas = {
            name: Area(self._layout.area(name), self._layout.mark(name), stored.value or b"", stored.version)
            for name, stored in seen.items()
        }
        return self._make_work(areas, conditions)

    def _write_work(self, work: EtcdWriteBuffer) -> Operations:
        raise_conflict((yield work.request()), work.conditions)

    def _effect_ids(self) -> Operations:
        start = self._layout.all_effects
        answer = yield txn((), (get_prefix(start),))
        found = []
        for one in answer.responses[0].response_range.kvs:
            names = [unescape_name(part) for part in one.key[len(start) :].decode("utf-8", "replace").split("/")]
            if len(names) == _NAMES_OF_EFFECT and None not in names:
                found.append(tuple(names))
        return found

    def _read_effect_value(self, resource: str, key: str) -> Operations:
        answer = yield txn((), (get(self._layout.effect(resource, key)),))
        return _decode_stored(answer.responses[0].response_range.kvs)

    def _rely_on_effect(self, resource: str, key: str, stored: StoredValue) -> None:
        self.work.rely_on(self._layout.effect(resource, key), stored.value, f"effect {key!r}")

    def _keep_effect(self, resource: str, key: str, value: bytes | None, before: StoredValue) -> Operations:
        self.work.keep(self._layout.effect(resource, key), value)
        yield from ()

    def _delete_effect(self, resource: str, key: str, stored: StoredValue) -> Operations:
        where = self._layout.effect(resource, key)
        answer = yield txn((was_modified(where, stored.version),), (delete(where),))
        return answer.succeeded


def find_conflict_of_guard(layout: EtcdGuardLayout) -> Operations:
    """Return how the guard's prefix conflicts with a source of locks; None if it does not."""
    return (yield from find_conflict(conflicts_of_guard(layout.prefix), _ask))


def _ask(request: Any) -> Operations:
    return (yield request)


def _name(resource: str) -> str:
    return "the record of the floors" if resource == FLOORS else f"the mark of resource {resource!r}"


def _decode_stored(found: Any) -> StoredValue:
    return StoredValue(found[0].value, found[0].mod_revision) if found else StoredValue(None, 0)
