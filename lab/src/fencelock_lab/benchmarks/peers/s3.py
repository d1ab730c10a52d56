"""The locks on S3. Litestream's leaser is written in Go and has no package of its own: here it is by hand."""

from fencelock_lab.benchmarks.peers.contender import Calls, Contender, ContenderLock, Coroutines, run
from fencelock_lab.benchmarks.peers.ours import OURS

_NOTHING = "no token, no waiting, no renewal; a crash keeps the lock for ever"


def _by_hand(url: str, name: str) -> ContenderLock:
    from fencelock_lab.benchmarks.stores.s3 import BareConditionalPuts

    lock = BareConditionalPuts(url, name)
    return Calls(lock.take, lock.free)


def _aiobotocore(url: str, name: str) -> ContenderLock:
    from fencelock_lab.benchmarks.stores.s3 import async_client_of, bucket_of

    where = {"Bucket": bucket_of(url), "Key": f"by-hand-asyncio/{name}"}
    etags: list[str] = []
    client = run(async_client_of(url))

    async def take() -> None:
        etags.append((await client.put_object(**where, Body=b"somebody", IfNoneMatch="*"))["ETag"])

    async def free() -> None:
        await client.delete_object(**where, IfMatch=etags.pop())

    return Coroutines(take, free)


def _leaser(url: str, name: str) -> ContenderLock:
    from fencelock_lab.benchmarks.stores.s3 import LeaserByHand

    lock = LeaserByHand(url, name)
    return Calls(lock.take, lock.free)


IMPORTS = ("aiobotocore.session", "boto3", "fencelock.stores.s3.source.store")
CONTENDERS = [
    Contender("a conditional PUT and DELETE by hand", _by_hand, _NOTHING, can_wait=False),
    *OURS,
    Contender("a conditional PUT and DELETE, aiobotocore", _aiobotocore, _NOTHING, can_wait=False),
    Contender(
        "Litestream's leaser by hand",
        _leaser,
        "a generation that begins at 1 again after each release, and nothing checks it; no waiting, so no order; its "
        "end compares the clocks of two machines; no renewal by hand",
        can_wait=False,
    ),
]
