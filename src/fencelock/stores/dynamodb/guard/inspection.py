"""What breaks the guarantees of a guard at DynamoDB, for `fencelock doctor`.

Promise: nothing is written: the one write that is tried has a condition that never holds.
"""

from collections.abc import Callable
from typing import Any

from fencelock.errors import FencelockError
from fencelock.model import Finding
from fencelock.protocol.guard_requests import InspectResources
from fencelock.stores.aws.clients import Call, Calls, Refusal
from fencelock.stores.dynamodb.guard.codec import GUARD, DynamoGuardCodec
from fencelock.stores.dynamodb.table import PARTITION, SORT, DynamoTables
from fencelock.stores.errors import refused_finding
from fencelock.stores.optimistic.connection import OptimisticConnection

_NOT_PERMITTED, _NEVER = "AccessDeniedException", "ConditionalCheckFailedException"


def examine(
    url: str,
    table: str,
    tables: DynamoTables,
    connection: OptimisticConnection[DynamoGuardCodec],
    run: Callable[[Calls[Any]], Any],
) -> list[Finding]:
    """Return what is wrong with the set-up."""
    try:
        run(tables.check_own())
        connection.perform(InspectResources(None))
        is_open = run(_can_write_alone(table))
    except FencelockError as error:
        return [refused_finding("guard-refused", error)]
    return [*map(_restored_mark, connection.codec.restored), *([_open_to_all(url, table)] if is_open else [])]


def _can_write_alone(table: str) -> Calls[bool]:
    """Return whether these credentials may write a mark outside of a transaction."""
    never = {
        "TableName": table,
        "Item": {PARTITION: {"S": GUARD}, SORT: {"S": "probe"}},
        "ConditionExpression": "attribute_exists(pk) AND attribute_not_exists(pk)",
    }
    answer = yield Call("put_item", never, frozenset({_NOT_PERMITTED, _NEVER}))
    return isinstance(answer, Refusal) and answer.code == _NEVER


def _restored_mark(resource: str) -> Finding:
    return Finding(
        "restored-mark",
        f"the mark of resource {resource!r} was written in another table: this one was restored from a backup, and the "
        f"resource may have promised more since, so it admits nobody",
        "run `fencelock marks URL --raise-to SOURCE --reason …`",
        resource,
    )


def _open_to_all(url: str, table: str) -> Finding:
    return Finding(
        "open-to-all",
        f"{url}: these credentials may write into table {table!r} outside of a transaction, with or without a token: "
        f"DynamoDB by itself refuses nobody",
        "give each application a role of its own that has only what `fencelock protect URL --resource R --lock L "
        "--roles ROLE --print-policy` prints, and run the application with it",
    )
