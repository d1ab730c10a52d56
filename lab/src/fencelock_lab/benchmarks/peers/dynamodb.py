"""The locks on DynamoDB. Amazon's own client is written in Java: its protocol is here by hand, and in a Python library.

aiobotocore's row is the floor of fencelock's asyncio.
"""

from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from fencelock_lab.benchmarks.peers.contender import Calls, Contender, ContenderLock, Coroutines, run
from fencelock_lab.benchmarks.peers.ours import OURS

_NOTHING = "no token, no waiting, no renewal; a crash keeps the lock for ever"
_TTL_S = 30


def _by_hand(url: str, name: str) -> ContenderLock:
    from fencelock_lab.benchmarks.stores.dynamodb import BareConditionalWrites

    lock = BareConditionalWrites(url, name)
    return Calls(lock.take, lock.free)


def _aiobotocore(url: str, name: str) -> ContenderLock:
    from aiobotocore.session import get_session

    from fencelock_lab.benchmarks.stores.dynamodb import address_of, creation, deletion

    created: list[dict[str, Any]] = []

    async def make() -> Any:
        return await AsyncExitStack().enter_async_context(get_session().create_client(**address_of(url)))

    client = run(make())

    async def take() -> None:
        created.append(creation(name))
        await client.put_item(**created[-1])

    async def free() -> None:
        await client.delete_item(**deletion(created.pop()))

    return Coroutines(take, free)


def _lock_client(url: str, name: str) -> ContenderLock:
    from fencelock_lab.benchmarks.stores.dynamodb import LockClientByHand

    lock = LockClientByHand(url, name)
    return Calls(lock.take, lock.free)


def _python_dynamodb_lock(url: str, name: str) -> ContenderLock:
    import boto3
    from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient

    from fencelock_lab.benchmarks.stores.dynamodb import LOCK_CLIENT, address_of

    client = DynamoDBLockClient(
        boto3.resource(**address_of(url)), table_name=LOCK_CLIENT, lease_duration=timedelta(seconds=_TTL_S)
    )
    held: list[Any] = []
    return Calls(lambda: held.append(client.acquire_lock(name)), lambda: held.pop().release(best_effort=False))


IMPORTS = (
    "aiobotocore.session",
    "boto3",
    "fencelock.stores.dynamodb.source.store",
    "python_dynamodb_lock.python_dynamodb_lock",
)
CONTENDERS = [
    Contender("two conditional writes by hand", _by_hand, _NOTHING, can_wait=False),
    *OURS,
    Contender("two conditional writes by hand, aiobotocore", _aiobotocore, _NOTHING, can_wait=False),
    Contender(
        "the lock client's protocol by hand",
        _lock_client,
        "no token, and nothing refuses a late holder's write; no order among waiters, who look once a second, and "
        "judge by their own clocks whether the holder lives; no renewal by hand",
    ),
    Contender(
        "python-dynamodb-lock",
        _python_dynamodb_lock,
        "no token, and nothing refuses a late holder's write; no order among waiters, who look every 5 s; its `with` "
        "swallows what the block raises",
        can_wait=False,
    ),
]
