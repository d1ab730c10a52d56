"""A module says first what it promises."""

import ast
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
