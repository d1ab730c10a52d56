"""Planted histories of who was granted a lock when, and who was told of a loss: violations, and legal look-alikes."""

import pytest

from fencelock_lab.campaigns.history import HistoryError
from fencelock_lab.campaigns.verdict import judge
from tests.lab.campaigns.planted import LOCK, Script
from tests.lab.campaigns.test_checkers import rules

FIFO = {"fifo": True}
LOSSES = {"loss_within": 1.0}
OVERTAKEN = "grants that overtook a process which had asked much earlier"
TURNS = 10
"""More grants than three processes at a lock may have before one that asked earlier."""


def barging(turns: int, *, promises: dict[str, bool] | None = None, later: float = 4.0) -> Script:
    """Process w asks, and is granted the lock after so many turns of two others, which asked so much later."""
    script = Script(promises=FIFO if promises is None else promises)
    for turn in range(turns):
        at = 1.0 + later + turn
        script.acquire(f"b{turn % 2}", at, at + 0.1, 10 + turn).release(f"b{turn % 2}", at + 0.5, at + 0.6, 10 + turn)
    return script.acquire("w", 1.0, 40.0, 100)


def overtaken(script: Script) -> int:
    return judge(script.history()).findings.information.get(OVERTAKEN, 0)


def test_a_lock_that_lets_others_in_first_is_blamed() -> None:
    assert rules(barging(TURNS)) == {"overtaken"}


def test_a_lock_whose_waiter_gives_up_while_others_are_let_in_is_blamed() -> None:
    script = Script(promises=FIFO)
    for turn in range(TURNS):
        script.acquire(f"b{turn % 2}", 5.0 + turn, 5.1 + turn, 10 + turn)
    assert rules(script.call("w", "acquire", 1.0, 30.0, outcome="fail", error="not obtained")) == {"overtaken"}


def test_a_few_grants_before_ones_turn_are_counted_only() -> None:
    script = barging(TURNS - 1)
    assert rules(script) == set()
    assert overtaken(script) == TURNS - 1


ORDERLY = {
    "the first line promises no order": barging(TURNS, promises={}),
    "they asked earlier, or at about the same time": barging(1, later=-0.5),
    "it was frozen while it waited": barging(TURNS).event(2.0, "freeze", victim="w").event(2.5, "thaw", victim="w"),
    "another thread of its process was frozen": barging(TURNS).event(2.0, "freeze", victim="w/1"),
    "its network was cut": barging(TURNS).event(1.5, "partition", victim="w", side="source", seconds=1.0),
    "its network had been cut just before": barging(TURNS).event(0.5, "cut", victim="w", side="source", seconds=0.0),
    "a server was killed": barging(TURNS).event(5.0, "server-kill", servers=["s"]),
    "it was granted the lock before them, and told late": barging(TURNS).acquire("v", 1.0, 40.0, 9),
}


@pytest.mark.parametrize("name", ORDERLY)
def test_what_explains_the_order_is_no_violation(name: str) -> None:
    assert "overtaken" not in rules(ORDERLY[name])


def test_a_wait_that_is_told_late_was_not_overtaken() -> None:
    script = Script(promises=FIFO).acquire("w", 1.0, 40.0, 9)
    for turn in range(TURNS):
        script.acquire(f"b{turn % 2}", 5.0 + turn, 5.1 + turn, 10 + turn)
    assert (rules(script), overtaken(script)) == (set(), 0)


def test_a_holder_that_enters_again_overtakes_nobody() -> None:
    script = Script(promises=FIFO).acquire("h", 0.5, 0.6, 10)
    for turn in range(TURNS):
        script.acquire("h", 5.0 + turn, 5.1 + turn, 10)
    assert overtaken(script.acquire("w", 1.0, 20.0, 11)) == 0


# --- losses -----------------------------------------------------------------------------------------------------------
def lost(**promises: float) -> Script:
    """Process 1 goes on until 20 s after the lock was granted to process 2."""
    script = Script(promises=promises or LOSSES).acquire("1", 1.0, 1.1, 10, until=2.0).acquire("2", 1.5, 3.0, 11)
    return script.release("1", 23.0, 23.1, 10)


def told(script: Script, at: float, victim: str = "1", lock: str = LOCK) -> Script:
    return script.event(at, "lost", victim=victim, lock=lock, reason="expired")


UNTOLD = {
    "never": lost(),
    "too late": told(lost(), 9.1),
    "to another process": told(lost(), 3.1, victim="3"),
    "of another lock": told(lost(), 3.1, lock="other"),
    "in an earlier tenure": told(lost(), 0.9),
    "too late after it woke up": told(lost().event(2.0, "freeze", victim="1").event(8.0, "thaw", victim="1"), 14.1),
}
TOLD = {
    "nothing is promised": Script().acquire("1", 1.0, 1.1, 10).acquire("2", 1.5, 3.0, 11).release("1", 23.0, 23.1, 10),
    "at its own deadline, before the other one had it": told(lost(), 2.1),
    "within the promise and the slack": told(lost(), 8.9),
    "after it woke up": told(lost().event(2.0, "freeze", victim="1").event(8.0, "thaw", victim="1"), 8.2),
    "it was frozen to the end": lost().event(4.0, "freeze", victim="1"),
    "it was killed": lost().event(4.0, "kill", victim="1"),
    "it had begun to release": lost().release("1", 8.0, 22.0, 10),
    "it asked anew": lost().release("2", 6.5, 6.6, 11).acquire("1", 7.0, 7.1, 12),
    "the same process has the lock again": Script(promises=LOSSES)
    .acquire("1", 1.0, 1.1, 10)
    .acquire("1", 5.0, 5.1, 11)
    .release("1", 30.0, 30.1, 11),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_a_loss_that_is_not_told_in_time_is_blamed(name: str) -> None:
    assert rules(UNTOLD[name]) == {"loss-untold"}


@pytest.mark.parametrize("name", TOLD)
def test_a_loss_that_is_told_or_need_not_be_is_no_violation(name: str) -> None:
    assert "loss-untold" not in rules(TOLD[name])


def test_the_slowest_loss_is_measured_from_the_next_grant_or_from_waking_up() -> None:
    amounts = judge(told(lost(), 3.25).history()).amounts
    assert (amounts.losses, amounts.slowest_loss) == (1, 0.25)
    amounts = judge(TOLD["after it woke up"].history()).amounts
    assert amounts.slowest_loss == pytest.approx(0.2)


@pytest.mark.parametrize("promises", [{"fifo": "yes"}, {"loss_within": "soon"}, {"loss_within": -1.0}])
def test_a_promise_that_cannot_be_read_is_refused(promises: dict[str, object]) -> None:
    with pytest.raises(HistoryError, match="line 1 is not valid"):
        Script(promises=promises).history()
