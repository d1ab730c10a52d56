"""A guarded write, compared with a hand-written one and one without a check, by one writer and by several.

Several writers are processes that share one sequencer and take turns in step. The result is the time of one operation.
"""

import itertools
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache, partial
from importlib import import_module
from multiprocessing.synchronize import Barrier
from typing import TYPE_CHECKING, Any

from fencelock_lab.benchmarks.child import Child, serve
from fencelock_lab.benchmarks.guards import GUARDED, Kind
from fencelock_lab.benchmarks.measure import (
    MIN_TURNS,
    NO_AIMS,
    US_PER_S,
    Measurement,
    compare,
    rotated,
    seconds_each,
    turns,
)
from fencelock_lab.benchmarks.stores import Operation, Site

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

CASE = "a guarded write"
TURN_S = 240.0
"""How long a turn may take, on a busy machine. The first one also prepares what the kind needs."""


def run(site: Site, seconds: float) -> list[Measurement]:
    """Measure each kind of guarded write that the store's guard has."""
    guards = import_module(f"fencelock_lab.benchmarks.guards.{site.store}")
    guards.prepare(site.url)
    results = []
    for kind in guards.KINDS:
        results += _measure(site, kind, seconds / len(guards.KINDS))
    return results


def _measure(site: Site, kind: Kind, seconds: float) -> list[Measurement]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(kind.writers)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(closing(Child(context, _write, site.store, site.url, kind, barrier)))
            for _ in range(kind.writers)
        ]
        taken = turns_of(writers, seconds)
    aims = NO_AIMS if kind.aim is None else {GUARDED: kind.aim}
    return compare(f"{CASE}, {kind.name}", taken, "us", aims)


def turns_of(writers: Sequence[Child], seconds: float) -> dict[str, list[float]]:
    """Have processes that `serve_turns` take turns, and return what each variant took in each, on average."""
    taken: dict[str, list[float]] = {}
    for _ in turns(seconds, MIN_TURNS + 1):
        for writer in writers:
            writer.send()
        times = [dict(writer.receive(TURN_S)) for writer in writers]
        for name in times[0]:
            taken.setdefault(name, []).append(sum(one[name] for one in times) / len(times))
    return {name: values[1:] for name, values in taken.items()}  # The first turn has connected.


def _write(store: str, url: str, kind: Kind, barrier: Barrier, line: "Connection[Any, Any]") -> None:
    """Write in turns, at each command."""
    guards = import_module(f"fencelock_lab.benchmarks.guards.{store}")

    @cache
    def variants() -> dict[str, Operation]:
        made: dict[str, Operation] = guards.variants(url, kind)
        return made

    tidy = partial(guards.tidy, url, kind) if hasattr(guards, "tidy") else _nothing
    serve_turns(line, barrier, variants, kind.batch, before=tidy)


def _nothing() -> None:
    pass


def serve_turns(
    line: "Connection[Any, Any]",
    barrier: Barrier,
    variants: Callable[[], Mapping[str, Operation]],
    batch: int,
    *,
    before: Operation = _nothing,
) -> None:
    """Take a turn with each variant at each command, in step with the other processes; do `before` before each."""
    numbers = itertools.count()

    def take_a_turn() -> list[tuple[str, float]]:
        taken = {}
        before()
        for name in rotated(tuple(variants()), next(numbers)):
            barrier.wait(TURN_S)
            taken[name] = seconds_each(variants()[name], batch) * US_PER_S
        return [(name, taken[name]) for name in variants()]

    serve(line, take_a_turn)
