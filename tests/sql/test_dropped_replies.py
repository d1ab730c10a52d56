"""Exactly one reply, or exactly one request, is lost: each in turn, of every flow, by the sync and the async source.

A request whose outcome is unknown is asked again under the same claim, so a caller never sees one loss, but for the two
requests that nobody repeats. Whatever was lost, the lock is usable at once, and no token comes twice.
"""

from typing import Any

import pytest

from fencelock import OutcomeUnknownError
from fencelock._flows import renewal
from tests.sql.losses import REPEATED, Flow, LossScene, OpenScene, begin_a_history_after_a_crash, hold
from tests.sql.marks import one_version
from tests.support.helpers import wait_until

MAX_LOST = 100
"""More requests than any flow has."""
losses = pytest.mark.parametrize("loss", ["reply", "request"])


def lose(scene: LossScene, loss: str, nth: int) -> Any:
    return scene.proxy.drop_reply(nth) if loss == "reply" else scene.proxy.drop_request(nth)


def check_each_loss(flow: Flow, loss: str, open_scene: OpenScene) -> None:
    """Run a flow again and again, and lose one more of its requests or replies each time."""
    for nth in range(1, MAX_LOST):
        with open_scene() as scene:
            steps = flow(scene)
            next(steps)
            fault = lose(scene, loss, nth)
            next(steps)
            has_happened = fault.has_happened
            assert next(steps, "done") == "done"
            scene.check_usable()
        if not has_happened:
            assert nth > 1
            return
    pytest.fail("the flow did not end")


@losses
@one_version
@pytest.mark.parametrize("flow", REPEATED, ids=lambda flow: flow.__name__)
def test_h5_a_request_that_is_lost_once_is_asked_again(flow: Flow, loss: str, open_scene: OpenScene) -> None:
    check_each_loss(flow, loss, open_scene)


@losses
@pytest.mark.parametrize("sql_server", ["postgres18"], indirect=True)
def test_t7_a_history_is_begun_once_for_one_crash_though_a_request_is_lost(loss: str, open_scene: OpenScene) -> None:
    check_each_loss(begin_a_history_after_a_crash, loss, open_scene)


# --- requests that nobody repeats -----------------------------------------------------------------
@losses
@one_version
def test_raising_the_epoch_says_when_its_outcome_is_unknown(loss: str, open_scene: OpenScene) -> None:
    """What it reads first is asked again; the raise itself is not, and either happened or did not."""
    unknown = []
    for nth in range(1, MAX_LOST):
        with open_scene() as scene:
            scene.note(scene.referee.token("lock", scene.claim))
            before = scene.referee.describe()
            fault = lose(scene, loss, nth)
            try:
                info = scene.do(scene.source.raise_epoch(reason="a test"))
            except OutcomeUnknownError:
                unknown.append(nth)
                was_raised = loss == "reply"
            else:
                was_raised = True
                assert info == scene.referee.describe()
            assert scene.referee.describe().epoch == before.epoch + was_raised
            assert scene.info().is_held != was_raised
            scene.referee.release("lock", scene.claim)
            scene.check_usable()
            if not fault.has_happened:
                break
    assert unknown == list(range(min(unknown), nth)), "only the last of its requests is not asked again"
    assert min(unknown) > 1


@losses
@one_version
def test_h2_a_lost_renewal_is_doubt_and_the_next_beat_settles_it(loss: str, open_scene: OpenScene) -> None:
    with open_scene() as scene:
        claims = tuple((f"lock{number}", f"claim{number}") for number in range(5))
        for lock, claim in claims:
            scene.note(scene.referee.token(lock, claim))
        assert not scene.do(scene.source._driver.run(renewal.renew(claims))).reply.lost
        lose(scene, loss, 1)
        with pytest.raises(OutcomeUnknownError):
            scene.do(scene.source._driver.run(renewal.renew(claims)))
        beat = scene.do(scene.source._driver.run(renewal.renew(claims)))
        assert set(beat.reply.remaining_ms) == {claim for _, claim in claims}
        assert not beat.reply.lost


@losses
@one_version
def test_h5_an_acquire_that_gets_no_answer_at_all_leaves_no_orphan(loss: str, open_scene: OpenScene) -> None:
    """It gives up after a few tries; the keeper goes on until the claim is released, long before its ttl."""
    with open_scene() as scene:
        scene.note(scene.do(hold(scene)))
        faults = [lose(scene, loss, nth) for nth in range(1, 13)]
        with pytest.raises(OutcomeUnknownError):
            scene.do(scene.lock().acquire())
        assert scene.info().is_held == (loss == "reply")
        scene.check_usable()
        wait_until(lambda: all(fault.has_happened for fault in faults))
        scene.do(scene.do(scene.lock().acquire()).release())
