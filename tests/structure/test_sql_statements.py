"""SQL lives in data files, and each statement there has a sentence that says what it does."""

from pathlib import Path

import pytest

from tests.support.helpers import ROOT

SOURCE = ROOT / "src" / "fencelock"
MARK = "-- name:"
MIN_WORDS = 3


def unexplained(text: str) -> list[str]:
    """Return the names of the statements that no sentence follows."""
    found = []
    for block in text.split(MARK)[1:]:
        name, *lines = block.strip().splitlines()
        comment = []
        for line in lines:
            if not line.startswith("--"):
                break
            comment.extend(line.removeprefix("--").split())
        if len(comment) < MIN_WORDS or not comment[-1].rstrip(")").endswith("."):
            found.append(name.strip())
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.sql")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_statement_has_a_sentence(path: Path) -> None:
    text = path.read_text()
    assert MARK in text
    assert unexplained(text) == []


def test_a_statement_without_a_sentence_is_reported() -> None:
    text = "-- name: good\n-- The one that is.\nSELECT 1;\n\n-- name: bad\nSELECT 2; -- Not here.\n"
    assert unexplained(text) == ["bad"]
