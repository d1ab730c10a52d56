"""Fixtures of the rules' tests."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencelock import OutcomeUnknownError
from fencelock._api.credentials import MEMORY, TenureMemory
from fencelock.protocol import guard_requests as ask_for
from fencelock.stores.sqlite.guard.connection import SQLiteGuardConnection
from tests.support.guards import Opener, make_file


@pytest.fixture(params=["sync", "async"])
def open_guard(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Open guards, sync ones and then async ones, by `open_guard(path, …)`."""
    if request.param == "sync":
        yield Opener("sync", None)
        return
    with asyncio.Runner() as runner:
        yield Opener("async", runner)


@pytest.fixture(params=["wal", "delete"])
def journal(request: pytest.FixtureRequest) -> Any:
    """Each journal mode that users' files have."""
    return request.param


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with one table, `reports`, and in it the row (1, 0)."""
    return make_file(tmp_path / "app.db")


@pytest.fixture(autouse=True)
def no_remembered_tenures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the tenures of other tests, whose handmade sequencers have the same claims."""
    for name, value in vars(TenureMemory()).items():
        monkeypatch.setattr(MEMORY, name, value)


@pytest.fixture
def lost_commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Leave one flushed commit unconfirmed for each entry, which says whether it "happened" or was "lost"."""
    fates: list[str] = []
    commit = SQLiteGuardConnection._ANSWERS[ask_for.Commit]

    def unconfirmed(connection: SQLiteGuardConnection, request: ask_for.Commit) -> None:
        if not fates:
            commit(connection, request)
            return
        if fates.pop(0) == "happened":
            commit(connection, request)
        raise OutcomeUnknownError("no answer")

    monkeypatch.setitem(SQLiteGuardConnection._ANSWERS, ask_for.Commit, unconfirmed)
    return fates
