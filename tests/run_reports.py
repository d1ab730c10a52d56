"""What a run reports arrives: a pytest plugin.

A worker cannot send text with lone surrogates, and would end: they are escaped. An error of pytest itself ends a run
far above its last lines, which may be all that anybody sees: it is told again at the end.
"""

import sys
from collections.abc import Generator

import pytest

LINES = 40
"""Of an error of pytest itself, so many are told again."""
_errors: list[str] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what was captured, so that it can be sent."""
    report = yield
    report.sections = [(title, escaped(text)) for title, text in report.sections]
    return report


def escaped(text: str) -> str:
    """Return the text as UTF-8 can encode it."""
    return text.encode(errors="backslashreplace").decode()


def pytest_internalerror(excrepr: object) -> None:
    """Keep the error."""
    _errors.append(str(excrepr))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Tell the first error again, where the whole run is seen."""
    if _errors and not hasattr(config, "workerinput"):
        lines = _errors[0].splitlines()[-LINES:]
        print("== the run ended by this error:", *lines, sep="\n", file=sys.stderr)
