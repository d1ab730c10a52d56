"""Contenders take turns in processes of their own; who is not installed is left out, and everybody else is measured."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from fencelock_lab.benchmarks.measure import Measurement
from fencelock_lab.benchmarks.parts import SUBJECTS
from fencelock_lab.benchmarks.peers import contest
from fencelock_lab.benchmarks.peers.contender import Contender
from fencelock_lab.benchmarks.peers.contest import ALONE, FAIRNESS, RATE, handing_over, many
from fencelock_lab.benchmarks.peers.player import Player, contenders
from fencelock_lab.benchmarks.stores import Site, site

SHORT: dict[str, object] = {"BATCH": 5, "HAND_OFFS": 3, "CONTEND_S": 0.1, "SETTLE_S": 0.05, "TURNS": 2}
STORES = [subject for subject, parts in SUBJECTS.items() if "contest" in parts]


@pytest.mark.parametrize("store", STORES)
def test_everybody_on_a_store_is_named_once_and_says_what_it_lacks(store: str) -> None:
    found = contenders(store)
    assert len({one.name for one in found}) == len(found)
    assert all(one.lacks for one in found if not one.name.startswith("fencelock"))


def test_a_contest_measures_who_is_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {**SHORT, "PROCESSES": (2, 5), "WAITERS": (1, 3)}.items():
        monkeypatch.setattr(contest, name, value)
    with site("sqlite") as place:
        results = contest.run(place, 0)
    assert _variants(results, ALONE) >= {"two SQLite transactions by hand", "fencelock", "flock(2) by hand"}
    for case in (many(RATE, 2), many(FAIRNESS, 5), handing_over(1), handing_over(3)):
        assert _variants(results, case) >= {"fencelock", "flock(2) by hand"}, case
    assert all(result.median > 0 for result in results)
    assert all(one.low < one.high for one in results if one.case == many(RATE, 2)), "each had several turns"
    (flock,) = [one for one in results if one.variant == "flock(2) by hand" and one.case == ALONE]
    assert "freed by the kernel" in flock.lacks
    left_out = capsys.readouterr().err
    for one in contenders("sqlite"):
        if one.name not in _variants(results, ALONE):
            assert f"left out: {one.name}: ModuleNotFoundError" in left_out


class LaterFailure(Player):
    """A contender's process that works for a while: fencelock's fails after its first batch."""

    def __init__(self, _: str, contender: Contender, *__: str) -> None:
        self.contender = contender
        self.batches = 0

    def ask(self, *command: object, request_timeout_s: float = 0.0) -> list[int]:
        """Play a batch."""
        self.batches += 1
        if self.contender.name == "fencelock" and self.batches > 1:
            raise ChildProcessError("fencelock: no answer in 15 s")
        return [1000] * int(str(command[1]))

    def close(self) -> None:
        """Do nothing: there is no process."""


def test_a_contender_that_fails_later_costs_nobody_else_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**SHORT, "PROCESSES": (), "WAITERS": (), "Player": LaterFailure}.items():
        monkeypatch.setattr(contest, name, value)
    with site("sqlite") as place:
        results = contest.run(place, 0)
    assert _variants(results, ALONE) == {one.name for one in contenders("sqlite")} - {"fencelock"}
    assert "left out: fencelock: no answer in 15 s" in capsys.readouterr().err


class Idle(LaterFailure):
    """A contender's process that does nothing."""

    def ask(self, *_: object, request_timeout_s: float = 0.0) -> list[int]:
        """Answer as if there had been one cycle."""
        return [1000]

    def send(self, *command: object) -> None:
        """Do nothing."""

    def receive(self, request_timeout_s: float = 0.0) -> None:
        """Do nothing."""


def test_no_more_processes_compete_than_a_store_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def measure(_: int, players: Sequence[Player]) -> contest.Measured:
        sizes.append(len(players))
        return {}

    for name, value in {"Player": Idle, "_contend": measure, "_hand_over": measure}.items():
        monkeypatch.setattr(contest, name, value)
    contest.Contest(Site("dynamodb", "", "", most_processes=9)).run(0)
    assert set(sizes) == {2, 8, 9}, "8 compete, and 8 wait for one"


def test_where_nobody_waits_no_time_is_spent_on_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    def take_turns(seconds: float) -> range:
        turns.append(seconds)
        return range(1)

    alone = [one for one in contenders("s3") if not one.can_wait]
    for name, value in {"Player": Idle, "turns": take_turns, "contenders": lambda _: alone}.items():
        monkeypatch.setattr(contest, name, value)
    results = contest.Contest(Site("s3", "", "")).run(600.0)
    assert turns == [600.0], "all of it is for those alone"
    assert {one.variant for one in results} == {one.name for one in alone}


def _variants(results: list[Measurement], case: str) -> set[str]:
    return {result.variant for result in results if result.case == case}


@pytest.fixture
def refused() -> Iterator[Player]:
    """A contender whose store is refused."""
    (one,) = [each for each in contenders("sqlite") if each.name == "fencelock"]
    with closing(Player("sqlite", one, "redis://127.0.0.1", "alone")) as player:
        yield player


def test_a_contender_that_fails_says_why(refused: Player) -> None:
    with pytest.raises(ChildProcessError, match="UnsafeSourceError"):
        refused.ask("acquire")
