"""A module says first what it promises."""

import ast
import re
from pathlib import Path

import pytest

from tests.support.helpers import ROOT

SOURCE = ROOT / "src" / "fencelock"
MIN_WORDS = 8


def docstring_fault(text: str) -> str | None:
    """Return what is wrong with the docstring of a module with this text, or None."""
    docstring = ast.get_docstring(ast.parse(text))
    if docstring is None:
        return "has no docstring"
    if len(docstring.split()) < MIN_WORDS:
        return f"has a docstring of less than {MIN_WORDS} words: {docstring!r}"
    if not docstring.partition("\n\n")[0].rstrip().endswith((".", ":")):
        return "begins with a paragraph that is no sentence"
    return None


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_begins_with_its_promise(path: Path) -> None:
    assert docstring_fault(path.read_text()) is None


@pytest.mark.parametrize(
    "text", ["", "import os", '"""Locks."""', '"""what this is\n\nand does, in some more words"""']
)
def test_a_module_without_a_promise_is_reported(text: str) -> None:
    assert docstring_fault(text) is not None


@pytest.mark.parametrize(
    "path", sorted(SOURCE.glob("stores/*/*/__init__.py")), ids=lambda path: str(path.parent.relative_to(SOURCE))
)
def test_the_modules_that_a_part_of_a_store_names_are_there(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    named = re.findall(r"`([a-z_0-9]+)`", docstring)
    assert [name for name in named if not (path.parent / f"{name}.py").exists()] == []
    assert [name for name in re.findall(r"[a-z/]+/[a-z_]+\.py", docstring) if not (SOURCE / name).exists()] == []
