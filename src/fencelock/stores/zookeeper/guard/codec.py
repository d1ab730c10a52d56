"""What is said to ZooKeeper for each request of a guard, and where it keeps what: pure.

    <base>/<resource>                              the guarded nodes of a resource: this one, and all below it
    <base>/.fencelock/marks/<resource>             its mark
    <base>/.fencelock/marks/<resource>/<digest>    which mark that is
    <base>/.fencelock/audit/<number>               what operators did, in its order

ZooKeeper compares versions and never values, and versions come again: in servers that began from older data, and for a
node that was deleted and made anew. So a mark has a node that is called after it, which is exchanged with it, and a
block relies on both.

Each trip is a call with the guard's client. Promise: names are escaped, so that no two resources share a node. Never: a
decision about a token.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData

from fencelock.protocol import guard_requests as ask
from fencelock.stores.quorum.encoding import RESERVED, escape_name, unescape_name
from fencelock.stores.quorum.guard_codec import (
    Operations,
    OptimisticGuardCodec,
    PendingChanges,
    StoredValue,
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
        """Return the node that says which mark is stored."""
        return f"{self.mark(resource)}/{sha256(value).hexdigest()[:_DIGEST_CHARACTERS]}"

    def root(self, resource: str) -> str:
        """Return the node at and below which a resource's own nodes are."""
        return f"{self.base}/{escape_name(resource)}"


class ZooKeeperGuardCodec(OptimisticGuardCodec):
    """Over one client, which others use as well."""

    def __init__(self, url: str, layout: ZooKeeperGuardLayout, locks: ZooKeeperColocatedLocks | None) -> None:
        super().__init__(url)
        self._layout = layout
        self._locks = locks
        self._digest_nodes: dict[str, list[str]] = {}
        """The nodes below marks, by their resources, as they were read last."""
        self._session: object = None
        """In which that was."""

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
        """Only at the base itself: below a source's, no node of a guard is taken for one of a queue."""
        record = ZooKeeperLayout(self._layout.base).source
        found: list[StoredValue] = yield lambda client: client.read([record])
        return "is the place of a source of locks" if found[0].value is not None else None

    def _write(self, changes: PendingChanges) -> Operations:
        if any(changes.seen[name].value is None for name in changes.marks) or changes.entries:
            yield lambda client: client.make(self._layout.marks, self._layout.audit)
        # ZooKeeper cannot compare that a node is absent still: making it does; a mark that is not made does not matter.
        compared = [name for name, stored in changes.seen.items() if name in changes.marks or stored.value is not None]
        results: list[Any] = yield lambda client: client.commit(self._operations(changes, compared, client.acl))
        for name, result in zip(compared, results, strict=False):
            if is_cause(result):
                raise ask.ConflictError(f"the mark of resource {name!r} has changed")
        for result in results:
            if is_cause(result):
                raise result

    def _operations(self, changes: PendingChanges, compared: Iterable[str], acl: Any) -> list[Any]:
        """Return one operation for each of these marks, in their order, and then the others."""
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
        """Yield the operations after which only the nodes called after the new marks are below them."""
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
        """Yield what is as it was as long as a mark is the one that was read."""
        what = f"the mark of resource {name!r}"
        yield ZooKeeperCondition(self._layout.mark(name), stored.version, what)
        digest_node = self._layout.digest_node(name, stored.value or b"")
        # Whoever has written a mark by hand has made no such node; the next seal does.
        if digest_node in self._digest_nodes[name]:
            yield ZooKeeperCondition(digest_node, ANY_VERSION, what)

    def _write_work(self, work: ZooKeeperTransaction) -> Operations:
        request = work.request()
        work.check_answer((yield lambda client: client.commit(request.operations)))
