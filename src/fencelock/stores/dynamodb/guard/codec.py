"""The operations of a guard at DynamoDB, and where it keeps what in its table: pure.

    pk                    sk
    guard#<resource>      mark              its mark
    guard#<resource>      effect#<key>      a job that is done once (`once=`, `fencelock.dispatch`)
    floors                floors            the floors of purged marks, by their sources
    audit#<resource>      <time>#<id>       what operators did; `audit#` of no resource: what concerns none

A value is JSON, in the attribute `value`. IAM can limit a role to partitions, so each resource has one of its own.

Promise: names are escaped, so two resources never share a partition. A mark also has the id of the table in which it
was written: a table that was restored from a backup has another one, and a mark that may be older than what its
resource has promised admits nobody until an operator raises it.
Never: a decision about a token.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import uuid4

from fencelock.errors import GuardError
from fencelock.protocol import guard_requests as ask
from fencelock.protocol.guard_requests import AuditEntry, ConflictError
from fencelock.stores.dynamodb.guard.block import DynamoWriteBuffer
from fencelock.stores.dynamodb.guard.items import Attributes, Expression, ItemAction, is_equal, is_missing
from fencelock.stores.dynamodb.guard.transaction import transact
from fencelock.stores.dynamodb.requests import get_items, read_pages
from fencelock.stores.dynamodb.table import PARTITION, SORT, DynamoTables
from fencelock.stores.encoding import escape_name, unescape_name
from fencelock.stores.optimistic.effects import Operations
from fencelock.stores.optimistic.purging import PurgingGuardCodec
from fencelock.stores.optimistic.stored_values import FLOORS, PendingChanges, StoredValue, encode_entry

GUARD, AUDIT, FLOORS_PARTITION = "guard#", "audit#", "floors"
_MARK, _EFFECT = "mark", "effect#"
_VALUE, _TABLE_ID = "value", "table_id"
MakeWork = Callable[[Iterable[ItemAction]], DynamoWriteBuffer]


def partition_of(resource: str) -> str:
    """Return the partition of a resource's mark and effects."""
    return f"{GUARD}{escape_name(resource)}"


def _key(partition: str, sort: str) -> Attributes:
    return {PARTITION: {"S": partition}, SORT: {"S": sort}}


def _mark_key(resource: str) -> Attributes:
    """Return the key of a mark; of the floors for FLOORS."""
    if resource == FLOORS:
        return _key(FLOORS_PARTITION, FLOORS_PARTITION)
    return _key(partition_of(resource), _MARK)


def _effect_key(resource: str, key: str) -> Attributes:
    return _key(partition_of(resource), f"{_EFFECT}{key}")


def _resource_of(item: Attributes) -> str | None:
    """Return the resource whose item it is; None if the guard never writes this one."""
    return unescape_name(item[PARTITION]["S"].removeprefix(GUARD))


