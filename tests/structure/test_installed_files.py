"""The packages are complete: the wheel has every file of the source, and the sdist what its own `make test` reads."""

import re
import tomllib
from pathlib import Path

import pytest

import fencelock
from tests.support.helpers import ROOT


def files(root: Path) -> set[str]:
    """Return the paths of all files under `root`, without those that Python makes itself."""
    return {
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.reduced
def test_every_source_file_is_installed() -> None:
    source = files(ROOT / "src" / "fencelock")
    assert "py.typed" in source
    assert any(name.endswith(".sql") for name in source)
    assert files(Path(fencelock.__file__).parent) == source


def test_source_distribution_has_what_lint_reads() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    (scripts,) = re.findall(r"; then shellcheck (.+); fi", (ROOT / "scripts" / "lint").read_text())
    assert {name.split("/")[0] for name in scripts.split()} <= set(targets["sdist"]["only-include"])
