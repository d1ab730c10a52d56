"""What `guard.transaction(lease)` yields at etcd: reads at once, and all writes in one `Txn` at the block's end.

Promise: the `Txn` compares the marks, the lock's own key if the guard knows it, and everything that the block has read.
If one of them has changed since, nothing is written. Nothing outside the guard's resources is read or written.
Never: a write before the end of the block.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fencelock.errors import ConfigError
from fencelock.protocol.guard_requests import ConflictError
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.wire import (
    delete,
    get,
    get_prefix,
    has_value,
    prefix_end,
    put,
    txn,
    was_modified,
)
from fencelock.stores.optimistic.write_buffer import WriteBuffer, outside_error, too_large_error, unstored_error

MAX_OPERATIONS = 128
"""etcd's --max-txn-ops: the number of comparisons, and of writes, that one Txn may have by default."""
MAX_REQUEST_BYTES = 1_500_000
"""etcd's --max-request-bytes is 1 572 864 by default."""
_VERSION, _CREATE, _MOD, _VALUE = range(4)
_LESS = 2


class EtcdCondition(NamedTuple):
    """Something that must be unchanged: how etcd compares it, the read to send if it has changed, and a function that
    turns this read into a description of the change; None if nothing has changed.
    """

    compare: Any
    read: Any
    describe_change: Callable[[Sequence[Any]], str | None]


def unmodified(key: bytes, revision: int, name: str) -> EtcdCondition:
    """Return the condition that a key was not written since this revision; 0: that it does not exist."""

    def describe_change(found: Sequence[Any]) -> str | None:
        now = found[0].mod_revision if found else 0
        return None if now == revision else f"{name} has changed"

    return EtcdCondition(was_modified(key, revision), read_metadata(key), describe_change)


def unchanged(key: bytes, value: bytes | None, name: str) -> EtcdCondition:
    """Return the condition that a key still has the value that was read; None: that it still does not exist.

    By value, because in a cluster that was restored from older data revisions come again, and the same lease may write
    its mark again.
    """
    if value is None:
        return unmodified(key, 0, name)

    def describe_change(found: Sequence[Any]) -> str | None:
        return None if found and found[0].value == value else f"{name} has changed"

    return EtcdCondition(has_value(key, value), get(key), describe_change)


class Area(NamedTuple):
    """The part of the keys that belongs to one resource, and the resource's mark as the block found it.

    A block that deletes keys also writes the mark again, unchanged. Another block of the same lease that has read
    behind a prefix notices the deletion by that: etcd's comparison of a range does not show a key that is gone.
    """

    prefix: bytes
    mark: bytes
    value: bytes
    revision: int

    def nothing_deleted(self, name: str) -> EtcdCondition:
        """Return the condition that no other block has deleted a key of the resource."""
        return unmodified(self.mark, self.revision, f"resource {name!r}, in which another block has deleted,")


def read_metadata(key: bytes, range_end: bytes = b"", since: int = 0) -> Any:
    """Read everything but the value of one key, or of the first key in a range that was written since a revision."""
    request = wire.RangeRequest(key=key, range_end=range_end, keys_only=True, min_mod_revision=since, limit=1)
    return wire.RequestOp(request_range=request)


