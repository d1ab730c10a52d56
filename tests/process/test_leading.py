"""Leaders in processes of their own: one is frozen past its ttl, and leads again after the next one was killed (K1)."""

from pathlib import Path

import pytest

import fencelock
from tests.process.actors import Actor, Stage
from tests.process.guard_stage import file, guard_of, play, stage
from tests.support.helpers import wait_until

__all__ = ["file", "stage"]
pytestmark = pytest.mark.process

LEADER = """
TTL = {ttl}
import fencelock._api.leading
fencelock._api.leading.FIRST_PAUSE_S = 0.01
told = fencelock.Hooks(on_retried=lambda event: say(["retried", event.token]))
for term in fencelock.connect(URL, hooks=told).lead("nightly-report", ttl=TTL):
    with term as lease:
        say(["leads", lease.token])
        hear()
        with guard.transaction(lease) as connection:
            write(connection, lease.token)
        say(["wrote", lease.token])
        lease.lost.wait()
"""


def wrote(leader: Actor) -> int:
    """Let it lead until it has written, and return its token; on a busy machine its short lease may end before."""
    while (said := leader.hear())[0] != "wrote":
        if said[0] == "leads":
            leader.say()
    token: int = said[1]
    return token


def test_k1_leaders_survive_freezes_and_deaths_of_each_other(stage: Stage, file: Path) -> None:
    one = play(stage, LEADER.format(ttl=0.5))
    while (said := one.hear())[0] != "leads":  # On a busy machine its first lease may be over before.
        pass
    first = said[1]
    two = play(stage, LEADER.format(ttl=30))
    with fencelock.connect(stage.url) as source:
        wait_until(lambda: source.info("nightly-report").token != first or source.info("nightly-report").waiters)
        one.freeze()
        second = wrote(two)
        assert second > first
        # It wakes in the middle of its body, and writes: refused, by the lease or by the mark.
        one.say()
        one.thaw()
        assert one.hear() == ["retried", first]
        two.kill()
        source.break_lock("nightly-report", reason="its holder is dead")
        third = wrote(one)
    assert third > second
    assert guard_of(file).mark().token == third
