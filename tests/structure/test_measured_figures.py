"""No figure of speed or size in README or the documents that `make bench STORE=all` did not write.

README has a few in one place, which the same command writes.

Decisions are left out: they keep what was measured on the day on which they were made.
"""

import re
from pathlib import Path

import pytest

from fencelock_lab.benchmarks import page, summary
from fencelock_lab.benchmarks.__main__ import PAGE
from fencelock_lab.benchmarks.results import FOLDER, read_all
from tests.support.helpers import ROOT

_FIGURE = re.compile(
    r"\d ?(?:us|µs|microseconds)\b"
    r"|(?<![\w.])\d+(?:\.\d+)?x(?![\w.])"
    r"|% of a core"
    r"|\d (?:ms|bytes|MB) (?:a|an|per|for each|each) \w+"
    r"|/s\b"
    r"|(?:few|takes|tenth of a) (?:micro|milli)seconds?\b"
    r"|\d ms of \w+"
)
WRITTEN = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path != ROOT / PAGE and "decisions" not in path.parts
]


def figures(text: str) -> list[str]:
    """Return the figures of a page."""
    return _FIGURE.findall(summary.with_figures(text, ""))


HOW = "run: python -m fencelock_lab.benchmarks --publish"


def test_the_page_says_what_the_results_say() -> None:
    assert PAGE.read_text() == page.as_markdown(read_all(FOLDER)), HOW


def test_readme_says_what_the_results_say() -> None:
    text = summary.README.read_text()
    assert summary.with_figures(text, summary.as_markdown(read_all(FOLDER))) == text, HOW


def test_readme_gets_new_figures_in_place_of_the_old_ones() -> None:
    text = f"before\n{summary.BEGIN}old\n{summary.END}after\n"
    assert summary.with_figures(text, "new\n") == text.replace("old", "new")


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_page_has_figures_of_its_own(path: Path) -> None:
    assert figures(path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "it took 80 us",
        "1.3x of the floor",
        "3 % of a core",
        "900 bytes a lease",
        "900/s",
        "a few microseconds",
        "0.2 ms of it",
    ],
)
def test_a_figure_is_found(text: str) -> None:
    assert figures(text)
