"""Several processes that write at the same time, as workers with one sequencer do, taking turns in step.

What is compared is the time that one operation of theirs takes.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.measure import US_PER_S, Result, compare, seconds_each

Variants = Callable[[str, int], dict[str, Callable[[], None]]]
"""Makes the variants in the process of a writer, from a URL and the number of statements in a transaction."""


def measure(
    server: str, make: Variants, url: str, *, writers: int, statements: int, batch: int, rounds: int, target: str
) -> list[Result]:
    """Compare the variants by so many writers."""
    context = multiprocessing.get_context("spawn")
    barrier, told = context.Barrier(writers), context.Queue()
    arguments = (make, url, statements, batch, rounds, barrier, told)
    processes = [context.Process(target=_write, args=arguments) for _ in range(writers)]
    for process in processes:
        process.start()
    turns = [told.get() for _ in processes]
    for process in processes:
        process.join()
    mean = {
        name: [sum(times) / writers for times in zip(*(one[name] for one in turns), strict=True)] for name in turns[0]
    }
    case = f"{server}, {writers} writer{'s' * (writers > 1)}, {statements} statement{'s' * (statements > 1)}"
    return compare(case, mean, "us", target)


def _write(make: Variants, url: str, statements: int, batch: int, rounds: int, barrier: Barrier, told: Any) -> None:
    """Take turns with the variants, in step with the other writers."""
    variants = make(url, statements)
    turns: dict[str, list[float]] = {name: [] for name in variants}
    for operation in variants.values():
        seconds_each(operation, batch)
    for _ in range(rounds):
        for name, operation in variants.items():
            barrier.wait()
            turns[name].append(seconds_each(operation, batch) * US_PER_S)
    told.put(turns)
