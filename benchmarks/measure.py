"""Take turns between variants, and reduce what was measured to medians and ratios.

Turns are short, a few milliseconds, and many: so the median is of turns that no other process has interrupted.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

US_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class Result:
    """One variant of one case. `ratio` is against the case's first variant, `target` the ratio or value to reach, and
    `lacks` what the variant does not do.
    """

    case: str
    variant: str
    unit: str
    median: float
    low: float
    high: float
    ratio: float | None = None
    target: str = ""
    lacks: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON carries it."""
        return {name: getattr(self, name) for name in self.__slots__}


def seconds_each(operation: Callable[[], object], count: int) -> float:
    """Return the mean seconds that one of `count` operations took."""
    started = time.perf_counter()
    for _ in range(count):
        operation()
    return (time.perf_counter() - started) / count


def take_turns(
    case: str, variants: Mapping[str, Callable[[], object]], *, rounds: int, batch: int, target: str = ""
) -> list[Result]:
    """Measure the variants in turns; the first is the floor that the others are compared with. Unit: microseconds."""
    for operation in variants.values():
        seconds_each(operation, batch)
    turns: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, operation in variants.items():
            turns[name].append(seconds_each(operation, batch) * US_PER_S)
    return compare(case, turns, "us", target)


def compare(case: str, turns: dict[str, list[float]], unit: str, target: str = "") -> list[Result]:
    """Reduce what was measured in turns, the first variant being the floor."""
    floor = next(iter(turns.values()))
    results = []
    for name, values in turns.items():
        is_floor = values is floor
        ratio = None if is_floor else statistics.median(value / base for value, base in zip(values, floor, strict=True))
        results.append(summarise(case, name, unit, values, ratio, "" if is_floor else target))
    return results


def summarise(
    case: str, variant: str, unit: str, values: list[float], ratio: float | None = None, target: str = ""
) -> Result:
    """Return the median and the quartiles of what was measured."""
    low, high = min(values), max(values)
    if len(values) > 3:
        low, _, high = statistics.quantiles(values, n=4)
    return Result(case, variant, unit, statistics.median(values), low, high, ratio, target)
