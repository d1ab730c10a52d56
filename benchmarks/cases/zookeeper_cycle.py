"""Acquire and release on ZooKeeper without contention, against kazoo's plain requests by hand, and kazoo's own lock."""

import asyncio
from pathlib import Path

import fenceline
import fenceline.aio
from benchmarks.measure import Result, take_turns
from benchmarks.zookeeper import HandWrittenLock, private_server


def run(_folder: Path, scale: float) -> list[Result]:
    """Measure a cycle of acquire and release."""
    with private_server() as (server, url), asyncio.Runner() as runner, fenceline.connect(url) as source:
        floor = HandWrittenLock(server)
        lock = source.lock("bench")
        async_source = fenceline.aio.connect(url)
        async_lock = async_source.lock("bench-async")

        def cycle() -> None:
            with lock:
                pass

        async def async_cycle() -> None:
            async with async_lock:
                pass

        variants = {
            "create, get_children, delete by hand": floor.cycle,
            "with lock:": cycle,
            "async with lock:": lambda: runner.run(async_cycle()),
            "create, delete by hand: no queue": floor.two_writes,
            "kazoo's Lock: no token": floor.kazoo_lock,
        }
        rounds = int(40 * scale) + 3
        results = take_turns("ZooKeeper: acquire and release", variants, rounds=rounds, batch=20, target="1.1x")
        runner.run(async_source.close())
        floor.close()
        return results
