"""Take turns between variants, and reduce what was measured to medians and ratios.

Turns are short, a few milliseconds, and many: so the median is of turns that no other process has interrupted. A turn
begins as long as there is time, and each variant has at least three.
"""

import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

US_PER_S, MS_PER_S = 1e6, 1e3
NS_PER_US, NS_PER_MS, NS_PER_S = 1e3, 1e6, 1e9
MIN_TURNS = 3
Aims = Mapping[str, float]
"""What a variant should not be above, by its name."""
NO_AIMS: Aims = {}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One variant of one case. `ratio` is against the case's first variant; `aim` is the most that the ratio should be,
    or the median where there is none; `lacks` is what the variant does not do.
    """

    case: str
    variant: str
    unit: str
    median: float
    low: float
    high: float
    ratio: float | None = None
    aim: float | None = None
    lacks: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON carries it, without what it does not have, in four digits."""
        present = {name: value for name, value in asdict(self).items() if value not in {None, ""}}
        return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in present.items()}

    @property
    def is_missed(self) -> bool:
        """Whether the result is above its aim."""
        return self.aim is not None and (self.median if self.ratio is None else self.ratio) > self.aim


def turns(seconds: float, least: int = MIN_TURNS) -> Iterator[int]:
    """Yield the number of each turn, as long as there is time."""
    until = time.monotonic() + seconds
    number = 0
    while number < least or time.monotonic() < until:
        yield number
        number += 1


def rotated(names: Sequence[str], number: int) -> Sequence[str]:
    """Return the names with another one first in each turn: the first variant pays for waking up."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def seconds_each(operation: Callable[[], object], count: int) -> float:
    """Return the mean seconds that one of `count` operations took."""
    started = time.perf_counter()
    for _ in range(count):
        operation()
    return (time.perf_counter() - started) / count


def take_turns(
    case: str, variants: Mapping[str, Callable[[], object]], seconds: float, *, batch: int, aims: Aims = NO_AIMS
) -> list[Measurement]:
    """Measure the variants in turns; the first is the floor that the others are compared with. Unit: microseconds."""
    for operation in variants.values():
        operation()
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for number in turns(seconds):
        for name in rotated(tuple(variants), number):
            taken[name].append(seconds_each(variants[name], batch) * US_PER_S)
    return compare(case, taken, "us", aims)


def compare(case: str, taken: Mapping[str, Sequence[float]], unit: str, aims: Aims = NO_AIMS) -> list[Measurement]:
    """Reduce what was measured in turns, the first variant being the floor."""
    floor = next(iter(taken.values()))
    results = []
    for name, values in taken.items():
        pairs = zip(values, floor, strict=True)
        ratio = None if values is floor else statistics.median(value / base for value, base in pairs)
        results.append(summarise(case, name, unit, values, ratio=ratio, aim=aims.get(name)))
    return results


def summarise(
    case: str,
    variant: str,
    unit: str,
    values: Sequence[float],
    *,
    ratio: float | None = None,
    aim: float | None = None,
) -> Measurement:
    """Return the median and the quartiles of some values."""
    low, high = min(values), max(values)
    if len(values) > 3:
        low, _, high = statistics.quantiles(values, n=4)
    return Measurement(case, variant, unit, statistics.median(values), low, high, ratio, aim)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile of some values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def amount(number: int, wanted: int, what: str) -> str:
    """Return a number in words, and the number that was aimed at if the time ended before it was reached."""
    text = f"{number:,} {what}"
    return text if number == wanted else f"{text}: time was over before {wanted:,}"


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
