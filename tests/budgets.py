"""How long each folder's tests take, beside its budget. A pytest plugin: `--seconds` prints tests/README.md's table.

The budgets are read from that table: its first column says which tests a row counts, by the names of folders.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).with_name("README.md")

_ROW = re.compile(r"^\| (`tests/.*?) \| [\d ]+ \| [\d ]+ \| (\d+) \|$", re.MULTILINE)


class Row(NamedTuple):
    """A row of the table: how it is titled, which folders it counts, and how many seconds these may take."""

    title: str
    folders: tuple[str, ...]
    budget_s: int


def rows(page: str) -> list[Row]:
    """Return the rows of the table; the first folder of a row is named from the root, the others beside it."""
    found = []
    for title, budget_s in _ROW.findall(page):
        first, *others = re.findall(r"`([^`]+)`", title)
        folders = (first, *(f"{first.rpartition('/')[0]}/{other}" for other in others))
        found.append(Row(title, folders, int(budget_s)))
    return found


def row_of(nodeid: str, table: Iterable[Row]) -> Row | None:
    """Return the row with the innermost folder that a test lies in; None if there is none."""
    fitting = [(len(folder), row) for row in table for folder in row.folders if nodeid.startswith(f"{folder}/")]
    return max(fitting, default=(0, None))[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--seconds`."""
    parser.addoption("--seconds", action="store_true", help="print each folder's seconds as tests/README.md has them")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the tests, where the whole run is seen."""
    if config.getoption("--seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Watch())


class Watch:
    """Adds up the seconds of all tests, those of their fixtures included."""

    def __init__(self) -> None:
        self._table = rows(PAGE.read_text())
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds")
        numbers: Counter[str] = Counter()
        seconds: defaultdict[str, float] = defaultdict(float)
        for nodeid, duration in self._seconds.items():
            row = row_of(nodeid, self._table)
            title = row.title if row else "in no row"
            numbers[title] += 1
            seconds[title] += duration
        for row in self._table:
            line = f"| {row.title} | {numbers[row.title]} | {seconds[row.title]:.0f} | {row.budget_s} |"
            terminalreporter.line(line + (" <- above" if seconds[row.title] > row.budget_s else ""))
        if numbers["in no row"]:
            terminalreporter.line(f"{numbers['in no row']} tests are in no row")
        budget_s = sum(row.budget_s for row in self._table)
        terminalreporter.line(f"| together | {numbers.total()} | {sum(seconds.values()):.0f} | {budget_s} |")
