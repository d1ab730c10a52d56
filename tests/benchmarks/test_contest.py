"""Contenders take turns in processes of their own; who is not installed is left out, and everybody else is measured."""

import pytest

from benchmarks.measure import Result
from benchmarks.peers import contest
from benchmarks.peers.contest import Contest
from benchmarks.peers.places import STORES, place
from benchmarks.peers.player import Player, contenders
from benchmarks.report import as_markdown


@pytest.mark.parametrize("store", STORES)
def test_everybody_on_a_store_is_named_once_and_says_what_it_lacks(store: str) -> None:
    found = contenders(store)
    assert len({one.name for one in found}) == len(found)
    assert all(one.lacks for one in found if not one.name.startswith("fenceline"))


def test_a_contest_measures_who_is_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"TURNS": 1, "BATCH": 5, "HAND_OFFS": 3, "CONTEND_S": 0.2, "SETTLE_S": 0.05}.items():
        monkeypatch.setattr(contest, name, value)
    with place("files") as url:
        results = Contest("files", url, 0.1).run()
    measured = {result.case: _variants(results, result.case) for result in results}
    assert measured["files: acquire and release"] >= {
        "two SQLite transactions by hand",
        "fenceline",
        "flock(2) by hand",
    }
    assert measured["files: hand-off, 1 waiting"] >= {"fenceline", "flock(2) by hand"}
    assert all(result.median > 0 for result in results)
    assert "freed by the kernel" in as_markdown(results)
    left_out = capsys.readouterr().err
    everybody = {one.name for one in contenders("files")}
    for name in everybody - measured["files: acquire and release"]:
        assert f"left out: {name}: ModuleNotFoundError" in left_out


def _variants(results: list[Result], case: str) -> set[str]:
    return {result.variant for result in results if result.case == case}


def test_a_contender_that_fails_says_why() -> None:
    (one,) = [each for each in contenders("files") if each.name == "fenceline"]
    player = Player("files", one, "redis://127.0.0.1", "alone")
    try:
        with pytest.raises(ChildProcessError, match="UnsafeSourceError"):
            player.ask("acquire")
    finally:
        player.close()
