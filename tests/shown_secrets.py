"""No test shows a claim or a proof: a pytest plugin that looks for each one drawn in what tests print, log and raise.

Promise: it notes every claim that a driver or a break of this process draws, and its proof. After each test it searches
what was captured of the output and the log, what `capsys` and `Program.inside` have read, and the messages of all of
fencelock's errors, raised or not; a test that shows one has failed (G12). Never: a search in what children print.
"""

import re
from collections.abc import Callable, Generator
from functools import wraps
from typing import Any

import pytest

from fencelock._api import aio_source, source
from fencelock._drivers import aio, sync
from fencelock.errors import FencelockError
from fencelock.model import draw_claim, one_way

_WORD = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
KINDS: dict[str, str] = {}
"""What each secret is."""
SHOWN: list[str] = []
"""What the running test has shown so far, apart from what pytest captures."""


def draw_and_note() -> str:
    """Draw a claim as drivers do, and note it."""
    claim = draw_claim()
    KINDS[claim], KINDS[one_way(claim)] = "claim", "proof"
    return claim


def note_shown(*texts: object) -> None:
    """Keep what a test has shown, until it ends."""
    SHOWN.extend(map(str, texts))


def secrets_in(*texts: str) -> list[str]:
    """Return the kinds of the secrets in these texts."""
    return [KINDS[word] for text in texts for word in _WORD.findall(text) if word in KINDS]


def noting(function: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    """Return the function, whose arguments and result are given to `note`."""

    @wraps(function)
    def noted(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        note(result, *arguments)
        return result

    return noted


@pytest.hookimpl
def pytest_configure() -> None:
    """Note what is drawn and what is shown, in this process."""
    for module in (aio, sync, aio_source, source):
        module.draw_claim = draw_and_note
    errors: Any = FencelockError
    errors.__init__ = noting(errors.__init__, lambda _, error, *texts: note_shown(*texts))
    reader: Any = pytest.CaptureFixture
    reader.readouterr = noting(reader.readouterr, lambda read, _: note_shown(read.out, read.err))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that has shown a secret, when all of its output is there."""
    report = yield
    if report.when == "teardown":
        texts = [text for _, text in report.sections] + SHOWN
        SHOWN.clear()
        if report.passed and (found := secrets_in(*texts)):
            report.outcome = "failed"
            report.longrepr = f"G12: {item.nodeid} shows a {found[0]} in its output, its log or the message of an error"
    return report
