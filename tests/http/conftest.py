"""Fixtures of the tests of services."""

from pathlib import Path

import pytest

from tests.http.frameworks import FRAMEWORKS, Report
from tests.http.wire import Service
from tests.support.guards import LOCK, make_file


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Return a service's report, in a database of its own."""
    return Report(make_file(tmp_path / "app.db"))


@pytest.fixture(params=FRAMEWORKS)
def service(request: pytest.FixtureRequest, report: Report) -> Service:
    """Return the service in each framework."""
    return FRAMEWORKS[request.param](report, lock=LOCK, guards=[report.guard])
