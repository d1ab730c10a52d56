"""The model of the protocol: nothing is found with all rules on, an anomaly without each, as recorded."""

import re
import subprocess
import sys
from functools import cache, partial
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from _pytest.mark import ParameterSet

from fencelock_lab.model import explorer, world
from fencelock_lab.model.__main__ import main
from fencelock_lab.model.checks import ModelResult, check, check_case, check_limit, check_scene
from fencelock_lab.model.picture import file_name, picture, text_width
from fencelock_lab.model.protocol import successors
from fencelock_lab.model.report import cases_table, limits_table, scenes_table
from fencelock_lab.model.rules import RULES, Anomaly, Rules
from fencelock_lab.model.scenes import CASES, LIMITS, SCENES, Case
from tests.support.helpers import ROOT

PAGE = ROOT / "docs" / "explanation" / "anomalies.md"
PICTURES = PAGE.with_suffix("")
HOW = "if the model was meant to change: python -m fencelock_lab.model --pictures docs/explanation/anomalies"

SPACES = {
    "work": (39_706, 112_167),
    "crowd": (26_252, 76_415),
    "two resources": (4_957, 14_466),
    "leaving": (18_890, 62_402),
    "breaking": (41_801, 126_574),
    "switch": (3_558, 6_788),
    "power cut": (7_042, 18_591),
    "restore": (5_857, 12_846),
    "restore of one": (18_393, 53_684),
    "slip": (10_100, 28_012),
    "source": (44_872, 127_273),
    "source slip": (10_068, 27_456),
    "readers": (1_083, 2_676),
    "forgers": (724, 2_060),
    "signed": (362, 849),
    "storm": (42_052, 121_917),
    "storm, leaving": (7_911, 21_897),
}
"""States and transitions of each scene with all rules on."""

LARGE = {name for name, (states, _) in SPACES.items() if states > 15_000}
VARIANTS = {"crowd", "storm", "restore of one"}
"""Large scenes with more of what another large scene has: they are left to the campaigns."""


def walks(name: str, *more: object) -> ParameterSet:
    """Return parameters of a test that walks a whole scene. Large ones take seconds, and are left to `make test`."""
    marks = [pytest.mark.campaign] if name in VARIANTS else [pytest.mark.slow] if name in LARGE else []
    return pytest.param(name, *more, marks=marks)


TRACES = {
    Case("seal-first", "work", Anomaly.LOST): (11, 425),
    Case("seal-first", "work", Anomaly.STALE): (9, 166),
    Case("seal-committed", "work", Anomaly.LOST): (15, 1_657),
    Case("seal-all", "two resources", Anomaly.MIXED): (15, 3_684),
    Case("admit-equal", "work", Anomaly.OWN_REFUSED): (6, 43),
    Case("claim-in-mark", "source slip", Anomaly.TWO_CLAIMS): (7, 153),
    Case("claim-in-mark", "source slip", Anomaly.LOST): (13, 4_710),
    Case("check-with-write", "work", Anomaly.LOST): (15, 1_933),
    Case("durable-mark", "power cut", Anomaly.STALE): (12, 1_407),
    Case("raise-at-switch", "switch", Anomaly.LOST): (8, 244),
    Case("remembered-seal", "slip", Anomaly.LOST): (14, 7_058),
    Case("remembered-seal", "slip", Anomaly.UNDONE): (14, 6_910),
    Case("raise-after-restore", "restore", Anomaly.STALE): (12, 959),
    Case("raise-after-restore", "restore", Anomaly.UNDONE): (11, 785),
    Case("raise-all", "restore of one", Anomaly.MIXED): (17, 8_564),
    Case("close", "leaving", Anomaly.AFTER_LEAVING): (7, 743),
    Case("break-seals", "breaking", Anomaly.AFTER_LEAVING): (8, 276),
    Case("minted-with-grant", "work", Anomaly.INVERTED): (7, 60),
    Case("durable-bound", "source", Anomaly.TOKEN_AGAIN): (5, 99),
    Case("counter-kept", "leaving", Anomaly.TOKEN_AGAIN): (6, 183),
    Case("epoch-on-restore", "source", Anomaly.TOKEN_AGAIN): (5, 121),
    Case("claim-once", "leaving", Anomaly.GRANTED_AGAIN): (4, 34),
    Case("release-by-claim", "leaving", Anomaly.FOREIGN_RELEASE): (5, 81),
    Case("digest-in-mark", "readers", Anomaly.STOLEN): (8, 107),
    Case("claim-ends", "readers", Anomaly.FOREIGN_RELEASE): (3, 8),
    Case("rights", "forgers", Anomaly.POISONED): (4, 33),
    Case("ceiling", "forgers", Anomaly.POISONED): (4, 34),
    Case("signatures", "signed", Anomaly.POISONED): (4, 22),
}
"""Steps of the shortest trace, and states seen until it was found."""

