"""Fixtures of the tests of the guard of a folder."""

from pathlib import Path

import pytest

from tests.files.guarded import GuardedFolder


@pytest.fixture
def folder(tmp_path: Path) -> GuardedFolder:
    """A folder with a protected resource."""
    return GuardedFolder(tmp_path / "guarded")
