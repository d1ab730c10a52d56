"""The operations of a guard at ZooKeeper, and where it keeps what: pure.

    <base>/<resource>                              the guarded nodes of a resource: this node, and all below it
    <base>/.fencelock/marks/<resource>             its mark
    <base>/.fencelock/marks/<resource>/<digest>    the digest of the mark that is stored
    <base>/.fencelock/audit/<number>               what operators did, in order
    <base>/.fencelock/effects/<resource>/<key>     a job that is done once (`once=`, `fencelock.dispatch`)

ZooKeeper compares versions and never values, and versions come again: on servers that were restored from older data,
and for a node that was deleted and created again. So each mark has a child named after its digest, which is replaced
together with the mark, and a block relies on both.

Each operation is a call of the guard's client. Promise: names are escaped, so two resources never share a node.
Never: a decision about a token.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData

from fencelock.protocol import guard_requests as ask
from fencelock.stores.quorum.effects import Operations, StoredValue
from fencelock.stores.quorum.encoding import RESERVED, escape_name, unescape_name
from fencelock.stores.quorum.guard_codec import (
    OptimisticGuardCodec,
    PendingChanges,
    encode_entry,
    encode_mark,
)
from fencelock.stores.zookeeper.guard.block import ANY_VERSION, ZooKeeperCondition, ZooKeeperTransaction, is_cause
from fencelock.stores.zookeeper.guard.colocated import ZooKeeperColocatedLocks
from fencelock.stores.zookeeper.source.layout import ZooKeeperLayout

_SEQUENTIAL = 2
_DIGEST_CHARACTERS = 32


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

    def mark(self, resource: str) -> str:
        """Return the node of a mark."""
        return f"{self.marks}/{escape_name(resource)}"

    def digest_node(self, resource: str, value: bytes) -> str:
        """Return the child of a mark that is named after the mark's digest."""
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


class ZooKeeperGuardCodec(OptimisticGuardCodec):
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
        return dict(zip(names, found, strict=True))

    def _read_all(self) -> Operations:
        parent = self._layout.marks
        children: list[str] = yield lambda client: client.child_names(parent)
        return (yield from self._read(filter(None, map(unescape_name, children))))

    def _find_conflict(self) -> Operations:
        """Check the base itself only: below a source's base, no node of a guard counts as part of a queue."""
        record = ZooKeeperLayout(self._layout.base).source
        found: list[StoredValue] = yield lambda client: client.read([record])
        return "is the place of a source of locks" if found[0].value is not None else None

    def _write(self, changes: PendingChanges) -> Operations:
        if any(changes.seen[name].value is None for name in changes.marks) or changes.entries:
            yield lambda client: client.make(self._layout.marks, self._layout.audit)
        # ZooKeeper cannot compare that a node is still missing, but creating it does. A mark that is not created does
        # not matter.
        compared = [name for name, stored in changes.seen.items() if name in changes.marks or stored.value is not None]
        results: list[Any] = yield lambda client: client.commit(self._operations(changes, compared, client.acl))
        for name, result in zip(compared, results, strict=False):
            # A mark that this user may not write has not changed.
            if is_cause(result) and not isinstance(result, NoAuthError):
                raise ask.ConflictError(f"the mark of resource {name!r} has changed")
        for result in results:
            if is_cause(result):
                raise result

    def _operations(self, changes: PendingChanges, compared: Iterable[str], acl: Any) -> list[Any]:
        """Return one operation for each of these marks, in order, and then the others."""
        marks = [self._operation(name, changes.seen[name], changes, acl) for name in compared]
        audit = f"{self._layout.audit}/"
        entries = [Create(audit, encode_entry(entry), acl, _SEQUENTIAL) for entry in changes.entries]
        return [*marks, *self._replace_digest_nodes(changes, acl), *entries]

    def _operation(self, name: str, stored: StoredValue, changes: PendingChanges, acl: Any) -> Any:
        path = self._layout.mark(name)
        mark = changes.marks.get(name)
        if mark is None:
            return CheckVersion(path, stored.version)
        if stored.value is None:
            return Create(path, encode_mark(mark), acl, 0)
        return SetData(path, encode_mark(mark), stored.version)

    def _replace_digest_nodes(self, changes: PendingChanges, acl: Any) -> Iterator[Any]:
        """Yield the operations that leave each new mark with its own digest node only."""
        for name, mark in changes.marks.items():
            for old in self._digest_nodes[name]:
                yield Delete(old, ANY_VERSION)
            yield Create(self._layout.digest_node(name, encode_mark(mark)), b"", acl, 0)

    def _open_work(self, request: ask.Open, seen: Mapping[str, StoredValue]) -> Operations:
        conditions = [one for name, stored in seen.items() for one in self._unchanged(name, stored)]
        if self._locks is not None:
            conditions += yield from self._locks.conditions(request.sequencer)
        roots = {name: self._layout.root(name) for name in request.resources}
        return (yield lambda client: ZooKeeperTransaction(client, self._session, roots, conditions))

    def _unchanged(self, name: str, stored: StoredValue) -> Iterator[ZooKeeperCondition]:
        """Yield the conditions that hold as long as the mark is the one that was read."""
        what = f"the mark of resource {name!r}"
        yield ZooKeeperCondition(self._layout.mark(name), stored.version, what)
        digest_node = self._layout.digest_node(name, stored.value or b"")
        # An operator who wrote a mark by hand has created no such node; the next seal creates it.
        if digest_node in self._digest_nodes[name]:
            yield ZooKeeperCondition(digest_node, ANY_VERSION, what)

    def _write_work(self, work: ZooKeeperTransaction) -> Operations:
        request = work.request()
        work.check_answer((yield lambda client: client.commit(request.operations)))

    def _effect_places(self) -> Operations:
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
