"""`fencelock demo`: it is really played, and its verdicts follow from what really happened."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest

import fencelock
from fencelock.cli.commands import execute
from fencelock.model import Sequencer, draw_claim, one_way
from fencelock_lab.demo import TTL_S, acts, perform
from fencelock_lab.demo.acts import ACTS, AMOUNTS, Act, Move
from fencelock_lab.demo.conductor import DemoError
from fencelock_lab.demo.record import ActRecord, DemoEvent, differences
from fencelock_lab.demo.resources import LOCK, Unsealed
from fencelock_lab.demo.svg import picture
from fencelock_lab.demo.terminal import narrate, show
from fencelock_lab.demo.timeline import Cell, State, Timeline, Tone, timeline

pytestmark = pytest.mark.process

ONE, TWO, THREE = ACTS
SVG = "{http://www.w3.org/2000/svg}"


class Performance(NamedTuple):
    """One run of the command, shared by the tests of this module."""

    data: dict[str, Any]
    svg: str
    complaints: str

    def events(self, act: int, name: str, process: str) -> list[dict[str, Any]]:
        found = self.data["acts"][act - 1]["events"]
        return [e for e in found if e["name"] == name and e.get("process") == process]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Performance:
    file = tmp_path_factory.mktemp("demo") / "picture.svg"
    program = "from fencelock.cli import main; main()"
    command = [sys.executable, "-c", program, "demo", "--json", "--svg", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Performance(json.loads(done.stdout), file.read_text(), done.stderr)


# --- what was really played ----------------------------------------------------------------


def test_unfenced_acts_lose_data_and_the_fenced_one_none(played: Performance) -> None:
    lost = [(act["acknowledged"], act["counter"], act["losers"]) for act in played.data["acts"]]
    assert lost == [(11, 1, ["B"]), (11, 10, ["A"]), (11, 11, [])]
    assert played.data["is_as_expected"] is True
    assert played.data["differences"] == []


@pytest.mark.parametrize("act", [1, 2, 3])
def test_the_first_holder_is_frozen_past_its_lease(played: Performance, act: int) -> None:
    (frozen,), (thawed,) = played.events(act, "frozen", "A"), played.events(act, "thawed", "A")
    (acquired,) = played.events(act, "acquired", "B")
    assert frozen["time"] < acquired["time"] < thawed["time"]
    assert thawed["seconds"] > played.data["ttl"] >= frozen["seconds"] > 0


@pytest.mark.parametrize("act", [1, 2, 3])
def test_the_second_holder_has_the_higher_token(played: Performance, act: int) -> None:
    first, second = (played.events(act, "acquired", name)[0]["token"] for name in "AB")
    assert isinstance(first, str)
    assert int(second) > int(first) > 0


@pytest.mark.parametrize("act", [1, 2, 3])
def test_the_stale_write_follows_a_read_under_a_valid_lease(played: Performance, act: int) -> None:
    first_read = played.events(act, "read", "A")[0]
    assert first_read["is_valid"] is True
    assert first_read["value"] == 0


def test_the_stale_write_is_accepted_without_a_guard(played: Performance) -> None:
    for act in (1, 2):
        (accepted,), (thawed,) = (played.events(act, n, "A") for n in ("accepted", "thawed"))
        assert accepted["time"] > thawed["time"]
        assert played.events(act, "refused", "A") == []


def test_the_stale_write_is_refused_by_the_guard_with_both_numbers(played: Performance) -> None:
    (refused,) = played.events(3, "refused", "A")
    first, again = (event["token"] for event in played.events(3, "acquired", "A"))
    (second,) = (event["token"] for event in played.events(3, "acquired", "B"))
    assert (refused["token"], refused["mark"]) == (first, second)
    assert second in refused["reason"]
    assert int(again) > int(second)
    assert played.events(3, "read", "A")[1]["value"] == 10


def test_the_resource_is_sealed_before_the_new_holder_reads(played: Performance) -> None:
    events = played.data["acts"][2]["events"]
    read = next(i for i, e in enumerate(events) if (e["name"], e.get("process")) == ("read", "B"))
    assert events[read + 1]["name"] == "state"
    assert events[read + 1]["mark"] == events[read]["token"]


def test_what_is_no_result_goes_to_standard_error(played: Performance) -> None:
    assert "drew" in played.complaints


# --- negative controls: a demo that could not fail would show nothing ----------------------


def test_a_guard_that_is_missing_or_not_needed_makes_the_demo_fail(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(acts, "ACTS", (replace(ONE, resource="guarded"), _unguarded(THREE)))
    assert execute(["demo"]) == 1
    shown, complaints = capfd.readouterr()
    first, second = complaints.splitlines()
    assert "act 1 (A lock alone) should have lost something: NOTHING LOST" in first
    assert "act 3 (fencelock) should have lost nothing: LOST 1" in second
    assert "LOST 1: 11 acknowledged, the counter says 10" in shown


def _unguarded(act: Act) -> Act:
    return replace(act, resource="unsealed")


def test_an_act_that_cannot_be_played_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(acts, "ACTS", (replace(ONE, moves=(Move("A", "write"),)),))
    assert execute(["demo"]) == 1
    shown, complaints = capfd.readouterr()
    assert "process A should stand at 'write' and stands at 'acquire'" in complaints
    assert shown == ""


def test_no_process_outlives_an_act_not_even_a_frozen_one() -> None:
    before = _children()
    moves = (Move("A", "acquire"), Move("A", "freeze"), Move("B", "write"))
    with pytest.raises(DemoError):
        perform((replace(THREE, moves=moves),), TTL_S)
    assert _children() <= before  # What earlier tests have left may end meanwhile.


def _children() -> set[str]:
    threads = Path("/proc/self/task").iterdir()
    return {child for thread in threads for child in (thread / "children").read_text().split()}


def test_a_process_that_dies_is_named_with_what_it_said() -> None:
    with pytest.raises(DemoError, match=r"process A ended in the middle(?s:.*)ConfigError"):
        perform((ONE,), ttl=1e9)


def test_a_worker_whose_conductor_has_gone_ends(tmp_path: Path) -> None:
    module = "fencelock_lab.demo.worker"
    command = [sys.executable, "-m", module, "unchecked", str(tmp_path), "1", "1.0"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"conductor has gone" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_check_without_a_seal_does_refuse_a_lower_token(tmp_path: Path) -> None:
    resource = Unsealed(tmp_path / "app.db")
    resource.create()
    resource.write(_sequencer(7), 1)
    resource.write(_sequencer(7), 2)
    with pytest.raises(fencelock.StaleTokenError) as caught:
        resource.write(_sequencer(6), 3)
    assert (caught.value.token, caught.value.mark) == (6, 7)
    assert resource.look() == (2, 7)


def _sequencer(token: int) -> Sequencer:
    return Sequencer("source", "history", LOCK, token, one_way(draw_claim()))


def test_a_picture_that_cannot_be_written_is_refused_before_the_play(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert execute(["demo", "--svg", str(tmp_path / "missing" / "p.svg")]) == 64
    assert "cannot be written" in capfd.readouterr().err


# --- verdicts ------------------------------------------------------------------------------


def _record(act: Act, final: int, *writers: str) -> ActRecord:
    events = (DemoEvent(0.0, "accepted", name, amount=AMOUNTS[name]) for name in writers)
    return ActRecord(act, tuple(events), final)


@pytest.mark.parametrize(
    ("final", "lost", "losers"),
    [(11, 0, ()), (10, 1, ("A",)), (1, 10, ("B",)), (0, 11, ("A", "B")), (21, -10, ())],
)
def test_lost_is_what_was_acknowledged_and_is_missing(final: int, lost: int, losers: tuple[str, ...]) -> None:
    record = _record(THREE, final, "A", "B")
    assert (record.lost, record.losers) == (lost, losers)
    assert record.is_as_expected is (lost == 0)


def test_a_refused_write_is_not_lost() -> None:
    assert _record(THREE, 10, "B").lost == 0


def test_an_unfenced_act_has_to_lose_something() -> None:
    assert differences((_record(ONE, 1, "A", "B"), _record(THREE, 11, "A", "B"))) == []
    assert len(differences((_record(ONE, 11, "A", "B"), _record(TWO, 21, "A", "B")))) == 2


# --- the timeline --------------------------------------------------------------------------


def _stale_write_accepted() -> ActRecord:
    """Return act 2 as it was once recorded."""
    return ActRecord(
        TWO,
        (
            DemoEvent(0.000, "state", value=0, mark=0),
            DemoEvent(0.001, "asked", "A"),
            DemoEvent(0.005, "acquired", "A", token=41),
            DemoEvent(0.006, "state", value=0, mark=0),
            DemoEvent(0.007, "read", "A", token=41, value=0, is_valid=True),
            DemoEvent(0.008, "state", value=0, mark=0),
            DemoEvent(0.010, "frozen", "A", seconds=0.99),
            DemoEvent(0.011, "asked", "B"),
            DemoEvent(1.010, "acquired", "B", token=42),
            DemoEvent(1.011, "state", value=0, mark=0),
            DemoEvent(1.012, "read", "B", token=42, value=0, is_valid=True),
            DemoEvent(1.013, "state", value=0, mark=0),
            DemoEvent(1.014, "thawed", "A", seconds=1.004),
            DemoEvent(1.016, "accepted", "A", token=41, value=1, amount=1),
            DemoEvent(1.017, "released", "A", token=41),
            DemoEvent(1.018, "state", value=1, mark=41),
            DemoEvent(1.020, "accepted", "B", token=42, value=10, amount=10),
            DemoEvent(1.021, "released", "B", token=42),
            DemoEvent(1.022, "state", value=10, mark=42),
        ),
        final=10,
    )


@pytest.fixture
def drawn() -> Timeline:
    return timeline(_stale_write_accepted())


def test_a_row_shows_what_happens_and_in_which_state_all_are(drawn: Timeline) -> None:
    assert [(row.event.name, *(row.cells[lane].state for lane in "AB")) for row in drawn.rows] == [
        ("acquired", State.HOLDING, State.IDLE),
        ("read", State.HOLDING, State.IDLE),
        ("frozen", State.FROZEN, State.IDLE),
        ("expired", State.FROZEN, State.WAITING),
        ("acquired", State.FROZEN, State.HOLDING),
        ("read", State.FROZEN, State.HOLDING),
        ("thawed", State.OVERDUE, State.HOLDING),
        ("accepted", State.OVERDUE, State.HOLDING),
        ("accepted", State.IDLE, State.HOLDING),
    ]
    assert drawn.rows[0].cells["A"].token == 41


def test_the_loss_is_shown_at_the_moment_of_it(drawn: Timeline) -> None:
    assert [row.lost for row in drawn.rows] == [0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_the_counter_is_shown_when_it_was_written(drawn: Timeline) -> None:
    shown = [(row.counter, row.mark) for row in drawn.rows if row.is_counter_new]
    assert shown == [(0, 0), (1, 41), (10, 42)]


def test_a_stale_write_is_bad_news_only_if_it_is_accepted(drawn: Timeline) -> None:
    assert drawn.rows[-2].cells["A"] == Cell(
        State.OVERDUE, 41, is_over=True, verb="writes 1", detail="accepted", tone=Tone.BAD
    )
    assert drawn.rows[-1].cells["B"].tone is Tone.GOOD


def test_a_lease_ends_at_the_time_that_the_source_stated(drawn: Timeline) -> None:
    assert drawn.rows[3].time == pytest.approx(1.0)


def test_a_lease_ends_before_the_next_holder_acquires() -> None:
    events = _stale_write_accepted().events
    late = tuple(replace(e, seconds=1.5) if e.name == "frozen" else e for e in events)
    rows = timeline(replace(_stale_write_accepted(), events=late)).rows
    assert [(row.event.name, row.time) for row in rows[3:5]] == [
        ("expired", 1.010),
        ("acquired", 1.010),
    ]


# --- as text -------------------------------------------------------------------------------


def _shown(timelines: list[Timeline], encoding: str = "utf-8") -> str:
    raw = BytesIO()
    output = TextIOWrapper(raw, encoding=encoding)
    show(timelines, output, "Two lines\nof explanation.")
    output.flush()
    return raw.getvalue().decode(encoding)


def test_text_without_a_terminal_is_plain_and_fits_80_columns(drawn: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = _shown([drawn])
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "╏ writes 1: accepted" in text
    assert "10  LOST 1" in text


def test_text_in_ascii_says_the_same(drawn: Timeline) -> None:
    text = _shown([drawn], "ascii")
    assert "! writes 1: accepted" in text
    assert "# frozen: SIGSTOP" in text


def test_every_event_can_be_narrated() -> None:
    told = [narrate(event) for event in _stale_write_accepted().events]
    assert "A is frozen; its lease still runs for 1.0 s" in told
    assert narrate(DemoEvent(0.0, "refused", "A", token=1, mark=2)).endswith("below the mark, 2")


# --- as a picture --------------------------------------------------------------------------


class Box(NamedTuple):
    """The space that a text takes, by a generous estimate of its width."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


