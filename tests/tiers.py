"""Which tests run when. A pytest plugin: `--tier check`, `--tier test` or `--tier campaigns`; without it, all run.

A test belongs to exactly one tier; `--tier test` runs those of `check` as well.

- `campaigns`: marked `campaign`, or one more version of a server: where a test runs over several, only the first one of
  them (see NEWEST) stays in `test`.
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

NEWEST = {"postgres_kind": "18"}
"""Parameter -> the version that stays in `test` where a test runs over several. A test that runs over one stays."""


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
    newest = frozenset(_without_version(item) for item in items if _has_newest(item))
    return {item.nodeid: _tier_of(item, newest) for item in items}


def _tier_of(item: pytest.Item, newest: Collection[str]) -> str:
    if item.get_closest_marker("campaign") is not None:
        return "campaigns"
    if _versions(item) and not _has_newest(item) and _without_version(item) in newest:
        return "campaigns"
    fixtures = SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    is_light = item.get_closest_marker("slow") is None and not fixtures
    return "check" if is_light and item.nodeid.startswith(CHECK) else "test"


def _versions(item: pytest.Item) -> dict[str, str]:
    """Return the parameters of a test that are versions of a server."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return {name: value for name, value in params.items() if name in NEWEST}


def _has_newest(item: pytest.Item) -> bool:
    versions = _versions(item)
    return bool(versions) and all(NEWEST[name] == version for name, version in versions.items())


def _without_version(item: pytest.Item) -> str:
    """Return a name that a test has in common with its twins on other versions."""
    versions = _versions(item)
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return item.nodeid
    ids = [part for part in callspec.id.split("-") if part not in versions.values()]
    return f"{item.nodeid.partition('[')[0]}[{'-'.join(ids)}]"
