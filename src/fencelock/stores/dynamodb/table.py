"""Tables of DynamoDB: the one that a store keeps its own items in, and what is known of those that it uses.

Promise: one object asks for each table once, and for the store's own again each minute. A global table is refused: a
condition on it holds in one region only, and of two regions' writes the last one wins, whatever was checked. So is a
table of a store's own that deletes items by itself.
"""

from typing import Any, NamedTuple

from fencelock.clock import boottime_ms
from fencelock.errors import FencelockError, GuardError, SchemaError, SourceUnavailableError, UnsupportedError
from fencelock.stores.aws.clients import Call, Calls, Refusal
from fencelock.stores.dynamodb.requests import Patience, read
from fencelock.stores.errors import not_installed

PARTITION, SORT = "pk", "sk"
"""The key attributes of a store's own table, both strings."""
_MISSING = frozenset({"ResourceNotFoundException"})
_IN_USE = {"ENABLING", "ENABLED", "DISABLING"}
_CREATION_S = 300.0
SAME_TABLE_MS = 60_000
"""How long a process takes the store's own table for the one that it has looked at: it may be deleted, and another one
restored under its name.
"""


class DynamoTable(NamedTuple):
    """A table's key attributes in their order, and its id: no other table ever has it, a restored one included. It is
    empty at a server that gives none.
    """

    keys: tuple[str, ...]
    table_id: str


class DynamoTables:
    """The tables that this process has asked for, for the store of this URL: its own one is `own`.

    `part` names the half of fencelock's schema that the store is, for an error.
    """

    def __init__(self, url: str, own: str, part: str) -> None:
        self._url = url
        self._part = part
        self.own = own
        self.known: dict[str, DynamoTable] = {}
        self._own_until_ms = 0

    def describe(self, name: str) -> Calls[DynamoTable]:
        """Return what is known of a table; UnsupportedError if a store cannot use it."""
        if name not in self.known or (name == self.own and boottime_ms() >= self._own_until_ms):
            # From before the request: the table may be replaced while the answer is on its way.
            until_ms = boottime_ms() + SAME_TABLE_MS
            answer = yield from read("describe_table", {"TableName": name}, _MISSING)
            if isinstance(answer, Refusal):
                raise self._no_table(name)
            found = answer["Table"]
            _check_local(name, found)
            self.known[name] = DynamoTable(_keys(found), found.get("TableId", ""))
            if name == self.own:
                self._own_until_ms = until_ms
        return self.known[name]

    def check_own(self) -> Calls[None]:
        """Raise SchemaError or UnsupportedError unless the store's own table is fit to keep marks or locks."""
        table = yield from self.describe(self.own)
        if table.keys != (PARTITION, SORT):
            raise SchemaError(
                f"{self._url}: the key of table {self.own!r} is {table.keys}, not {(PARTITION, SORT)}, so it was not "
                f"made for fencelock: name another table, which `fencelock install` creates"
            )
        found = yield from read("describe_time_to_live", {"TableName": self.own})
        if found["TimeToLiveDescription"].get("TimeToLiveStatus") in _IN_USE:
            raise UnsupportedError(
                f"table {self.own!r} has a time to live, so DynamoDB may delete its items: switch it off by `aws "
                f"dynamodb update-time-to-live`"
            )

    def _no_table(self, name: str) -> FencelockError:
        if name == self.own:
            return not_installed(self._url, self._part)
        return GuardError(f"there is no table {name!r} in the region of {self._url}: create it, or name another one")


def _keys(found: dict[str, Any]) -> tuple[str, ...]:
    return tuple(one["AttributeName"] for one in found["KeySchema"])


def _check_local(name: str, found: dict[str, Any]) -> None:
    if found.get("Replicas") or found.get("GlobalTableVersion"):
        raise UnsupportedError(
            f"table {name!r} is a global table: a condition holds in one region only, and of two regions' writes the "
            f"last one wins. Use a table without replicas"
        )


def create_table(tables: DynamoTables) -> Calls[None]:
    """Create a store's own table: paid by request, protected, with point-in-time recovery.

    If there is one already, it is checked before anything is changed at it.
    """
    name = tables.own
    keys = {PARTITION: "HASH", SORT: "RANGE"}
    table = {
        "TableName": name,
        "KeySchema": [{"AttributeName": key, "KeyType": kind} for key, kind in keys.items()],
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"} for key in keys],
        "BillingMode": "PAY_PER_REQUEST",
        "DeletionProtectionEnabled": True,
    }
    yield Call("create_table", table, frozenset({"ResourceInUseException"}))
    patience = Patience(_CREATION_S)
    while not (yield from _is_ready(tables)):
        if (pause := patience.next_pause()) is None:
            raise SourceUnavailableError(f"table {name!r} was not ready in {_CREATION_S:.0f} s: try again")
        yield pause


def _is_ready(tables: DynamoTables) -> Calls[bool]:
    """Return whether the table can be used, with its backups switched on; raise what `check_own` raises before."""
    name = tables.own
    answer = yield from read("describe_table", {"TableName": name}, _MISSING)
    if isinstance(answer, Refusal) or answer["Table"]["TableStatus"] in ("CREATING", "UPDATING"):
        return False
    yield from tables.check_own()
    recovery = {"TableName": name, "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}
    answer = yield Call("update_continuous_backups", recovery, frozenset({"ContinuousBackupsUnavailableException"}))
    return not isinstance(answer, Refusal)
