"""fencelock as a contender, sync and async: the same code for every store."""

from typing import Any

from fencelock_lab.benchmarks.peers.contender import Calls, Contender, Coroutines, run

TTL_S = 30.0


def _sync(url: str, name: str) -> Calls:
    import fencelock

    lock = fencelock.connect(url).lock(name, ttl=TTL_S)
    return Calls(lock.acquire, lock.release)


def _async(url: str, name: str) -> Coroutines:
    import fencelock.aio

    async def make() -> Any:
        return fencelock.aio.connect(url).lock(name, ttl=TTL_S)

    lock = run(make())
    return Coroutines(lock.acquire, lock.release)


FENCELOCK = "fencelock"
OURS = [Contender(FENCELOCK, _sync), Contender(f"{FENCELOCK}, asyncio", _async)]
