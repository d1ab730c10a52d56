"""A guarded block at DynamoDB against one by hand, which reads a mark and checks it in its transaction.

By hand: a consistent GetItem of the mark, and a TransactWriteItems with a ConditionCheck of it. A statement is a Put of
one item; without a check it is in a TransactWriteItems too. The one by hand lacks: the mark's lock and source, the
search for what became of a request whose reply is lost, and the notice of a restored table.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import fencelock
import fencelock.aio
from fencelock_lab.benchmarks.guards import BY_HAND, GUARDED, LEASE, LOCK, NO_CHECK, RESOURCE, Kind, on_loop
from fencelock_lab.benchmarks.stores.dynamodb import DATA, KEY, LOCKS, address_of, client_of

# Not "1 statement": README has microseconds of servers, and this is an emulator.
KINDS = (
    Kind("1 writer, 1 item", batch=10, aim=1.3, most_requests=2),
    Kind("1 writer, 1 item, asyncio", batch=10, aim=1.3, is_async=True),
    Kind("1 writer, 50 items", statements=50, batch=2, aim=1.3, most_requests=2),
)
_MARKS = "bench-marks"
_MARK = {KEY: {"S": "mark"}}
_TOKEN = {"token": {"N": "1"}}


def prepare(url: str) -> None:
    """Put a mark by hand, and seal the resource."""
    client_of(url).put_item(TableName=DATA, Item=_MARK | _TOKEN)
    with_marks = _marks_of(url)
    guard = fencelock.guard(with_marks, resource=RESOURCE, lock=LOCK)
    guard.install()
    guard.protect()
    guard.seal(LEASE)


def variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    """Return a transaction with a check by hand, one without, and a guarded block."""
    return _async_variants(url, kind) if kind.is_async else _sync_variants(url, kind)


def _sync_variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    client = client_of(url)
    guard = fencelock.guard(_marks_of(url), resource=RESOURCE, lock=LOCK)

    def by_hand() -> None:
        assert client.get_item(**_READ)["Item"]["token"] == _TOKEN["token"]
        client.transact_write_items(TransactItems=[_CHECK, *_puts(kind)])

    def unguarded() -> None:
        client.transact_write_items(TransactItems=_puts(kind))

    def guarded() -> None:
        with guard.transaction(LEASE) as txn:
            for name in _names(kind):
                txn.put(DATA, {KEY: f"guarded-{name}", "text": "x"})

    return {BY_HAND: by_hand, NO_CHECK: unguarded, GUARDED: guarded}


def _async_variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    from aiobotocore.session import get_session

    async def connect() -> Any:
        return await AsyncExitStack().enter_async_context(get_session().create_client(**address_of(url)))

    client = on_loop(connect)()
    guard = fencelock.aio.guard(_marks_of(url), resource=RESOURCE, lock=LOCK)

    async def by_hand() -> None:
        assert (await client.get_item(**_READ))["Item"]["token"] == _TOKEN["token"]
        await client.transact_write_items(TransactItems=[_CHECK, *_puts(kind)])

    async def unguarded() -> None:
        await client.transact_write_items(TransactItems=_puts(kind))

    async def guarded() -> None:
        async with guard.transaction(LEASE) as txn:
            for name in _names(kind):
                txn.put(DATA, {KEY: f"guarded-{name}", "text": "x"})

    return {BY_HAND: on_loop(by_hand), NO_CHECK: on_loop(unguarded), GUARDED: on_loop(guarded)}


_READ = {"TableName": DATA, "Key": _MARK, "ConsistentRead": True}
_CHECK = {
    "ConditionCheck": {
        "TableName": DATA,
        "Key": _MARK,
        "ConditionExpression": "#token = :token",
        "ExpressionAttributeNames": {"#token": "token"},
        "ExpressionAttributeValues": {":token": _TOKEN["token"]},
    }
}


def _names(kind: Kind) -> list[str]:
    return [f"{kind.statements}-{number}" for number in range(kind.statements)]


def _puts(kind: Kind) -> list[dict[str, Any]]:
    items = ({KEY: {"S": f"plain-{name}"}, "text": {"S": "x"}} for name in _names(kind))
    return [{"Put": {"TableName": DATA, "Item": item}} for item in items]


def _marks_of(url: str) -> str:
    return url.replace(f"/{LOCKS}?", f"/{_MARKS}?")
