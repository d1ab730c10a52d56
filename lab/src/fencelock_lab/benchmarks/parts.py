"""The parts of a run, and each part's share of the time.

Each subject, a store or another question, is measured in its own process, so a failure does not affect the others. A
part gets its share of the time that is left, so a part that ends early leaves its time to the later ones.
"""

import time
from collections.abc import Iterable, Iterator, Mapping

_QUESTIONS = {"cycle": 8.0, "guarded": 20.0, "waiting": 50.0, "held": 65.0}
SUBJECTS: Mapping[str, Mapping[str, float]] = {
    "sqlite": {"contest": 280.0, **_QUESTIONS, "known": 15.0},
    "postgres": {"contest": 280.0, **_QUESTIONS, "known": 20.0, "held": 80.0},
    "mysql": {"contest": 150.0, **_QUESTIONS, "held": 80.0},
    "etcd": {"contest": 125.0, **_QUESTIONS},
    "zookeeper": {"contest": 190.0, **_QUESTIONS},
    "dynamodb": {"cycle": 20.0, "guarded": 45.0, "requests": 5.0, "contest": 190.0},
    "s3": {"cycle": 20.0, "guarded": 80.0, "requests": 5.0, "contest": 190.0},
    "redis": {"contest": 215.0, "guarded": 75.0},
    "files": {"guarded": 40.0},
    "http": {"http": 60.0},
    "startup": {"startup": 45.0},
    "simulated": {"simulated": 40.0},
}
"""The parts of each, in their order, with the seconds of each in a full run.

A contest comes last where its few turns may take longer than that: waiters look from time to time there. `requests`
follows `guarded`: once a process has read under a lease, it seals no other resource for it.
"""
FULL_S = sum(sum(parts.values()) for parts in SUBJECTS.values())


def shares(parts: Mapping[str, float], seconds: float) -> Iterator[tuple[str, float]]:
    """Yield each part with the time that it may take now, in proportion to its weight."""
    until = time.monotonic() + seconds
    weights = dict(parts)
    for part, weight in parts.items():
        left = max(until - time.monotonic(), 0.0)
        yield part, left * weight / sum(weights.values())
        del weights[part]


def chosen(subjects: Iterable[str], cases: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the chosen parts of these subjects; all parts if none is named."""
    wanted = set(cases)
    found = {
        subject: {part: weight for part, weight in SUBJECTS[subject].items() if not wanted or part in wanted}
        for subject in subjects
    }
    return {subject: parts for subject, parts in found.items() if parts}
