"""`stores/statements.py`: named statements out of data files."""

import pytest

from fencelock.stores.statements import Statements, parse

TEXT = """-- A word on the file.

-- name: first
-- Says what it does.
SELECT 1
FROM t;

-- name: second
-- Makes a trigger.
CREATE TRIGGER x BEGIN
  SELECT 2;
END;
"""


def test_each_block_is_a_statement_by_its_name_without_comment_and_last_semicolon():
    found = Statements("x.sql", parse(TEXT, "x.sql"))
    assert found.first == "SELECT 1\nFROM t"
    assert found["second"] == "CREATE TRIGGER x BEGIN\n  SELECT 2;\nEND"
    assert list(found) == ["first", "second"]


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones():
    with pytest.raises(AttributeError, match=r"x\.sql has no statement 'third'; it has first, second"):
        _ = Statements("x.sql", parse(TEXT, "x.sql")).third


@pytest.mark.parametrize(
    "text",
    [
        "-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;",
        "-- name: a\n-- only words\n",
        "-- name: a b\nSELECT 1;",
    ],
)
def test_a_file_with_a_block_named_twice_empty_or_badly_named_is_refused(text: str):
    with pytest.raises(ValueError, match="the block"):
        parse(text, "x.sql")
