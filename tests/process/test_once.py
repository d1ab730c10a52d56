"""The rule G14 with real processes: a worker that is killed or frozen at each point, and the one that comes after."""

from pathlib import Path

import pytest

import fencelock
from fencelock import AlreadyDoneError
from tests.process.actors import Stage
from tests.process.guard_stage import file, guard_of, play, stage
from tests.support.guards import LOCK, ask, value_in

__all__ = ["file", "stage"]

pytestmark = pytest.mark.process
WORKER = """
lease = source.lock("nightly-report", ttl=30.0).acquire()
point = hear()
if point == "before": say(); hear()
try:
    block = guard.transaction(lease, once="2026-11-22")
    native = block.__enter__()
    if point == "begun": say(); hear()
    native.execute("UPDATE reports SET value = value + 1")
    if point == "worked": say(); hear()
    block.__exit__(None, None, None)
    if point == "committed": say(); hear()
    say("done")
except fencelock.FencelockError as error:
    lease.release()
    say(type(error).__name__)
"""


def work(stage: Stage, file: Path) -> str:
    """Do the night's work as the next worker, in this process, once the former one's lease is over."""
    with fencelock.connect(stage.url) as source:
        source.break_lock(LOCK, reason="as if it had expired")
        with source.lock(LOCK, timeout=20) as lease:
            try:
                with guard_of(file).transaction(lease, once="2026-11-22") as native:
                    native.execute("UPDATE reports SET value = value + 1")
            except AlreadyDoneError:
                return "done before"
    return "done"


@pytest.mark.parametrize("point", ["before", "begun", "worked", "committed"])
def test_g14_a_worker_that_is_killed_has_done_all_of_it_or_nothing(stage: Stage, file: Path, point: str) -> None:
    killed = play(stage, WORKER)
    killed.say(point)
    killed.hear()
    killed.kill()
    assert work(stage, file) == ("done before" if point == "committed" else "done")
    assert value_in(file) == 1
    assert len(ask(file, "SELECT key FROM fencelock_effect")) == 1


def test_g14_a_worker_that_was_frozen_does_not_do_it_a_second_time(stage: Stage, file: Path) -> None:
    """Its lease is over when it wakes, and a new one is told."""
    frozen = play(stage, WORKER)
    frozen.say("before")
    frozen.hear()
    frozen.freeze()
    assert work(stage, file) == "done"
    frozen.thaw()
    frozen.say()
    assert frozen.hear() in ("LeaseExpiredError", "LeaseLostError", "AlreadyDoneError")
    assert work(stage, file) == "done before"
    assert value_in(file) == 1


def test_g14_three_workers_with_the_same_night_do_it_once(stage: Stage, file: Path) -> None:
    script = WORKER.replace('    say("done")', '    lease.release()\n    say("done")')
    workers = [play(stage, script) for _ in range(3)]
    for one in workers:
        one.say("at once")
    assert sorted(one.hear() for one in workers) == ["AlreadyDoneError", "AlreadyDoneError", "done"]
    assert value_in(file) == 1
