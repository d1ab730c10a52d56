"""`fencelock run` starts in every cron job: what it does not use is not loaded."""

import json
import subprocess
import sys

import pytest

_LOADED = "import json, sys; import {module}; print(json.dumps(sorted(sys.modules)))"


def loaded_by(module: str) -> set[str]:
    """Return the names of all modules in a fresh interpreter that has imported `module`."""
    command = [sys.executable, "-I", "-c", _LOADED.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.reduced
@pytest.mark.parametrize("absent", ["asyncio", "sqlite3", "click", "rich", "fencelock.integrations"])
def test_importing_the_library_does_not_load(absent: str) -> None:
    loaded = loaded_by("fencelock")
    assert "fencelock" in loaded
    assert absent not in loaded


@pytest.mark.reduced
@pytest.mark.parametrize("absent", ["asyncio", "rich"])
def test_importing_the_cli_does_not_load(absent: str) -> None:
    assert absent not in loaded_by("fencelock.cli")


def test_a_loaded_module_is_seen() -> None:
    assert {"asyncio", "sqlite3"} <= loaded_by("asyncio, sqlite3")
