"""Acquire and release without contention, compared with the store's plain client for the same work and for less."""

import asyncio

import fencelock
import fencelock.aio
from fencelock_lab.benchmarks.measure import NO_AIMS, Measurement, take_turns
from fencelock_lab.benchmarks.stores import Site, by_hand

BATCH = 10
AIMS = {"sqlite": 1.3, "postgres": 1.15, "mysql": 1.2, "etcd": 1.2, "zookeeper": 1.1}
"""What `with lock:` should not be above, against the work by hand. Where it writes more than that, there is no aim."""


def run(site: Site, seconds: float) -> list[Measurement]:
    """Measure a cycle of acquire and release."""
    with by_hand(site) as floors, asyncio.Runner() as runner, fencelock.connect(site.url) as source:
        lock = source.lock("cycle")
        async_source = fencelock.aio.connect(site.url)
        async_lock = async_source.lock("cycle-async")

        def block() -> None:
            with lock:
                pass

        def calls() -> None:
            lock.acquire()
            lock.release()

        async def async_block() -> None:
            async with async_lock:
                pass

        ours = {
            "with lock:": block,
            "acquire(), release()": calls,
            "async with lock:": lambda: runner.run(async_block()),
        }
        aims = {"with lock:": AIMS[site.store]} if site.store in AIMS else NO_AIMS
        try:
            return take_turns("a cycle, step by step", floors | ours, seconds, batch=BATCH, aims=aims)
        finally:
            runner.run(async_source.close())
