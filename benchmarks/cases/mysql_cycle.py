"""Acquire and release on MariaDB without contention, against its own two calls by hand, and against what does less."""

import asyncio
from pathlib import Path

import fenceline
import fenceline.aio
from benchmarks.measure import Result, take_turns
from benchmarks.mysql import HandWrittenLock, SameCalls, private_server


def run(_folder: Path, scale: float) -> list[Result]:
    """Measure a cycle of acquire and release."""
    with private_server() as url, asyncio.Runner() as runner, fenceline.connect(url) as source:
        same = SameCalls(url)
        floor = HandWrittenLock(url)
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
            "its two calls by hand": same.cycle,
            "with lock:": cycle,
            "async with lock:": lambda: runner.run(async_cycle()),
            "two statements by hand, a counter for each lock": floor.cycle,
            "by hand, with a counter for all locks": floor.cycle_with_counter,
            "two empty trips": floor.empty_trips,
            "GET_LOCK: no token, no lease": floor.user_lock,
        }
        rounds = int(40 * scale) + 3
        results = take_turns("MariaDB: acquire and release", variants, rounds=rounds, batch=20, target="1.2x")
        runner.run(async_source.close())
        floor.close()
        same.close()
        return results