LIMIT_TRACES = {
    "own duplicate": (10, 53),
    "slip inside a tenure": (11, 76),
    "slip of one of two": (17, 9_335),
    "insider": (4, 22),
    "source slip": (5, 22),
}


@cache
def walked(name: str) -> tuple[ModelResult, str]:
    """Walk through a scene with all rules on; return the result, and the text of every step that was met."""
    texts = set()

    def is_wanted(step: world.ModelStep) -> bool:
        texts.add(step.text)
        return any(found.anomaly in scene.promised for found in step.found)

    scene = SCENES[name]
    way = explorer.explore(scene.start(), partial(successors, scene=scene, rules=Rules()), is_wanted)
    found = way.trace[-1][0].found[0] if way.trace else None
    return ModelResult(name, scene, "", way.states, way.transitions, found, way.trace or ()), "\n".join(sorted(texts))


def quiet(name: str) -> ModelResult:
    return walked(name)[0]


def meets(name: str, step: str) -> bool:
    """Return whether a step with such a text can happen in a scene."""
    return re.search(step, walked(name)[1], re.MULTILINE) is not None


loud = cache(check_case)
beyond = cache(check_limit)


def traces() -> list[ModelResult]:
    return [*map(loud, CASES), *map(beyond, LIMITS)]


@pytest.mark.parametrize("name", [*map(walks, SCENES)])
def test_with_all_rules_on_nothing_is_found_in_the_whole_space(name: str) -> None:
    result = quiet(name)
    assert result.found is None, result.trace
    assert (result.states, result.transitions) == SPACES[name], HOW


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.anomaly.name}")
def test_without_a_rule_its_anomaly_is_found(case: Case) -> None:
    result = loud(case)
    assert result.found is not None, f"without {case.rule} nothing was found in {result.states} states"
    assert result.found.anomaly is case.anomaly
    assert (len(result.trace), result.states) == TRACES[case], HOW


@pytest.mark.parametrize("name", LIMITS)
def test_beyond_the_rules_the_protocol_fails_as_documented(name: str) -> None:
    result = beyond(name)
    assert result.found is not None
    assert (len(result.trace), result.states) == LIMIT_TRACES[name], HOW


def test_every_rule_is_missed_and_every_anomaly_found() -> None:
    assert {case.rule for case in CASES} == set(RULES) == {name.replace("_", "-") for name in Rules._fields}
    assert {case.anomaly for case in CASES} == set(Anomaly)
    for case in CASES:
        assert case.anomaly in SCENES[case.scene].promised, f"{case.scene} with all rules on does not promise it"


def test_the_command_looks_for_all_that_a_scene_promises() -> None:
    assert check_scene("two resources") == quiet("two resources")


def test_every_fault_and_every_kind_of_step_is_explored() -> None:
    faults = {name for scene in SCENES.values() for name, times in scene.faults._asdict().items() if times}
    assert faults == set(world.Faults._fields)


@pytest.mark.parametrize("name", [*map(walks, SCENES)])
def test_a_scene_accepts_and_refuses(name: str) -> None:
    assert meets(name, "^write of 1 is accepted")
    assert meets(name, "^seals.*refused")
    assert meets(name, "^write of.*refused")


