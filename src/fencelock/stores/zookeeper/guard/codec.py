"""The operations of a guard at ZooKeeper, and where it keeps what: pure.

    <base>/<resource>                              the guarded nodes of a resource: this node, and all below it
    <base>/.fencelock/marks/<resource>             its mark
    <base>/.fencelock/marks/<resource>/<digest>    the digest of the mark that is stored
    <base>/.fencelock/floors                       the floors of purged marks, by their sources
    <base>/.fencelock/floors/<digest>              the digest of the floors that are stored
    <base>/.fencelock/audit/<number>               what operators did, in order
    <base>/.fencelock/effects/<resource>/<key>     a job that is done once (`once=`, `fencelock.dispatch`)

ZooKeeper compares versions and never values, and versions come again: on servers that were restored from older data,
and for a node that was deleted and created again. So each mark has a child named after its digest, which is replaced
together with the mark, and a block relies on both. The same is true of the floors. It cannot compare that a node is
missing either, so the floors' node is created, empty, before the first mark that relies on them.

Each operation is a call of the guard's client. Promise: names are escaped, so two resources never share a node.
Never: a decision about a token.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError, NotEmptyError
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData
from kazoo.security import ACL, Permissions

from fencelock.errors import GuardError
from fencelock.protocol import guard_requests as ask
from fencelock.stores.encoding import RESERVED, escape_name, unescape_name
from fencelock.stores.optimistic.effects import Operations
from fencelock.stores.optimistic.purging import PurgingGuardCodec
from fencelock.stores.optimistic.stored_values import FLOORS, PendingChanges, StoredValue, encode_entry
from fencelock.stores.zookeeper.guard.block import ANY_VERSION, ZooKeeperCondition, ZooKeeperTransaction, is_cause
from fencelock.stores.zookeeper.guard.colocated import ZooKeeperColocatedLocks
from fencelock.stores.zookeeper.source.layout import ZooKeeperLayout

_SEQUENTIAL = 2
_DIGEST_CHARACTERS = 32
_READ_AT_ONCE = 500
"""Nodes that are read in one round trip."""


class ZooKeeperGuardLayout(NamedTuple):
    """Where a guard keeps what, below its base."""

    base: str

    @property
    def marks(self) -> str:
        """The parent of all marks."""
        return f"{self.base}/{RESERVED}/marks"

    @property
    def audit(self) -> str:
        """The parent of all audit entries."""
        return f"{self.base}/{RESERVED}/audit"

    @property
    def floors(self) -> str:
        """The node of the floors."""
        return f"{self.base}/{RESERVED}/floors"

    def mark(self, resource: str) -> str:
        """Return the node of a mark; of the floors for FLOORS."""
        return self.floors if resource == FLOORS else f"{self.marks}/{escape_name(resource)}"

    def digest_node(self, resource: str, value: bytes) -> str:
        """Return the child of a mark that is named after the digest of its value."""
        return f"{self.mark(resource)}/{sha256(value).hexdigest()[:_DIGEST_CHARACTERS]}"

    @property
    def all_effects(self) -> str:
        """The parent of the parents of all effects."""
        return f"{self.base}/{RESERVED}/effects"

    def effects(self, resource: str) -> str:
        """Return the parent of a resource's effects."""
        return f"{self.all_effects}/{escape_name(resource)}"

    def effect(self, resource: str, key: str) -> str:
        """Return the node of an effect."""
        return f"{self.effects(resource)}/{escape_name(key)}"

    def root(self, resource: str) -> str:
        """Return the node at and below which a resource's guarded nodes are."""
        return f"{self.base}/{escape_name(resource)}"


