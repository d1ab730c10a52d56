"""Which tests run when. A pytest plugin: `--tier check`, `--tier test` or `--tier campaigns`; without it, all run.

A test belongs to exactly one tier; `--tier test` runs those of `check` as well.

- `campaigns`: marked `campaign`, or one more version of a server: where a test runs over several, only the newest
  one (see NEWER) stays in `test`.
- `check`: in one of the CHECK folders, and without a server, and not marked `slow`.
- `test`: all others.

A rule's only witness is never marked `campaign`: nothing is proven less, but some of it at another hour.
"""

from collections.abc import Collection, Sequence

import pytest

TIERS = ("check", "test", "campaigns")
INCLUDED = {"check": {"check"}, "test": {"check", "test"}, "campaigns": {"campaigns"}}

CHECK = (
    "tests/conformance/",
    "tests/cpython/",
    "tests/lab/model/",
    "tests/lab/simulator/",
    "tests/rules/",
    "tests/structure/",
    "tests/unit/",
)
"""Folders whose tests need nothing but Python."""

SERVER_FIXTURES = {"postgres_fleet", "mysql_fleet", "etcd_fleet", "zookeeper_fleet"}
"""A test that uses one of these, directly or not, starts a server: it does not belong to `check`."""

NEWER = {"postgres_kind": {"15": "18"}, "sql_server": {"postgres15": "postgres18"}}
"""Parameter -> older version of a server -> the one that stays in `test`, if the test runs on both."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--tier`."""
    parser.addoption("--tier", choices=TIERS, help="run the tests of this tier alone (tests/tiers.py says which)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other tiers."""
    asked = config.getoption("--tier")
    if asked is None:
        return
    tiers = tiers_of(items)
    kept = [item for item in items if tiers[item.nodeid] in INCLUDED[asked]]
    config.hook.pytest_deselected(items=[item for item in items if tiers[item.nodeid] not in INCLUDED[asked]])
    items[:] = kept


def tiers_of(items: Sequence[pytest.Item]) -> dict[str, str]:
    """Return the tier of each test, by its node id."""
    names = {item.nodeid for item in items}
    return {item.nodeid: _tier_of(item, names) for item in items}


def _tier_of(item: pytest.Item, names: Collection[str]) -> str:
    if item.get_closest_marker("campaign") is not None or _newer_twin(item) in names:
        return "campaigns"
    fixtures = SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    is_light = item.get_closest_marker("slow") is None and not fixtures
    return "check" if is_light and item.nodeid.startswith(CHECK) else "test"


def _newer_twin(item: pytest.Item) -> str | None:
    """Return the node id of the same test on the newer version of its server; None if it runs on no older one."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return None
    newer = {old: new for name, versions in NEWER.items() for old, new in versions.items() if name in callspec.params}
    ids = callspec.id.split("-")
    if newer.keys().isdisjoint(ids):
        return None
    return f"{item.nodeid.partition('[')[0]}[{'-'.join(newer.get(part, part) for part in ids)}]"
