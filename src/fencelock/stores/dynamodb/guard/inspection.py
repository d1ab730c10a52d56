"""What breaks the guarantees of a guard at DynamoDB, for `fencelock doctor`.

Promise: nothing is written: the one write that is tried has a condition that never holds.
"""

from collections.abc import Callable, Iterator
from typing import Any

from fencelock.errors import FencelockError
from fencelock.model import Finding
from fencelock.protocol.guard_requests import InspectResources
from fencelock.stores.aws.clients import Call, Refusal
from fencelock.stores.dynamodb.guard.codec import GUARD
from fencelock.stores.dynamodb.guard.connection import DynamoGuardConnection
from fencelock.stores.dynamodb.requests import Operations
from fencelock.stores.dynamodb.table import PARTITION, SORT, DynamoTables

_NOT_PERMITTED, _NEVER = "AccessDeniedException", "ConditionalCheckFailedException"


def examine(
    url: str, table: str, tables: DynamoTables, connection: DynamoGuardConnection, run: Callable[[Operations], Any]
) -> list[Finding]:
    """Return what is wrong with the set-up."""
    try:
        run(tables.check_own())
        connection.perform(InspectResources(None))
        is_open = run(_can_write_alone(table))
    except FencelockError as error:
        return [Finding("guard-refused", str(error), "do what the message says, then run doctor again")]
    return [*_restored(connection), *([_open_to_all(url, table)] if is_open else [])]


def _can_write_alone(table: str) -> Operations:
    """Return whether these credentials may write a mark outside of a transaction."""
    never = {
        "TableName": table,
        "Item": {PARTITION: {"S": GUARD}, SORT: {"S": "probe"}},
        "ConditionExpression": "attribute_exists(pk) AND attribute_not_exists(pk)",
    }
    answer = yield Call("put_item", never, frozenset({_NOT_PERMITTED, _NEVER}))
    return isinstance(answer, Refusal) and answer.code == _NEVER


def _restored(connection: DynamoGuardConnection) -> Iterator[Finding]:
    for resource in connection.restored:
        yield Finding(
            "restored-mark",
            f"the mark of resource {resource!r} was written in another table: this one was restored from a backup, and "
            f"the resource may have promised more since, so it admits nobody",
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
