"""Fixtures of the adapters' tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.places import KINDS, Where, make_tables, place_of


@pytest.fixture(params=KINDS)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Where]:
    """Yield an empty database of each kind."""
    with place_of(request.param, tmp_path, request.getfixturevalue) as where:
        yield where


@pytest.fixture
def where(empty: Where) -> Where:
    """Return a database of each kind, whose table `reports` is protected."""
    make_tables(empty)
    return empty
