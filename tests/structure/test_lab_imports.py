"""What attacks and shows the library uses its public names only, as any other program does."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.helpers import ROOT

LAB = ROOT / "lab" / "src" / "fencelock_lab"
PUBLIC = {
    "fencelock",
    "fencelock.aio",
    "fencelock.cli.plugin",
    "fencelock.errors",
    "fencelock.protocol",
    "fencelock.testing",
}


def private_imports(folder: Path) -> Iterator[str]:
    """Yield what the modules of a folder import of the library beside its public names."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                is_ours = module.partition(".")[0] == "fencelock"
                if is_ours and module not in PUBLIC:
                    yield f"{path.name}: {module}"


@pytest.mark.parametrize("part", ["campaigns", "demo", "servers"])
def test_it_imports_public_names_only(part: str) -> None:
    assert list(private_imports(LAB / part)) == []


def test_a_private_import_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from fencelock._flows import admin\nimport fencelock.stores.registry\nimport json\n"
    )
    assert list(private_imports(tmp_path)) == ["a.py: fencelock._flows", "a.py: fencelock.stores.registry"]
