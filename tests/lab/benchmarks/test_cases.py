"""Every case works on every store, as short as it can be: nothing failed, and every part has figures."""

import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import NoReturn

import pytest

from fencelock_lab.benchmarks import subject
from fencelock_lab.benchmarks.cases import held, known, waiting
from fencelock_lab.benchmarks.guards import s3
from fencelock_lab.benchmarks.parts import SUBJECTS
from fencelock_lab.benchmarks.peers import contest
from fencelock_lab.benchmarks.results import Report
from fencelock_lab.benchmarks.stores import site
from tests.lab.benchmarks.test_contest import SHORT


def alone(act: Callable[..., Report], *arguments: object) -> Report:
    """Measure in a process of its own, as the harness does: it keeps a lease, and its children's environment."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(act, *arguments).result()


def measure_briefly(name: str) -> Report:
    known.COUNTS = (10, 1_000)
    s3.KINDS = [replace(kind, replaced=min(kind.replaced, 20)) for kind in s3.KINDS]
    for constant, value in {**SHORT, "PROCESSES": (2, 4), "WAITERS": (1, 3)}.items():
        setattr(contest, constant, value)
    return subject.measure(name, 0, [])


def measure_while_the_contest_fails() -> Report:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("it is broken")

    contest.run = fail
    return subject.measure("sqlite", 0, ["contest", "guarded"])


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_case_works(name: str) -> None:
    report = alone(measure_briefly, name)
    assert not report.failed
    assert report.results
    assert all(math.isfinite(result.median) and result.median >= 0 for result in report.results)


def test_a_part_that_fails_loses_only_itself() -> None:
    report = alone(measure_while_the_contest_fails)
    assert report.failed == {"contest": "RuntimeError: it is broken"}
    assert {result.case.partition(",")[0] for result in report.results} == {"a guarded write"}


def test_each_size_of_a_queue_and_of_many_leases_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "BEAT_S", 0.1)
    for module in (held, waiting):
        monkeypatch.setattr(module, "COUNTS", (1, 20))
    with site("sqlite") as place:
        leases = held.run(place, 60.0)
        queues = waiting.run(place, 60.0)
    for results, case, sizes in (
        (leases, held.RENEWAL, ["1 lease", "20 leases"]),
        (leases, held.BESIDE, ["1 lease", "20 leases"]),
        (queues, waiting.HAND_OFF, ["1 waiting", "20 waiting"]),
    ):
        assert [result.variant for result in results if result.case == case] == sizes


def test_several_threads_take_each_lease_once_and_none_once_time_is_over(tmp_path: Path) -> None:
    holder = held.Holder(f"sqlite:///{tmp_path}/locks.db", 2)
    assert holder.take(1, 0.0)[0] == 1
    assert holder.take(30, 60.0)[0] == 30
    # Each thread takes one more before it looks at the time.
    assert 30 < holder.take(1_000, 0.0)[0] <= 32
    assert len({lease.token for lease in holder.leases}) == len(holder.leases)