class ZooKeeperGuardCodec(PurgingGuardCodec):
    """The operations of one connection, over a client that other connections share."""

    def __init__(self, url: str, layout: ZooKeeperGuardLayout, locks: ZooKeeperColocatedLocks | None) -> None:
        super().__init__(url)
        self._layout = layout
        self._locks = locks
        self._digest_nodes: dict[str, list[str]] = {}
        """The digest nodes of marks, by resource, as of the last read."""
        self._session: object = None
        """The session of that read."""

    def _read(self, resources: Iterable[str]) -> Operations:
        names = tuple(resources)
        paths = [self._layout.mark(name) for name in names]
        found, below, self._session = yield lambda client: (*client.read_with_children(paths), client.session)
        self._digest_nodes.update(zip(names, below, strict=True))
        # The node of the floors is empty until the first purge.
        return {name: one if one.value else one._replace(value=None) for name, one in zip(names, found, strict=True)}

    def _read_all(self) -> Operations:
        names: list[str] = [FLOORS, *(yield from self._read_names())]
        found: dict[str, StoredValue] = {}
        for start in range(0, len(names), _READ_AT_ONCE):
            found |= yield from self._read(names[start : start + _READ_AT_ONCE])
        return found

    def _read_names(self) -> Operations:
        children: list[str] = yield lambda client: client.child_names(self._layout.marks)
        return list(filter(None, map(unescape_name, children)))

    def _find_limited(self, resources: Collection[str]) -> Operations:
        """Return those whose access list names a writer who may not create marks: an operator created them."""
        paths = [self._layout.marks, *map(self._layout.mark, resources)]
        lists: list[list[ACL]] = yield lambda client: client.get_access_lists(paths)
        makers = _users(lists[0], Permissions.CREATE)
        if ("world", "anyone") in makers:
            return set()
        return {
            name for name, acls in zip(resources, lists[1:], strict=True) if _users(acls, Permissions.WRITE) - makers
        }

    def _find_conflict(self) -> Operations:
        """Check the base itself only: below a source's base, no node of a guard counts as part of a queue."""
        record = ZooKeeperLayout(self._layout.base).source
        found: list[StoredValue] = yield lambda client: client.read([record])
        return "is the place of a source of locks" if found[0].value is not None else None

    def _write(self, changes: PendingChanges) -> Operations:
        is_creating = any(changes.seen[name].value is None for name in changes.writes)
        if is_creating or changes.entries or changes.relies_on_floors:
            # Outside of the `multi`, which would be refused where one of them exists already.
            yield lambda client: client.make(self._layout.marks, self._layout.audit, self._layout.floors)
        results: list[Any] = yield lambda client: client.commit(
            [*(one for _, one in self._operations(changes, client.acl)), *self._entries(changes, client.acl)]
        )
        for (name, operation), result in zip(self._operations(changes, []), results, strict=False):
            if isinstance(result, NotEmptyError) and operation.path != self._layout.mark(name):
                raise _foreign(name, operation.path)
            # A mark that this user may not write has not changed.
            if is_cause(result) and not isinstance(result, NoAuthError):
                raise ask.ConflictError(f"{_name(name)} has changed")
        for result in results:
            if is_cause(result):
                raise result
        return changes.seen | {name: self._written(name, changes) for name in changes.writes}

    def _written(self, name: str, changes: PendingChanges) -> StoredValue:
        """Return what a mark is now that `_writing` was done."""
        value, before = changes.writes[name], changes.seen[name]
        self._digest_nodes[name] = [] if value is None else [self._layout.digest_node(name, value)]
        is_missing = before.value is None and name != FLOORS
        return StoredValue(value, 0 if is_missing else before.version + 1)

    def _entries(self, changes: PendingChanges, acl: Any) -> Iterator[Any]:
        for entry in changes.entries:
            yield Create(f"{self._layout.audit}/", encode_entry(entry), acl, _SEQUENTIAL)

    def _operations(self, changes: PendingChanges, acl: Any) -> Iterator[tuple[str, Any]]:
        """Yield what compares and writes each mark and the floors, with the name that it is about."""
        for name, stored in changes.seen.items():
            if name in changes.writes:
                operations = self._writing(name, stored, changes.writes[name], acl)
            elif stored.value is not None or name == FLOORS:
                operations = (CheckVersion(one.path, one.version) for one in self._unchanged(name, stored))
            else:
                # ZooKeeper cannot compare that a node is still missing. A mark that is not created does not matter.
                continue
            yield from ((name, one) for one in operations)

    def _writing(self, name: str, stored: StoredValue, value: bytes | None, acl: Any) -> Iterator[Any]:
        """Yield the operations that write or delete a mark, and leave it with its own digest node only."""
        path = self._layout.mark(name)
        # The children first: ZooKeeper deletes no node that has any.
        for old in self._digest_nodes[name]:
            yield Delete(old, ANY_VERSION)
        if value is None:
            yield Delete(path, stored.version)
            return
        is_missing = stored.value is None and name != FLOORS
        yield Create(path, value, acl, 0) if is_missing else SetData(path, value, stored.version)
        yield Create(self._layout.digest_node(name, value), b"", acl, 0)

    def _open_work(self, request: ask.Open, seen: Mapping[str, StoredValue]) -> Operations:
        conditions = [one for name, stored in seen.items() for one in self._unchanged(name, stored)]
        if self._locks is not None:
            conditions += yield from self._locks.conditions(request.sequencer)
        roots = {name: self._layout.root(name) for name in request.resources}
        return (yield lambda client: ZooKeeperTransaction(client, self._session, roots, conditions))

    def _unchanged(self, name: str, stored: StoredValue) -> Iterator[ZooKeeperCondition]:
        """Yield the conditions that hold as long as the mark is the one that was read."""
        what = _name(name)
        yield ZooKeeperCondition(self._layout.mark(name), stored.version, what)
        digest_node = self._layout.digest_node(name, stored.value or b"")
        # An operator who wrote a mark by hand has created no such node; the next seal creates it.
        if digest_node in self._digest_nodes[name]:
            yield ZooKeeperCondition(digest_node, ANY_VERSION, what)

    def _write_work(self, work: ZooKeeperTransaction) -> Operations:
        request = work.request()
        work.check_answer((yield lambda client: client.commit(request.operations)))

    def _effect_ids(self) -> Operations:
        found = []
        parent = self._layout.all_effects
        for name in (yield lambda client: client.child_names(parent)):
            if (resource := unescape_name(name)) is not None:
                below = self._layout.effects(resource)
                keys: list[str] = yield lambda client, below=below: client.child_names(below)
                found += [(resource, key) for key in map(unescape_name, keys) if key is not None]
        return found

    def _read_effect_value(self, resource: str, key: str) -> Operations:
        path = self._layout.effect(resource, key)
        found: list[StoredValue] = yield lambda client: client.read([path])
        return found[0]

    def _rely_on_effect(self, resource: str, key: str, stored: StoredValue) -> None:
        if stored.value is not None:
            # That it is missing cannot be compared. Creating it does that.
            self.work.rely_on(self._layout.effect(resource, key), stored.version, f"effect {key!r}")

    def _keep_effect(self, resource: str, key: str, value: bytes | None, before: StoredValue) -> Operations:
        is_missing = before.value is None
        if is_missing and value is not None:
            yield lambda client: client.make(self._layout.effects(resource))
        self.work.keep(self._layout.effect(resource, key), value, None if is_missing else before.version)

    def _delete_effect(self, resource: str, key: str, stored: StoredValue) -> Operations:
        path = self._layout.effect(resource, key)
        results: list[Any] = yield lambda client: client.commit([Delete(path, stored.version)])
        for result in results:
            if is_cause(result) and not isinstance(result, (BadVersionError, NoNodeError)):
                raise result
        return not any(map(is_cause, results))


def _foreign(name: str, path: str) -> GuardError:
    return GuardError(
        f"{_name(name)} cannot be written, because its child {path} has nodes below it, and fencelock makes none "
        f"there: find out who did, and delete {path} with all that is below it"
    )


def _name(resource: str) -> str:
    return "the record of the floors" if resource == FLOORS else f"the mark of resource {resource!r}"


def _users(acls: Iterable[ACL], permission: int) -> set[tuple[str, str]]:
    return {(acl.id.scheme, acl.id.id) for acl in acls if acl.perms & permission}
