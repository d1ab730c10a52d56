"""Names become parts of paths without loss, and no two become one."""

import re

from hypothesis import given
from hypothesis import strategies as st

from fencelock.stores.encoding import escape_name, unescape_name
from fencelock.testing.conformance.names import NASTY_NAMES

FORM = re.compile(r"(?!\.)(?:[A-Za-z0-9_.-]|%[0-9A-F]{2})+(?<!\.)")
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=100)


@given(names)
def test_a_name_comes_back(name: str) -> None:
    assert FORM.fullmatch(escape_name(name))
    assert unescape_name(escape_name(name)) == name


def test_nasty_names_are_different_parts() -> None:
    assert len({escape_name(name) for name in NASTY_NAMES}) == len(set(NASTY_NAMES))


def test_a_name_that_needs_no_escape_is_its_own_part() -> None:
    for name in ("nightly-report", "a.b_C-9", "0"):
        assert escape_name(name) == name


def test_what_escaped_never_writes_stands_for_no_name() -> None:
    for part in ("", ".", "..", ".a", "a.", "%", "%2", "%2f", "%61", "%FF", "a b", "a/b", "~", "é"):
        assert unescape_name(part) is None
