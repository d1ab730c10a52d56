"""Every case works on every store, as short as it can be: nothing failed, and every part has figures."""

import math

import pytest

from benchmarks import subject
from benchmarks.cases import known
from benchmarks.parts import SUBJECTS
from benchmarks.peers import contest
from tests.benchmarks.test_contest import SHORT

SERVED = [one for one in SUBJECTS if one != "redis"]
"""Nobody whom the tests install offers locks on Redis."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_every_case_works(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "COUNTS", (10, 1_000))
    for constant, value in {**SHORT, "PROCESSES": (2, 4), "WAITERS": (1, 3)}.items():
        monkeypatch.setattr(contest, constant, value)
    report = subject.measure(name, 0, [])
    assert not report.failed
    assert report.results
    assert all(math.isfinite(result.median) and result.median >= 0 for result in report.results)


def test_a_part_that_fails_loses_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("it is broken")

    monkeypatch.setattr(contest, "run", fail)
    report = subject.measure("sqlite", 0, ["contest", "guarded"])
    assert report.failed == {"contest": "RuntimeError: it is broken"}
    assert {result.case.partition(",")[0] for result in report.results} == {"a guarded write"}
