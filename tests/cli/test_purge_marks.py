"""`fencelock purge --marks`, and the floor that `marks` and `doctor` show, and `marks` cures."""

from pathlib import Path

import pytest

import fencelock
from fencelock import SealLostError, StaleTokenError
from tests.cli.program import Program, program
from tests.support.guards import ask, make_file, url_of
from tests.support.purged_marks import Shop

__all__ = ["program"]
REASON = ("--reason", "a test")


@pytest.fixture
def app(tmp_path: Path) -> str:
    return url_of(make_file(tmp_path / "app.db"))


@pytest.fixture
def shop(program: Program, app: str, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(program.url, app, monkeypatch)


def purge(program: Program, app: str, *words: str) -> dict[str, int]:
    done: dict[str, int] = program.json("purge", "--marks", "--guard", app, "--source", program.url, *words)
    return done


def test_g15_marks_are_purged_and_their_floor_is_shown(program: Program, app: str, shop: Shop) -> None:
    stale = shop.work()
    assert purge(program, app, "--older-than", "1") == {"purged": 0}
    assert purge(program, app, "--older-than", "0") == {"purged": 1}
    floors = [{"source_id": shop.source_id, "token": str(stale.token)}]
    assert program.json("marks", app) == {"resources": [], "floors": floors}
    text = program.inside("marks", app).stdout
    assert "A resource without a mark takes only tokens above the floor:\nSOURCE" in text
    assert f"{shop.source_id}  {stale.token}\n" in text
    with pytest.raises((StaleTokenError, SealLostError)):
        shop.guard().seal(stale)
    shop.work()


def test_a_purge_of_the_marks_of_an_unknown_source_creates_no_file(program: Program, app: str, tmp_path: Path) -> None:
    nowhere = tmp_path / "folder" / "nowhere.db"
    words = ("purge", "--marks", "--guard", app, "--source", url_of(nowhere), "--older-than", "0")
    assert program.inside(*words).returncode != 0
    assert not nowhere.parent.exists()


def test_purge_forgets_either_results_or_marks(program: Program, app: str) -> None:
    done = program.inside("purge", "--marks", "--done", "--guard", app, "--older-than", "1")
    assert done.returncode == 64
    assert "write either --done or --marks" in done.stderr


def test_g15_after_a_restore_the_floor_is_raised_too(program: Program, app: str, shop: Shop) -> None:
    """The backup has no mark at all."""
    lost = shop.acquire().sequencer
    newest = shop.acquire(2)
    raised = program.json("marks", app, "--raise-to", program.url, "--reason", "restored")
    assert raised == {"resources": [], "floors": [{"source_id": shop.source_id, "token": str(newest.token)}]}
    with pytest.raises(StaleTokenError):
        shop.guard().seal(lost)
    for resource in ("order:2", "order:3"):
        assert program.inside("marks", app, "--resource", resource, "--raise-to", program.url, *REASON).returncode == 1


def test_doctor_finds_a_floor_above_its_source_and_marks_lowers_it(program: Program, app: str, shop: Shop) -> None:
    token = shop.work().token
    fencelock.set_floor(app, shop.source_id, 10**6, reason="a mistake")
    done = program.inside("doctor", "--source", program.url, "--guard", app)
    assert done.returncode == 1
    assert "floor-above-source: " in done.stdout
    assert f"--floor {shop.source_id} --lower {token} --reason" in done.stdout
    words = ("marks", app, "--floor", shop.source_id, "--lower", str(token))
    assert program.inside(*words).returncode == 64
    assert program.json(*words, *REASON)["floors"] == [{"source_id": shop.source_id, "token": str(token)}]
    assert "nothing to lower" in program.inside(*words, *REASON).stderr
    assert "floor-above-source" not in program.inside("doctor", "--source", program.url, "--guard", app).stdout
    entries = ask(
        Path(app.removeprefix("sqlite:///")), "SELECT action, resource, from_token, to_token FROM fencelock_audit"
    )
    assert entries == [("floor", "", 0, 10**6), ("floor", "", 10**6, token)]


@pytest.mark.parametrize(
    "words",
    [
        ("--floor", "s", *REASON),
        ("--floor", "s", "--resource", "r", "--lower", "5", *REASON),
        ("--lower", "5", *REASON),
    ],
)
def test_one_mark_or_one_floor_is_lowered(program: Program, app: str, words: tuple[str, ...]) -> None:
    done = program.inside("marks", app, *words)
    assert done.returncode == 64
    assert "--floor" in done.stderr