@pytest.mark.parametrize(
    ("name", "last"), [walks("work", 8), walks("crowd", 3), walks("restore", 4), walks("switch", 3)]
)
def test_everybody_can_get_all_work_done(name: str, last: int) -> None:
    assert meets(name, f"^write of {last} is accepted")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        walks("leaving", "closes with token"),
        walks("leaving", "closes nothing"),
        walks("leaving", "that claim has ended"),
        walks("breaking", "^seals with token 2$"),
        walks("switch", "let through, and counted as stale"),
        walks("slip", "its seal is gone"),
        walks("source", "reserves tokens"),
        walks("source", "grants . token 11"),
        walks("source slip", "another claim has that token"),
        walks("readers", "reads the mark, and sends a write with its token 2"),
        walks("readers", "is refused: token 2, mark 2 .another claim has that token"),
        walks("readers", "releases with A's sequencer: refused"),
        walks("forgers", "which is made up: refused, it has no right"),
        walks("forgers", "which is made up: refused, no source can have issued it"),
        walks("signed", "which is made up: refused, no source has signed it"),
    ],
)
def test_a_scene_has_what_it_is_about(name: str, wanted: str) -> None:
    assert meets(name, wanted)


def test_a_trace_is_a_way_through_the_protocol() -> None:
    for result in traces():
        rules = Rules().without(result.rule) if result.rule else Rules()
        states = [result.scene.start(), *(state for _, state in result.trace)]
        for (before, after), (step, _) in zip(pairwise(states), result.trace, strict=True):
            assert (step, after) in list(successors(before, result.scene, rules))


def test_only_the_last_step_of_a_trace_is_the_anomaly() -> None:
    for result in traces():
        anomaly = result.found.anomaly
        assert [any(found.anomaly is anomaly for found in step.found) for step, _ in result.trace].index(True) == (
            len(result.trace) - 1
        )


def test_a_longer_bound_does_not_shorten_a_trace() -> None:
    """More of everything finds the same anomaly by as many steps: the trace is a shortest one of its rule."""
    case = CASES[0]
    larger = SCENES[case.scene]._replace(clients=3)
    assert len(check("larger", larger, (case.anomaly,), case.rule).trace) == len(loud(case).trace)


# --- what is printed and drawn ----------------------------------------------------------------------
@pytest.mark.campaign
@pytest.mark.timeout(300)  # It walks every scene.
def test_the_page_has_the_tables() -> None:
    page = PAGE.read_text()
    for text in (
        scenes_table(map(quiet, SCENES)),
        cases_table(map(loud, CASES)),
        limits_table(map(beyond, LIMITS)),
    ):
        assert text in page, f"{PAGE.name} does not have this table:\n{text}"


def test_the_page_shows_every_picture_and_names_every_rule() -> None:
    page = PAGE.read_text()
    names = [file_name(result) for result in map(loud, CASES)] + [file_name(result) for result in map(beyond, LIMITS)]
    assert [name for name in names if f"](anomalies/{name})" not in page] == []
    assert [rule for rule in RULES if f"`{rule}`" not in page] == []


def test_the_pictures_are_those_of_the_traces(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("pictures")
    assert main(["--pictures", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in PICTURES.iterdir())
    for path in folder.iterdir():
        assert path.read_text() == (PICTURES / path.name).read_text(), f"{path.name} is old; {HOW}"


def test_no_text_of_a_picture_leaves_its_column() -> None:
    for result in traces():
        root = ET.fromstring(picture(result))  # noqa: S314, the text is our own
        lanes = [float(line.get("x1", "0")) for line in root.iter() if line.get("class") == "lane"]
        for text in (element for element in root.iter() if element.tag.endswith("text")):
            assert text.text
            left = float(text.get("x", "0"))
            right = left + text_width(text.text, float(text.get("font-size", "0")))
            assert right <= float(root.get("width", "0")) - 20 or text.get("text-anchor"), text.text
            is_step = left == 54 and 144 < float(text.get("y", "0")) < 144 + 28 * len(result.trace)
            assert not is_step or right < min(lanes) - 11, text.text


def test_the_command_shows_a_trace_and_draws_it(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path_factory.mktemp("drawn") / "trace.svg"
    assert main(["--without", "claim-once", "--svg", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "grants A token 1, which nobody awaits" in printed
    assert "A claim is granted after it has ended." in printed
    assert file.read_text() == (PICTURES / "claim-once.svg").read_text()


def test_the_command_lists_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rules"]) == 0
    printed = capsys.readouterr().out
    assert [rule for rule in RULES if rule not in printed] == []


@pytest.mark.parametrize("arguments", [["--without", "luck"], ["--svg", "file.svg"]])
def test_the_command_refuses_what_it_does_not_know(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_trace_is_the_same_in_every_process() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-m", "fencelock_lab.model", "--without", "remembered-seal"],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(printed) == 1
