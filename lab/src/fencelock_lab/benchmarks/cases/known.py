"""Acquire and release where the store knows ten locks, and where it knows a million.

Not measured for etcd and ZooKeeper: `held` measures them beside other held locks.
"""

import random
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module

import fencelock
from fencelock_lab.benchmarks.measure import Measurement, take_turns
from fencelock_lab.benchmarks.stores import Site

COUNTS = (10, 1_000_000)
BATCH = 20
HOT = 10
"""Locks in use, spread over all that the store knows."""
AIM = 1.2


def run(site: Site, seconds: float) -> list[Measurement]:
    """Measure a cycle against the number of locks that the store knows."""
    fill = import_module(f"fencelock_lab.benchmarks.stores.{site.store}").fill
    few, *more = (f"{count:,} locks" for count in COUNTS)
    with ExitStack() as stack:
        variants = {f"{count:,} locks": _cycle(fill(site.url, count), count, stack) for count in COUNTS}
        return take_turns(
            f"a cycle by locks that are known, against {few}",
            variants,
            seconds,
            batch=BATCH,
            aims=dict.fromkeys(more, AIM),
        )


def _cycle(url: str, count: int, stack: ExitStack) -> Callable[[], None]:
    source = stack.enter_context(fencelock.connect(url))
    chance = random.Random(count)
    locks = [source.lock(f"lock-{chance.randrange(count)}") for _ in range(HOT)]

    def cycle() -> None:
        with chance.choice(locks):
            pass

    return cycle
