"""Acquire and release on PostgreSQL without contention, against the same by hand, and against what does less."""

import asyncio
from pathlib import Path

import fenceline
import fenceline.aio
from benchmarks.measure import Result, take_turns
from benchmarks.postgres import HandWrittenLock, SameCalls, private_server


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

        async def async_cycles(count: int) -> None:
            for _ in range(count):
                async with async_lock:
                    pass

        variants = {
            "its two statements by hand": same.cycle,
            "with lock:": cycle,
            "async with lock:, ten": lambda: runner.run(async_cycles(10)),
            "by hand, with less": floor.cycle,
            "two empty trips": floor.empty_trips,
            "an advisory lock: no token, no lease": floor.advisory,
        }
        rounds = int(40 * scale) + 3
        results = take_turns("PostgreSQL: acquire and release", variants, rounds=rounds, batch=100, target="1.15x")
        runner.run(async_source.close())
        floor.connection.close()
        same.connection.close()
        return results
