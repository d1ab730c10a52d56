"""Fixtures for every test. A store's own fixtures live in a module of their own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Yield a private folder with a path short enough for a Unix socket in it (108 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="fl-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the tester's own settings and default source apart from those of the tests."""
    for name in ("FENCELINE_SOURCE", "FENCELINE_LOCK", "FENCELINE_TOKEN", "FENCELINE_SEQUENCER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
