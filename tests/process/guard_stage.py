"""A guarded file, a source beside it, and actors that have a guard of the file."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencelock
from tests.process.actors import Actor, Stage
from tests.support.guards import LOCK, RESOURCE, make_file, url_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_file(tmp_path / "app.db")


@pytest.fixture
def stage(tmp_path: Path, file: Path) -> Iterator[Stage]:
    """Actors with a source beside the guarded file, and with a guard of that file."""
    with Stage(tmp_path / "locks.db") as made:
        yield made


GUARD = """
lock = source.lock("nightly-report", ttl=float(os.environ.get("TTL", "30")))
guard = fencelock.guard(URL.replace("locks.db", "app.db"), resource="reports", lock="nightly-report")

def read(connection):
    return connection.execute("SELECT value FROM reports").fetchone()[0]

def write(connection, value):
    connection.execute("UPDATE reports SET value = ?", (value,))
"""


def play(stage: Stage, script: str, *before: str) -> Actor:
    """Start an actor that has a guard of the file."""
    return stage.actor("".join((GUARD, *before, textwrap.dedent(script))))


def guard_of(file: Path) -> fencelock.Guard:
    return fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
