"""The campaigns take turns within a budget of time. A pytest plugin: `--minutes N` and `--proofs FILE`.

Files of tests come in the order of their oldest proof. Those of which FILE knows no proof come first, in an order that
differs from run to run. Once the time is over no further test begins. The report says for which files there was time.
"""

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

NO_TIME = "no time left in this run"

_BEGUN_AT = time.monotonic()
_results = pytest.StashKey[dict[str, str]]()
_known = pytest.StashKey[dict[str, float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--minutes` and `--proofs`."""
    parser.addoption("--minutes", type=float, help="begin no test after so many minutes, and say which were left out")
    parser.addoption("--proofs", type=Path, metavar="FILE", help="first what was proven longest ago, as FILE knows")


def pytest_configure(config: pytest.Config) -> None:
    """Read when each test was proven last."""
    path: Path | None = config.getoption("--proofs")
    config.stash[_results] = {}
    config.stash[_known] = json.loads(path.read_text()) if path is not None and path.exists() else {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order files by their oldest proof, and a file's tests by theirs."""
    if config.getoption("--proofs") is None:
        return
    known = config.stash[_known]
    # The same for all workers of a run, which have to agree on the order.
    seed = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    oldest: dict[str, float] = {}
    for item in items:
        proven_at = known.get(item.nodeid, 0.0)
        oldest[_file(item.nodeid)] = min(proven_at, oldest.get(_file(item.nodeid), proven_at))
    turns = {file: random.Random(seed + file).random() for file in oldest}
    items.sort(key=lambda item: (oldest[_file(item.nodeid)], turns[_file(item.nodeid)], known.get(item.nodeid, 0.0)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test out once the time is over."""
    minutes: float | None = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - _BEGUN_AT > 60 * minutes:
        pytest.skip(NO_TIME)


class Report:
    """Notes each test's result where the whole run is seen: in the only process, or in that which has the workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        results = self._config.stash[_results]
        if report.failed:
            results[report.nodeid] = "failed"
        elif report.skipped:
            has_no_time = isinstance(report.longrepr, tuple) and NO_TIME in report.longrepr[2]
            results[report.nodeid] = "without time" if has_no_time else "skipped"
        elif report.when == "call":
            results.setdefault(report.nodeid, "proven")

    def pytest_sessionfinish(self) -> None:
        path: Path | None = self._config.getoption("--proofs")
        if path is None:
            return
        proven = {test for test, result in self._config.stash[_results].items() if result == "proven"}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self._config.stash[_known] | dict.fromkeys(proven, time.time()), indent=0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._config.getoption("--minutes") is None and self._config.getoption("--proofs") is None:
            return
        counts: dict[str, Counter[str]] = {}
        for test, result in self._config.stash[_results].items():
            counts.setdefault(_file(test), Counter())[result] += 1
        terminalreporter.section("proofs")
        for file, count in sorted(counts.items(), key=lambda pair: ("without time" in pair[1], pair[0])):
            terminalreporter.line(f"{file}: " + ", ".join(f"{number} {result}" for result, number in count.items()))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Watch the results, unless this is a worker."""
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Report(session.config))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