class DynamoGuardCodec(PurgingGuardCodec):
    """The operations of one connection."""

    def __init__(self, url: str, tables: DynamoTables, make_work: MakeWork) -> None:
        super().__init__(url)
        self._table = tables.own
        self._tables = tables
        self._make_work = make_work
        self._restored: set[str] = set()
        """The resources whose marks were written in another table, as this connection last read them."""
        self._table_id = ""
        """The table by which it told them: a mark is written with the same, however much later that is."""

    # --- marks --------------------------------------------------------------------------------------------------------
    def _read(self, resources: Iterable[str]) -> Operations:
        yield from self._tables.describe(self._table)
        keys = {name: _mark_key(name) for name in resources}
        items = yield from get_items(self._table, list(keys.values()))
        found = {(item[PARTITION]["S"], item[SORT]["S"]): item for item in items}
        seen = {name: found.get((key[PARTITION]["S"], key[SORT]["S"])) for name, key in keys.items()}
        return (yield from self._decoded(seen))

    def _read_all(self) -> Operations:
        floors = yield from self._read((FLOORS,))
        items = yield from self._scan("sk = :sort", {":sort": {"S": _MARK}})
        named = {name: item for item in items if (name := _resource_of(item))}
        return floors | (yield from self._decoded(named))

    def _decoded(self, items: Mapping[str, Attributes | None]) -> Operations:
        """Return the stored values of items, and remember which are from another table."""
        self._table_id = (yield from self._tables.describe(self._table)).table_id
        written_in = {name: item.get(_TABLE_ID, {}).get("S") for name, item in items.items() if item is not None}
        self._restored -= items.keys()
        self._restored |= {name for name, other in written_in.items() if other not in (None, self._table_id)}
        return {name: _stored_value(item) for name, item in items.items()}

    def _scan(self, condition: str, values: Attributes) -> Operations:
        asked = {"TableName": self._table, "FilterExpression": condition, "ExpressionAttributeValues": values}
        return (yield from read_pages("scan", asked))

    def _read_names(self) -> Operations:
        items = yield from self._scan("sk = :sort", {":sort": {"S": _MARK}})
        return list(filter(None, map(_resource_of, items)))

    def _find_limited(self, resources: Collection[str]) -> Operations:
        """Return none: a role's right is to a partition, whether or not that has items."""
        yield from ()
        return set()

    def _find_conflict(self) -> Operations:
        """Return None: a source in the same table has other partitions."""
        yield from ()

    def _find_traces(self, resource: str) -> Operations:
        """Return whether the audit of a resource, or an effect, shows that it had a mark."""
        for partition in (f"{AUDIT}{escape_name(resource)}", partition_of(resource)):
            asked = {
                "TableName": self._table,
                "KeyConditionExpression": "pk = :partition",
                "ExpressionAttributeValues": {":partition": {"S": partition}},
                "Limit": 1,
            }
            if (yield from read_pages("query", asked, 1)):
                return True
        return False

    def _write(self, changes: PendingChanges) -> Operations:
        actions = [self._unchanged(name, stored) for name, stored in changes.seen.items()]
        by_name = dict(zip(changes.seen, actions, strict=True))
        for name, value in changes.writes.items():
            self._change(by_name[name], value, None if name == FLOORS else self._table_id)
        actions += [self._entry(entry) for entry in changes.entries]
        yield from transact(actions)
        return changes.left(1)

    def _unchanged(self, name: str, stored: StoredValue) -> ItemAction:
        """Return the condition that a mark still has the value that was read; None: that it still does not exist.

        By value, because a backup may bring anything else back.
        """
        what = "the record of the floors" if name == FLOORS else f"the mark of resource {name!r}"
        return self._relying(_mark_key(name), stored.value, what, is_mark=True)

    def _relying(self, key: Attributes, value: bytes | None, what: str, *, is_mark: bool = False) -> ItemAction:
        return ItemAction(self._table, key, expressions=[_unchanged(value, f"{what} has changed")], is_mark=is_mark)

    def _change(self, action: ItemAction, value: bytes | None, table_id: str | None = None) -> None:
        action.write = "Delete" if value is None else "Put"
        if value is not None:
            action.item = action.key | {_VALUE: {"S": value.decode()}}
            action.item |= {_TABLE_ID: {"S": table_id}} if table_id else {}

    def _entry(self, entry: AuditEntry) -> ItemAction:
        sort = f"{datetime.now(UTC).isoformat(timespec='microseconds')}#{uuid4().hex}"
        partition = f"{AUDIT}{escape_name(entry.resource) if entry.resource else ''}"
        action = ItemAction(self._table, _key(partition, sort))
        self._change(action, encode_entry(entry))
        return action

    # --- restored tables ----------------------------------------------------------------------------------------------
    @property
    def restored(self) -> list[str]:
        """The resources whose marks were written in another table, as this connection last read them."""
        return sorted(self._restored)

    def _commit(self, request: ask.Commit) -> Operations:
        if not self._changes.entries:  # What an operator does has one.
            self._check_not_restored(self._changes.seen)
        yield from super()._commit(request)

    def _check_not_restored(self, resources: Iterable[str]) -> None:
        if names := [name for name in resources if name in self._restored]:
            raise GuardError(
                f"the mark of resource {names[0]!r} was written in another table: {self._url} was restored from a "
                f"backup, and the resource may have promised more since. Nothing is admitted until an operator runs "
                f"`fencelock marks {self._url} --resource {names[0]} --raise-to SOURCE --reason …`"
            )

    # --- blocks -------------------------------------------------------------------------------------------------------
    def _open_work(self, request: ask.Open, seen: Mapping[str, StoredValue]) -> Operations:
        self._check_not_restored(request.resources)
        yield from ()
        return self._make_work([self._unchanged(name, stored) for name, stored in seen.items()])

    def _write_work(self, work: DynamoWriteBuffer) -> Operations:
        yield from work.commit()

    # --- effects ------------------------------------------------------------------------------------------------------
    def _effect_ids(self) -> Operations:
        items = yield from self._scan("begins_with(sk, :sort)", {":sort": {"S": _EFFECT}})
        return [(name, item[SORT]["S"].removeprefix(_EFFECT)) for item in items if (name := _resource_of(item))]

    def _read_effect_value(self, resource: str, key: str) -> Operations:
        items = yield from get_items(self._table, [_effect_key(resource, key)])
        return _stored_value(items[0] if items else None)

    def _rely_on_effect(self, resource: str, key: str, stored: StoredValue) -> None:
        self.work.keep(self._relying(_effect_key(resource, key), stored.value, f"effect {key!r}"))

    def _keep_effect(self, resource: str, key: str, value: bytes | None, before: StoredValue) -> Operations:
        action = ItemAction(self._table, _effect_key(resource, key))
        self._change(action, value)
        self.work.keep(action)
        yield from ()

    def _delete_effect(self, resource: str, key: str, stored: StoredValue) -> Operations:
        action = self._relying(_effect_key(resource, key), stored.value, f"effect {key!r}")
        self._change(action, None)
        try:
            yield from transact([action])
        except ConflictError:
            return False
        return True

    ANSWERS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        **PurgingGuardCodec.ANSWERS,
        ask.Commit: _commit,
    }


def _stored_value(item: Attributes | None) -> StoredValue:
    """Return the value in an item of the guard's own; what another program wrote there is no value of ours."""
    if item is None:
        return StoredValue(None, 0)
    return StoredValue(item.get(_VALUE, {}).get("S", "").encode(), 1)


def _unchanged(value: bytes | None, failure: str) -> Expression:
    if value is None:
        return is_missing(PARTITION, failure)
    return is_equal(_VALUE, {"S": value.decode()}, failure)
