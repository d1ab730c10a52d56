"""Results are files that are written whole, and page and pictures say what is in them."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from fencelock_lab.benchmarks import __main__ as command
from fencelock_lab.benchmarks import page, plots
from fencelock_lab.benchmarks.cases import held, waiting
from fencelock_lab.benchmarks.cases.guarded import CASE
from fencelock_lab.benchmarks.guards import GUARDED
from fencelock_lab.benchmarks.measure import Measurement, amount, compare, quantile, summarise, turns
from fencelock_lab.benchmarks.parts import SUBJECTS, chosen, shares
from fencelock_lab.benchmarks.peers.contest import ALONE, RATE, handing_over, many
from fencelock_lab.benchmarks.results import Report, read, read_all, write
from tests.support.helpers import ROOT

PLANTED = Report(
    subject="postgres",
    title="Planted 1.0",
    seconds=90,
    machine="a machine",
    measured="2001-02-03 04:05 UTC",
    results=[
        Measurement(ALONE, "by hand", "us", 111.0, 100.0, 120.0, lacks="no waiting"),
        Measurement(ALONE, "fencelock", "us", 123.4, 110.0, 130.0, ratio=1.117),
        Measurement(ALONE, "somebody", "us", 5678.9, 5000.0, 6000.0, ratio=51.2, lacks="no token"),
        Measurement(f"{ALONE}, p99", "by hand", "us", 222.0, 222.0, 222.0),
        Measurement(f"{ALONE}, p99", "fencelock", "us", 234.0, 234.0, 234.0),
        Measurement(f"{ALONE}, p99", "somebody", "us", 7777.0, 7777.0, 7777.0),
        Measurement(many(RATE, 2), "fencelock", "/s", 4321.0, 4321.0, 4321.0),
        Measurement(many(RATE, 64), "fencelock", "/s", 1234.0, 1234.0, 1234.0),
        Measurement(handing_over(8), "fencelock", "ms", 0.876, 0.7, 0.9),
        Measurement("a question", "quick enough", "us", 10.0, 9.0, 11.0, ratio=1.2, aim=1.3),
        Measurement("a question", "too slow", "us", 20.0, 19.0, 21.0, ratio=1.4, aim=1.3),
        Measurement(f"{CASE}, a planted kind", GUARDED, "us", 20.0, 19.0, 21.0, ratio=1.5, aim=1.4),
        Measurement(waiting.HAND_OFF, "10,000 waiting", "ms", 3.21, 3.0, 4.0),
        Measurement(held.RENEWAL, "1,000 leases", "% of a core", 0.0, 0.0, 0.0),
        Measurement(held.RENEWAL, "10,000 leases", "% of a core", 3.5, 3.5, 3.5, aim=3.0),
    ],
    failed={"known": "OSError: no room"},
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = write(PLANTED, tmp_path)
    found = read(path)
    assert found == replace(
        PLANTED,
        results=[replace(one, median=round(one.median, 1)) if one.median > 1000 else one for one in found.results],
    )
    assert [one.median for one in found.results] == pytest.approx([one.median for one in PLANTED.results], rel=1e-3)
    assert write(found, tmp_path).read_text() == path.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["postgres.json"]


def test_the_table_has_a_row_for_each_who_was_measured() -> None:
    told = page.as_markdown([PLANTED])
    (row,) = [line for line in told.splitlines() if line.startswith("| fencelock |")]
    assert row == "| fencelock | 123 | 234 |  | 1.12x | 4,321 |  |  | 1,234 |  |  |  | 0.876 (0.7 to 0.9) |  |  |"
    (row,) = [line for line in told.splitlines() if line.startswith("| somebody |")]
    assert row.startswith("| somebody | 5,679 | 7,777 |")
    assert row.endswith("| no token |")


def test_a_rate_of_several_turns_has_its_range_and_one_of_a_single_turn_says_so() -> None:
    assert "in one turn of one second:" in page.as_markdown([PLANTED])
    nobody_waits = [one for one in PLANTED.results if not one.case.startswith(RATE)]
    assert "in one turn of one second:" not in page.as_markdown([replace(PLANTED, results=nobody_waits)])
    rates = summarise(many(RATE, 8), "fencelock", "/s", [900.0, 1000.0, 1300.0])
    told = page.as_markdown([replace(PLANTED, results=[*PLANTED.results, rates])])
    assert "| 1,000 (900 to 1,300) |" in told
    assert "in one turn of one second:" not in told


def test_each_store_says_what_was_measured_and_who_waits_for_a_disk() -> None:
    assert set(page.SERVERS) == {subject for subject, parts in SUBJECTS.items() if {"contest", "guarded"} & set(parts)}
    assert "**An emulator" in page.as_markdown([replace(PLANTED, subject="dynamodb")])
    assert "`appendfsync always`" in page.as_markdown([replace(PLANTED, subject="redis")])


def test_what_is_missed_or_not_measured_is_said() -> None:
    told = page.as_markdown([PLANTED])
    assert "| a question | quick enough | 10 us | 9 to 11 | 1.2x | 1.3x: met |" in told
    assert "|  | too slow | 20 us | 19 to 21 | 1.4x | 1.3x: *missed* |" in told
    assert "|  | 10,000 leases | 3.5 % of a core |  |  | 3 % of a core: *missed* |" in told
    assert "Not measured: known (OSError: no room)." in told


@pytest.mark.campaign
def test_pictures_show_everybody_and_are_the_same_each_time() -> None:
    pictures = plots.draw([PLANTED])
    assert set(pictures) == {"postgres", "guarded", "scale"}
    assert "Planted 1.0: a planted kind" in _words(pictures["guarded"])
    for name in ("by hand", "fencelock", "somebody"):
        assert name in _words(pictures["postgres"])
    assert "Planted 1.0" in _words(pictures["scale"])
    assert plots.draw([PLANTED]) == pictures


def _words(picture: str) -> str:
    return "".join(ET.fromstring(picture).itertext())  # noqa: S314 - our own


def test_a_ratio_is_the_median_of_each_turns_ratio() -> None:
    floor, other = compare("case", {"floor": [1.0, 10.0, 100.0], "other": [2.0, 20.0, 900.0]}, "us", {"other": 1.9})
    assert (floor.ratio, floor.is_missed) == (None, False)
    assert (other.median, other.ratio, other.is_missed) == (20.0, 2.0, True)
    assert not replace(other, aim=2.0).is_missed
    assert quantile([float(number) for number in range(1, 101)], 0.99) == 100.0
    assert summarise("case", "one", "ms", [3.0]).high == 3.0


def test_a_number_that_time_cut_says_so() -> None:
    assert amount(1_000, 1_000, "leases") == "1,000 leases"
    assert amount(43_071, 100_000, "leases") == "43,071 leases: time was over before 100,000"


def test_time_that_is_left_over_goes_to_the_parts_that_follow() -> None:
    given = dict(shares({"first": 1.0, "second": 1.0, "third": 2.0}, 100.0))
    # None of them took any time.
    assert given == pytest.approx({"first": 25.0, "second": 33.3, "third": 100.0}, rel=0.01)
    assert [share for _, share in shares({"first": 1.0, "second": 3.0}, 0.0)] == [0.0, 0.0]
    assert len(list(turns(0.0))) == 3


def test_parts_are_chosen_by_name() -> None:
    assert chosen(["postgres", "simulated"], ["guarded"]) == {"postgres": {"guarded": SUBJECTS["postgres"]["guarded"]}}
    assert chosen(SUBJECTS, []) == SUBJECTS
    assert set(command.QUESTIONS) == {part for parts in SUBJECTS.values() for part in parts}


@pytest.mark.campaign
def test_the_command_writes_results_and_page(tmp_path: Path) -> None:
    # The results of another subject, from another run, stay.
    write(PLANTED, tmp_path)
    words = ["--store", "simulated", "--minutes", "0", "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "fencelock_lab.benchmarks", *words], cwd=ROOT, check=True, timeout=100)
    assert [report.title for report in read_all(tmp_path)] == ["Planted 1.0", "Simulated"]
    told = (tmp_path / "measured.md").read_text()
    assert "## Planted 1.0" in told
    assert "| requests for each beat | 1,000 leases | 1 requests |" in told
    draw = ["--draw", str(tmp_path / "pictures"), "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "fencelock_lab.benchmarks", *draw], cwd=ROOT, check=True, timeout=100)
    assert {one.name for one in (tmp_path / "pictures").iterdir()} == {"postgres.svg", "guarded.svg", "scale.svg"}


def test_a_subject_that_fails_leaves_the_others_what_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(name: str, *_: object) -> bool:
        if name == "etcd":
            return False
        write(replace(PLANTED, subject=name, title=name, results=[]), tmp_path)
        return True

    monkeypatch.setattr(command, "measured", measured)
    monkeypatch.setattr(sys, "argv", ["fencelock_lab.benchmarks", "--out", str(tmp_path)])
    assert command.main() == 1
    assert [report.title for report in read_all(tmp_path)] == [name for name in SUBJECTS if name != "etcd"]
    assert "## zookeeper" in (tmp_path / "measured.md").read_text()


@pytest.mark.parametrize(
    ("words", "advice"), [(["guarded"], "--out"), (["gaurded", "--out", "x"], "there are contest")]
)
def test_a_mistake_is_answered(
    words: list[str], advice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fencelock_lab.benchmarks", *words])
    with pytest.raises(SystemExit):
        command.main()
    assert advice in capsys.readouterr().err
