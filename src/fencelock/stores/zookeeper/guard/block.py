"""What `guard.transaction(lease)` yields at ZooKeeper: reads at once, and all writes in one `multi` at the block's end.

Promise: the `multi` is refused as a whole if the mark of a resource, or a node that the block has read, has changed
since. Nothing outside the guard's resources is read or written. Paths are whole paths, methods have kazoo's names and
some of their arguments, and kazoo's errors about a node pass unchanged.
Never: a write before the end of the block.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from kazoo.exceptions import KazooException, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData, Transaction
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL

from fencelock.errors import ConfigError, SourceUnavailableError
from fencelock.protocol.guard_requests import ConflictError
from fencelock.stores.optimistic.write_buffer import WriteBuffer, outside_error, too_large_error, unstored_error
from fencelock.stores.zookeeper.connection.client import MAX_REQUEST_BYTES

ANY_VERSION = -1


class BlockClient(Protocol):
    """What a block needs of the guard's client."""

    @property
    def session(self) -> object:
        """The id of the session: a read in a session is never older than an earlier read or write in the same
        session.
        """

    def get(self, path: str) -> tuple[bytes, ZnodeStat]:
        """Return a node's value."""

    def exists(self, path: str) -> ZnodeStat | None:
        """Return what is known of a node."""

    def get_children(self, path: str) -> list[str]:
        """Return the names of a node's children."""

    @property
    def acl(self) -> list[ACL]:
        """The access list of the nodes that it creates."""


class ZooKeeperCondition(NamedTuple):
    """A node that must be unchanged: its path, its version, and its description."""

    path: str
    version: int
    name: str


