"""A holder that is frozen in the middle of an effect that nothing can fence, as a real process."""

from pathlib import Path

import pytest

import fencelock
from fencelock import AlreadyDoneError, EffectInDoubtError
from tests.process.actors import Stage
from tests.process.guard_stage import file, guard_of, play, stage
from tests.support.guards import LOCK

__all__ = ["file", "stage"]

pytestmark = pytest.mark.process
KEY = "mail/7"


def test_g13_a_holder_frozen_in_its_effect_records_no_result_and_its_successor_sees_the_intent(
    stage: Stage, file: Path
) -> None:
    old = play(
        stage,
        """
        guard.mark()  # Imports what is imported late.
        early_beats()
        lease = source.lock("nightly-report", ttl=1.5).acquire()
        try:
            with fencelock.dispatch(lease, guard, key="mail/7", need=0.2) as effect:
                say(lease.token)
                hear()
                effect.result = "sent late"
        except fencelock.StaleTokenError as error:
            say(error.mark)
        """,
    )
    token = old.hear()
    old.freeze()
    with fencelock.connect(stage.url) as source, source.lock(LOCK, timeout=20) as lease:
        with pytest.raises(EffectInDoubtError, match=f"with token {token}") as doubt:
            fencelock.dispatch(lease, guard_of(file), key=KEY, need=1).__enter__()
        assert f":{old.pid}:" in doubt.value.holder
        old.thaw()
        old.say()
        assert old.hear() == lease.token
        with fencelock.dispatch(lease, guard_of(file), key=KEY, need=1, may_repeat=True) as effect:
            effect.result = "it was sent: the other side says so"
        with pytest.raises(AlreadyDoneError) as done:
            fencelock.dispatch(lease, guard_of(file), key=KEY, need=1).__enter__()
        assert done.value.result == "it was sent: the other side says so"


@pytest.mark.parametrize("moment", ["before", "inside"])
def test_g13_a_holder_killed_in_its_effect_leaves_it_in_doubt(stage: Stage, file: Path, moment: str) -> None:
    old = play(
        stage,
        f"""
        lease = source.lock("nightly-report", ttl=30.0).acquire()
        effect = fencelock.dispatch(lease, guard, key="mail/7", need=0.2)
        if "{moment}" == "inside":
            effect.__enter__()
        say()
        hear()
        """,
    )
    old.hear()
    old.kill()
    with fencelock.connect(stage.url) as source:
        source.break_lock(LOCK, reason="its process was killed")
        with source.lock(LOCK, timeout=20) as lease:
            block = fencelock.dispatch(lease, guard_of(file), key=KEY, need=1)
            if moment == "inside":
                with pytest.raises(EffectInDoubtError):
                    block.__enter__()
            else:
                with block:
                    pass
