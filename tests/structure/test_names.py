"""A class name is defined once: who searches for it lands in one place."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.support.helpers import ROOT

FOLDERS = (ROOT / "src", ROOT / "lab" / "src")

EXCEPTIONS = {
    "Command": "Django finds a management command by this name; the other is `fencelock run`'s command line",
}
"""Names that stand in several files all the same, and why."""


@cache
def class_names(folders: tuple[Path, ...]) -> dict[str, set[Path]]:
    """Return the files that define each class; they are read once."""
    found = defaultdict(set)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name].add(path)
    return found


def repeated(folders: tuple[Path, ...]) -> dict[str, list[str]]:
    """Return the classes that several files define, with those files."""
    return {name: sorted(path.name for path in paths) for name, paths in class_names(folders).items() if len(paths) > 1}


def test_a_class_name_is_defined_once() -> None:
    assert {name: files for name, files in repeated(FOLDERS).items() if name not in EXCEPTIONS} == {}


def test_no_exception_is_left_over() -> None:
    assert sorted(EXCEPTIONS.keys() - repeated(FOLDERS).keys()) == []


def test_a_second_definition_is_reported(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Twice:\n    pass\n\n\nclass Once:\n    pass\n")
    (tmp_path / "two.py").write_text("def f():\n    class Twice:\n        pass\n")
    assert repeated((tmp_path,)) == {"Twice": ["one.py", "two.py"]}
