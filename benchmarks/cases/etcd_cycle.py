"""Acquire and release on etcd without contention, against two bare transactions on a channel of the same kind."""

import asyncio
from pathlib import Path

import fenceline
import fenceline.aio
from benchmarks.etcd import BareTransactions, private_member
from benchmarks.measure import Result, take_turns


def run(_folder: Path, scale: float) -> list[Result]:
    """Measure a cycle of acquire and release."""
    with private_member() as (_, url), asyncio.Runner() as runner, fenceline.connect(url) as source:
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
            "two bare transactions": BareTransactions(url).cycle,
            "with lock:": cycle,
            "async with lock:, ten": lambda: runner.run(async_cycles(10)),
        }
        rounds = int(40 * scale) + 3
        results = take_turns("etcd: acquire and release", variants, rounds=rounds, batch=50, target="1.2x")
        runner.run(async_source.close())
        return results
