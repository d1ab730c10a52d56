"""docs/reference/rules.md lists the rules that code and tests cite, with the tests that hold them, and no others."""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.support.helpers import ROOT

PAGE = ROOT / "docs" / "reference" / "rules.md"
FOLDERS = (ROOT / "src", ROOT / "lab", ROOT / "tests")
TESTS = ROOT / "tests"
KIT = ROOT / "src" / "fencelock" / "testing" / "conformance"

_CODE = re.compile(r"\b[THGK][1-9]\d?\b")
_NAMED_AFTER = re.compile(r"\btest_([thgk][1-9]\d?)_")
_ROW = re.compile(r"^\| ([THGK]\d+) \| .* \| (.*) \|$", re.MULTILINE)


def codes(text: str) -> set[str]:
    """Return the rules that a text cites, as `H4` or by a test named `test_h4_…`."""
    return {*_CODE.findall(text), *(name.upper() for name in _NAMED_AFTER.findall(text))}


@cache
def cited(folders: tuple[Path, ...]) -> dict[str, set[Path]]:
    """Return the Python and SQL files that cite each rule. This file is left out: it cites rules that do not exist."""
    found: dict[str, set[Path]] = {}
    for path in (path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".sql"}):
        if path != Path(__file__).resolve():
            for code in codes(path.read_text()):
                found.setdefault(code, set()).add(path)
    return found


def cited_by_tests(paths: Iterable[Path]) -> set[str]:
    """Return the rules that names or docstrings of test functions cite."""
    found: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found |= codes(f"{node.name} {ast.get_docstring(node)}")
    return found


def listed(page: str) -> dict[str, set[Path]]:
    """Return the rules of the page, each with the files in its last column."""
    return {code: {located(name) for name in re.findall(r"`([^`]+)`", files)} for code, files in _ROW.findall(page)}


def located(name: str) -> Path:
    """Return the file that the page means: below tests/, or in the conformance kit if it has no folder."""
    return (TESTS if "/" in name else KIT) / name


def differences(rows: dict[str, set[Path]], citations: dict[str, set[Path]]) -> list[str]:
    """Return what is wrong with the page, a line for each rule that is missing and each file that it names in vain."""
    wrong = [f"{code} is cited, but not on the page" for code in citations.keys() - rows.keys()]
    for code, paths in rows.items():
        citing = citations.get(code, set())
        wrong += [f"{code}: {path.name} does not cite it" for path in paths - citing]
        of_rules = {path for path in citing if path.parent == TESTS / "rules" and is_named_after(path, code)}
        wrong += [f"{code}: {path.name} has tests named after it, but is not on the page" for path in of_rules - paths]
    return sorted(wrong)


def is_named_after(path: Path, code: str) -> bool:
    """Return whether the file has a test whose name begins with the rule."""
    return f"def test_{code.lower()}_" in path.read_text()


def test_the_page_lists_what_is_cited() -> None:
    assert differences(listed(PAGE.read_text()), cited(FOLDERS)) == []


def test_every_listed_rule_has_a_test() -> None:
    rows = listed(PAGE.read_text())
    assert {"T1", "H9", "G11"} <= rows.keys()
    own = Path(__file__).resolve()
    paths = [path for folder in (TESTS, KIT) for path in folder.rglob("*.py") if path != own]
    assert sorted(rows.keys() - cited_by_tests(paths)) == []


def test_each_rule_has_one_row() -> None:
    codes_of_rows = [code for code, _ in _ROW.findall(PAGE.read_text())]
    assert len(codes_of_rows) == len(set(codes_of_rows))


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| H9 | Said. | `zookeeper/test_interop.py` |", "H9: test_leases.py has tests named after it, but is not"),
        ("| H9 | Said. | `rules/test_leases.py`, `waiting.py` |", "H9: waiting.py does not cite it"),
        ("| H9 | Said. | `rules/test_leases.py`, `rules/test_none.py` |", "H9: test_none.py does not cite it"),
        ("| G99 | Said. | `rules/test_leases.py` |", "G99: test_leases.py does not cite it"),
        ("| H8 | Said. | `rules/test_leases.py` |", "H9 is cited, but not on the page"),
    ],
)
def test_a_wrong_page_is_reported(row: str, complaint: str) -> None:
    assert any(line.startswith(complaint) for line in differences(listed(row), cited(FOLDERS)))


def test_a_rule_without_a_test_is_found(tmp_path: Path) -> None:
    path = tmp_path / "test_made_up.py"
    test, helper = 'def test_g98_x():\n    """T99 too."""\n', 'def helper():\n    """H99."""\n    # G96\n'
    path.write_text(f'"""G97."""\n\n\n{test}\n\n{helper}')
    assert cited_by_tests([path]) == {"G98", "T99"}
    assert cited((tmp_path,)).keys() == {"G96", "G97", "G98", "T99", "H99"}
