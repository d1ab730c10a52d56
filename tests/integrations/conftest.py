"""Fixtures of the adapters' tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.databases import KINDS, GuardedDatabase, make_tables, open_database, open_guarded


@pytest.fixture(params=KINDS)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GuardedDatabase]:
    """Yield an empty database of each kind; filled for a test that asks for `guarded`."""
    opening = open_guarded if "guarded" in request.fixturenames else open_database
    with opening(request.param, tmp_path, request.getfixturevalue) as made:
        yield made


@pytest.fixture
def guarded(empty: GuardedDatabase) -> GuardedDatabase:
    """Return a database of each kind with a protected table `reports`."""
    return empty


@pytest.fixture
def empty_file(tmp_path: Path) -> Iterator[GuardedDatabase]:
    """Yield an empty SQLite file."""
    with open_database("sqlite", tmp_path, None) as guarded:
        yield guarded


@pytest.fixture
def guarded_file(empty_file: GuardedDatabase) -> GuardedDatabase:
    """Return a SQLite file with a protected table `reports`."""
    make_tables(empty_file)
    return empty_file