class ZooKeeperTransaction(WriteBuffer):
    """One guarded block's reads and writes. One thread at a time.

    The results of `get` and `exists` are compared at the end: if another client has written the node since, nothing of
    the block is written. ZooKeeper cannot compare that a node is missing, which children a node has, and whether a node
    was deleted and created again. Of fenced writers, only another block of the same lease can change these meanwhile.
    """

    def __init__(
        self, client: BlockClient, session: object, roots: Mapping[str, str], conditions: Iterable[ZooKeeperCondition]
    ) -> None:
        super().__init__()
        self._client = client
        self._session = session
        self._roots = roots
        self._guard_conditions = list(conditions)
        self._read: dict[str, ZooKeeperCondition] = {}
        self._written: set[str] = set()
        self._writes: list[Any] = []
        self._own_writes: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<ZooKeeperTransaction of {', '.join(map(repr, self._roots))}: {len(self._writes)} writes>"

    # --- reads --------------------------------------------------------------------------------------------------------
    def get(self, path: str) -> tuple[bytes, ZnodeStat]:
        """Return a node's value and its stat; kazoo's NoNodeError if it does not exist."""
        self._check_readable(path)
        value, stat = self._client.get(path)
        self._remember(path, stat)
        return value, stat

    def exists(self, path: str) -> ZnodeStat | None:
        """Return a node's stat; None if the node does not exist."""
        self._check_readable(path)
        stat = self._client.exists(path)
        self._remember(path, stat)
        return stat

    def get_children(self, path: str) -> list[str]:
        """Return the names of a node's children; kazoo's NoNodeError if there is no such node."""
        self._check_readable(path)
        if any(written.rpartition("/")[0] == path for written in self._written):
            raise unstored_error(f"node {path!r}")
        names = self._client.get_children(path)
        self._check_session()
        return names

    def _remember(self, path: str, stat: ZnodeStat | None) -> None:
        self._check_session()
        if stat is not None:
            # The first read counts: a later one may show what another client wrote since, and would hide that change.
            self._read.setdefault(
                path, ZooKeeperCondition(path, stat.version, f"node {path!r}, which the block had read,")
            )

    def _check_session(self) -> None:
        """Raise SourceUnavailableError if the session has changed.

        A server of a later session may not have heard of this tenure's seal yet.
        """
        if self._client.session != self._session:
            raise SourceUnavailableError(
                "the session with ZooKeeper ended inside the guarded block, so what is read now may be older than its "
                "seal: nothing of it is written. Start the block again"
            )

    # --- writes -------------------------------------------------------------------------------------------------------
    def create(self, path: str, value: bytes = b"", acl: list[ACL] | None = None) -> None:
        """Create a node at the end of the block, which then may raise kazoo's NodeExistsError or NoNodeError."""
        self._write(path, Create(path, _checked_value(value), self._client.acl if acl is None else acl, 0))

    def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> None:
        """Set a node's value at the end of the block, which then may raise kazoo's NoNodeError or BadVersionError."""
        self._write(path, SetData(path, _checked_value(value), version))

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node without children at the end of the block.

        The end may raise kazoo's NotEmptyError, NoNodeError or BadVersionError.
        """
        self._write(path, Delete(path, version))

    def check(self, path: str, version: int) -> None:
        """Refuse the block if a node, wherever it is, has another version at the end."""
        self._check_open()
        _check_path(path)
        self._writes.append(_sendable(CheckVersion(path, version)))

    def _write(self, path: str, operation: Any) -> None:
        self._check_within(path)
        self._writes.append(_sendable(operation))
        self._written.add(path)

    # --- the guard's own ----------------------------------------------------------------------------------------------
    def rely_on(self, path: str, version: int, name: str) -> None:
        """Refuse the block if a node of the guard's own has another version at its end."""
        self._check_session()
        self._guard_conditions.append(ZooKeeperCondition(path, version, name))

    def keep(self, path: str, value: bytes | None, before: int | None) -> None:
        """Write a node of the guard's own at the end of the block, or delete it (None). `before`: its version, None to
        create it.
        """
        if value is None and before is None:
            self._own_writes.pop(path, None)
        elif value is None:
            self._own_writes[path] = Delete(path, before)
        elif before is None:
            self._own_writes[path] = Create(path, value, self._client.acl, 0)
        else:
            self._own_writes[path] = SetData(path, value, before)

    # --- what is allowed ----------------------------------------------------------------------------------------------
    def _check_readable(self, path: str) -> None:
        self._check_within(path)
        if path in self._written:
            raise unstored_error(f"node {path!r}")

    def _check_within(self, path: str) -> None:
        self._check_open()
        _check_path(path)
        if not any(path == root or path.startswith(f"{root}/") for root in self._roots.values()):
            roots = (f"{root} and below for resource {name!r}" for name, root in self._roots.items())
            raise outside_error(f"node {path!r}", roots)

    # --- the end ------------------------------------------------------------------------------------------------------
    def request(self) -> Transaction:
        """Return the one request that writes the block; GuardError if servers take none so large by default."""
        conditions = [CheckVersion(one.path, one.version) for one in self._conditions()]
        # In this order, because `check_answer` tells what was refused by its position.
        request = Transaction([*conditions, *self._own_writes.values(), *self._writes])
        if (size_bytes := len(request.serialize())) > MAX_REQUEST_BYTES:
            does = f"writes {size_bytes} bytes in {len(self._writes)} operations"
            raise too_large_error(does, f"ZooKeeper takes {MAX_REQUEST_BYTES} in one request by default")
        return request

    def check_answer(self, results: list[Any]) -> None:
        """Raise ConflictError if something had changed, or kazoo's own error about a write."""
        for one, result in zip(self._conditions(), results, strict=False):
            if is_cause(result):
                raise ConflictError(f"{one.name} has changed")
        behind = len(self._conditions())
        if any(is_cause(result) for result in results[behind : behind + len(self._own_writes)]):
            raise ConflictError("an effect that the block had looked for has changed")
        for result in results:
            if is_cause(result):
                result.add_note("It was met at the end of a guarded block, of which nothing was written.")
                raise result

    def _conditions(self) -> list[ZooKeeperCondition]:
        return [*self._guard_conditions, *self._read.values()]


def is_cause(result: Any) -> bool:
    """Tell whether this part of an answer is why a `multi` was refused; the other parts only follow it."""
    return isinstance(result, KazooException) and not isinstance(result, (RolledBackError, RuntimeInconsistency))


def _check_path(path: str) -> None:
    """Raise ConfigError unless the path is in its only canonical form."""
    if not isinstance(path, str):
        raise ConfigError(f"a path must be str, not {type(path).__name__}")
    try:
        path.encode()
    except UnicodeEncodeError:
        # Otherwise kazoo would fail in its own thread, and the thread would end.
        raise ConfigError(f"path {path!r} contains a lone surrogate: use text that UTF-8 can carry") from None
    parts = path.split("/")
    if not path or parts[0] or any(part in ("", ".", "..") for part in parts[1:]):
        raise ConfigError(f"{path!r} is not the whole path of a node: write it as /a/b, without //, . and ..")


def _sendable(operation: Any) -> Any:
    """Return an operation if kazoo can write it; ConfigError if a part has a wrong type."""
    try:
        Transaction([operation]).serialize()
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"this cannot be sent to ZooKeeper ({error}): a path is text, a version is an int of 32 bits, an access "
            f"list a list of kazoo's ACL"
        ) from error
    return operation


def _checked_value(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ConfigError(f"a node's value must be bytes, not {type(value).__name__}")
    return value
