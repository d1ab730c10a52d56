"""Every test belongs to one tier, and a rule's witness stays in `make test`."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.budgets import PAGE, row_of, rows
from tests.support.helpers import ROOT
from tests.tiers import CHECK, SERVER_FIXTURES, STAND_INS, tiers_of


def item(nodeid: str, *marks: str, fixtures: tuple[str, ...] = (), **params: str) -> Any:
    """Return what a tier is decided by."""
    if params:
        nodeid += f"[{'-'.join(params.values())}]"
    return SimpleNamespace(
        nodeid=nodeid,
        fixturenames=fixtures,
        callspec=SimpleNamespace(params=params, id="-".join(params.values())) if params else None,
        get_closest_marker=lambda name: name if name in marks else None,
    )


@pytest.mark.parametrize(
    ("one", "tier"),
    [
        (item("tests/unit/test_a.py::test_a"), "check"),
        (item("tests/unit/test_a.py::test_a", "slow"), "test"),
        (item("tests/unit/test_a.py::test_a", fixtures=("database", "postgres_fleet")), "test"),
        (item("tests/unit/test_a.py::test_a", "campaign"), "campaigns"),
        (item("tests/etcd/test_a.py::test_a"), "test"),
        (item("tests/sql/test_a.py::test_a", postgres_kind="15"), "test"),
    ],
)
def test_a_test_has_one_tier(one: Any, tier: str) -> None:
    assert tiers_of([one]) == {one.nodeid: tier}


def test_of_two_versions_the_newer_one_stays() -> None:
    both = [item("tests/sql/test_a.py::test_a", way="sync", sql_server=name) for name in ("postgres15", "postgres18")]
    assert list(tiers_of(both).values()) == ["campaigns", "test"]


def test_folders_and_fixtures_of_the_tiers_exist() -> None:
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert [folder for folder in CHECK if not (ROOT / folder).is_dir()] == []
    assert [name for name in {*SERVER_FIXTURES, *STAND_INS} if f"\ndef {name}(" not in text] == []


def test_no_rule_is_left_to_the_campaigns() -> None:
    rules = (ROOT / "tests" / "rules").rglob("test_*.py")
    assert [path.name for path in rules if "mark.campaign" in path.read_text()] == []


def test_every_folder_of_tests_has_a_budget() -> None:
    table = rows(PAGE.read_text())
    tests = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    assert [test for test in tests if row_of(test, table) is None] == []


def test_a_test_counts_where_its_innermost_folder_does() -> None:
    table = rows("| `tests/a`, others | 1 | 2 | 3 |\n| `tests/a/b`, `c` | 1 234 | 2 | 5 |\n")
    budgets = {name: row_of(f"tests/{name}/test_x.py::test_x", table) for name in ("a", "a/b", "a/c", "ab")}
    assert {name: row and row.budget_s for name, row in budgets.items()} == {"a": 3, "a/b": 5, "a/c": 5, "ab": None}
