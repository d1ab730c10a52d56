"""Fixtures of a lease, a scripted service, and a client of each library."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import fencelock
from tests.http.clients.callers import CALLERS, Caller
from tests.http.clients.scripted import ScriptedService


@pytest.fixture
def lease() -> Iterator[fencelock.Lease]:
    """Yield a lease of a source in memory."""
    with fencelock.connect("memory://tests") as source, source.lock("nightly-report") as held:
        yield held


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    """Yield a service whose answers the test appends."""
    with ScriptedService() as running:
        yield running


Opens = Callable[..., Caller]


LATER = {"Httpx2Caller", "AsyncHttpx2Caller"}
"""What shares its code with httpx's."""
PARAMETERS = [
    pytest.param(
        kind, id=kind.__name__.removesuffix("Caller"), marks=pytest.mark.campaign if kind.__name__ in LATER else ()
    )
    for kind in CALLERS
]


@pytest.fixture(params=PARAMETERS)
def opens(request: pytest.FixtureRequest) -> Iterator[Opens]:
    """Yield a function that opens a client of one library."""
    with ExitStack() as open_ones:

        def opened(lease: Any, url: str, **options: Any) -> Caller:
            caller: Caller = request.param(lease, url, **options)
            open_ones.callback(caller.close)
            return caller

        yield opened


@pytest.fixture
def caller(opens: Opens, lease: fencelock.Lease, service: ScriptedService) -> Caller:
    """Return a client of the lease for the service."""
    return opens(lease, service.url)