class EtcdWriteBuffer(WriteBuffer):
    """The reads and writes that both kinds of transactions collect."""

    def __init__(self, areas: Mapping[str, Area], conditions: Iterable[EtcdCondition]) -> None:
        super().__init__()
        self._areas = areas
        self._conditions: dict[Any, EtcdCondition] = dict(enumerate(conditions))
        self._writes: dict[bytes, bytes | None] = {}
        self._deleted_prefixes: list[bytes] = []
        self._resources_with_deletes: set[str] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(repr, self._areas))}: {len(self._writes)} writes>"

    # --- writes -------------------------------------------------------------------------------------------------------
    def put(self, key: str | bytes, value: str | bytes) -> None:
        """Write a key at the end of the block."""
        self._writes[self._checked_key(key)] = _bytes(value, "value")

    def delete(self, key: str | bytes) -> None:
        """Delete a key at the end of the block, if it exists."""
        where = self._checked_key(key)
        self._writes[where] = None
        self._resources_with_deletes.add(self._resource(where))

    def delete_prefix(self, prefix: str | bytes) -> None:
        """At the end of the block, delete all keys that begin with the prefix, no matter which client wrote them."""
        start = self._checked_key(prefix)
        self._writes = {key: value for key, value in self._writes.items() if not key.startswith(start)}
        self._deleted_prefixes.append(start)
        self._resources_with_deletes.add(self._resource(start))

    def compare(
        self,
        key: str | bytes,
        *,
        value: str | bytes | None = None,
        version: int | None = None,
        create_revision: int | None = None,
        mod_revision: int | None = None,
    ) -> None:
        """Refuse the block unless a key, wherever it is, has this property at the end of the block.

        A key that does not exist has version and revisions 0.
        """
        self._check_open()
        numbers = {"version": version, "create_revision": create_revision, "mod_revision": mod_revision}
        given = {name: number for name, number in numbers.items() if number is not None}
        if len(given) + (value is not None) != 1:
            raise ConfigError("compare needs one of value, version, create_revision and mod_revision")
        where = _bytes(key, "key")
        if value is not None:
            compare = wire.Compare(target=_VALUE, key=where, value=_bytes(value, "value"))
        else:
            ((name, number),) = given.items()
            compare = _number_is(where, name, number)
        self._conditions["compared", compare.SerializeToString()] = EtcdCondition(
            compare, read_metadata(where), lambda _: None
        )

    # --- reads --------------------------------------------------------------------------------------------------------
    def _encode_get(self, key: str | bytes) -> Any:
        where = self._readable(self._checked_key(key))
        return txn((), (get(where),))

    def _decode_get(self, key: str | bytes, answer: Any) -> bytes | None:
        where = _bytes(key, "key")
        found = answer.responses[0].response_range.kvs
        revision = found[0].mod_revision if found else 0
        # The first read counts: a later one may show what another client wrote since, and would hide that change.
        self._conditions.setdefault(
            where, unmodified(where, revision, f"key {_shown(where)}, which the block had read,")
        )
        return found[0].value if found else None

    def _encode_get_prefix(self, prefix: str | bytes) -> Any:
        start = self._checked_key(prefix)
        if any(self._overlaps(start, key) for key in (*self._writes, *self._deleted_prefixes)):
            raise unstored_error(_shown(start))
        return txn((), (get_prefix(start),))

    def _decode_get_prefix(self, prefix: str | bytes, answer: Any) -> dict[bytes, bytes]:
        start = _bytes(prefix, "prefix")
        revision = answer.header.revision
        end = prefix_end(start)
        # etcd compares each key of a range, so this also fails for a key that was created since.
        compare = wire.Compare(target=_MOD, result=_LESS, key=start, range_end=end, mod_revision=revision + 1)
        name = f"a key that begins with {_shown(start)}, which the block had read,"
        read = read_metadata(start, end, revision + 1)
        condition = EtcdCondition(compare, read, lambda found: f"{name} has changed" if found else None)
        self._conditions.setdefault((start, end), condition)
        resource = self._resource(start)
        self._conditions.setdefault(("thinned", resource), self._areas[resource].nothing_deleted(resource))
        return {one.key: one.value for one in answer.responses[0].response_range.kvs}

    def _readable(self, key: bytes) -> bytes:
        if key in self._writes or any(key.startswith(prefix) for prefix in self._deleted_prefixes):
            raise unstored_error(_shown(key))
        return key

    def _overlaps(self, prefix: bytes, written: bytes) -> bool:
        return written.startswith(prefix) or (written in self._deleted_prefixes and prefix.startswith(written))

    # --- the guard's own ----------------------------------------------------------------------------------------------
    def rely_on(self, key: bytes, value: bytes | None, name: str) -> None:
        """Refuse the block if a key of the guard's own has another value at its end, or exists by then."""
        self._conditions[key] = unchanged(key, value, name)

    def keep(self, key: bytes, value: bytes | None) -> None:
        """Write a key of the guard's own at the end of the block, or delete it."""
        self._writes[key] = value

    # --- what is allowed ----------------------------------------------------------------------------------------------
    def _checked_key(self, key: str | bytes) -> bytes:
        """Return the key or prefix as bytes; GuardError if it is outside the guard's resources."""
        self._check_open()
        where = _bytes(key, "key")
        if not any(where.startswith(area.prefix) for area in self._areas.values()):
            areas = (f"{_shown(area.prefix)}… for resource {name!r}" for name, area in self._areas.items())
            raise outside_error(f"key {_shown(where)}", areas)
        return where

    def _resource(self, key: bytes) -> str:
        return next(name for name, area in self._areas.items() if key.startswith(area.prefix))

    # --- the end ------------------------------------------------------------------------------------------------------
    @property
    def conditions(self) -> list[EtcdCondition]:
        """What must be unchanged, in the order in which it is compared."""
        return list(self._conditions.values())

    def request(self) -> Any:
        """Return the one Txn that writes the block; GuardError if etcd takes none so large by default."""
        conditions = self.conditions
        writes = list(self._operations())
        for count, what in ((len(conditions), "comparisons of what it has read"), (len(writes), "writes")):
            if count > MAX_OPERATIONS:
                raise too_large_error(
                    f"makes {count} {what}", f"etcd takes {MAX_OPERATIONS} of them in one transaction by default"
                )
        request = txn((one.compare for one in conditions), writes, (one.read for one in conditions))
        if (size_bytes := request.ByteSize()) > MAX_REQUEST_BYTES:
            raise too_large_error(
                f"needs {size_bytes} bytes", f"etcd takes {MAX_REQUEST_BYTES} in one request by default"
            )
        return request

    def _operations(self) -> Iterable[Any]:
        """Yield the writes. etcd refuses a key that is both written and in a deleted range, so ranges are split around
        such keys.
        """
        written = sorted(key for key, value in self._writes.items() if value is not None)
        for prefix in self._deleted_prefixes:
            start = prefix
            for key in (key for key in written if key.startswith(prefix)):
                if start < key:
                    yield delete(start, key)
                start = key + b"\0"
            yield delete(start, prefix_end(prefix))
        for name in self._resources_with_deletes:
            # The mark as it is: by its revision a block that has read behind a prefix notices the deletion.
            yield put(self._areas[name].mark, self._areas[name].value)
        for key, value in self._writes.items():
            yield delete(key) if value is None else put(key, value)


def raise_conflict(answer: Any, conditions: Iterable[EtcdCondition]) -> None:
    """Raise ConflictError if one of these conditions did not hold when etcd ran the Txn."""
    if answer.succeeded:
        return
    found = [one.response_range.kvs for one in answer.responses]
    changes = (one.describe_change(kvs) for one, kvs in zip(conditions, found, strict=True))
    raise ConflictError(next(filter(None, changes), "a comparison that the block itself added does not hold"))


def _number_is(key: bytes, name: str, number: int) -> Any:
    target = {"version": _VERSION, "create_revision": _CREATE, "mod_revision": _MOD}
    try:
        return wire.Compare(target=target[name], key=key, **{name: number})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a {name} of etcd must be an int of 64 bits, not {number!r}") from error


def _bytes(text: str | bytes, what: str) -> bytes:
    if not isinstance(text, (str, bytes)):
        raise ConfigError(f"a {what} of etcd must be str or bytes, not {type(text).__name__}")
    try:
        return text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise ConfigError(
            f"a {what} of etcd contains a lone surrogate: use text that UTF-8 can carry, or bytes"
        ) from None


def _shown(key: bytes) -> str:
    return repr(key.decode("utf-8", "backslashreplace"))