def _boxes(svg: str) -> Iterator[Box]:
    for element in ET.fromstring(svg).iter(f"{SVG}text"):  # noqa: S314 - our own picture
        size, x, y = (float(element.get(key, "nan")) for key in ("font-size", "x", "y"))
        text = element.text or ""
        width = len(text) * size * (0.64 if "strong" in element.get("class", "") else 0.58)
        left = x - width * {"middle": 0.5, "end": 1.0}.get(element.get("text-anchor", ""), 0.0)
        yield Box(text, left, y - size, left + width, y + size * 0.25)


def _overlaps(svg: str) -> list[tuple[str, str]]:
    return [
        (a.text, b.text)
        for a, b in combinations(_boxes(svg), 2)
        if a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom
    ]


def test_no_text_of_the_picture_overlaps_another(played: Performance) -> None:
    assert _overlaps(played.svg) == []
    labels = [box.text for box in _boxes(played.svg)]
    assert len(labels) > 100
    assert {"REFUSED", "LOST 10", "LOST 1", "lease ends"} <= set(labels)


def test_every_text_is_inside_the_picture(played: Performance) -> None:
    root = ET.fromstring(played.svg)  # noqa: S314
    width, height = float(root.get("width", "nan")), float(root.get("height", "nan"))
    boxes = list(_boxes(played.svg))
    assert [b for b in boxes if b.left < 0 or b.right > width or b.bottom > height] == []


def test_overlapping_texts_are_noticed(drawn: Timeline) -> None:
    long = replace(drawn, title="A title that is much too long " * 3)
    svg = picture([long], heading="Heading", explanation="Explanation")
    assert any(drawn.verdict in pair for pair in _overlaps(svg))


def test_a_picture_carries_any_text_and_links_nowhere(drawn: Timeline) -> None:
    svg = picture([drawn], heading="<&>\"'", explanation="…")
    root = ET.fromstring(svg)  # noqa: S314
    assert root.findtext(f"{SVG}title") == "<&>\"'"
    assert not {"script", "image", "a", "use"} & {e.tag.removeprefix(SVG) for e in root.iter()}
    assert svg.count("http") == 1
