"""Which tests run when. A pytest plugin: `--tier check`, `--tier test` or `--tier campaigns`; without it, all run.

A test belongs to exactly one tier; `--tier test` runs those of `check` as well.

- `campaigns`: marked `campaign`, or with a parameter for which another one stands in (see STAND_INS): of a server's
  versions, for example, the newest one stays in `test`.
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

KINDS = ("postgres", "mysql", "etcd", "zookeeper", "nats", "redis", "rabbit", "ministack", "seaweed", "rclone")
SERVER_FIXTURES = {f"{kind}_fleet" for kind in KINDS}
"""A test that uses one of these, directly or not, starts a server: it does not belong to `check`."""

STAND_INS = {
    # The older version of a server for the newer one.
    "postgres_kind": {"15": "18"},
    "sql_server": {"postgres15": "postgres18"},
    # An adapter's database: each has tests of its own in tests/sql.
    "empty": {"mysql": "postgres"},
    "guarded": {"mysql": "postgres"},
    # Lost messages take seconds each; both APIs run the same flow.
    "open_scene": {"async": "sync"},
    "runner": {"async": "sync"},
}
"""Parameter -> value -> the value that stands in for it: where a test runs with both, the first is left to campaigns.
"""


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
    if item.get_closest_marker("campaign") is not None or _stand_in(item) in names:
        return "campaigns"
    fixtures = SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    is_light = item.get_closest_marker("slow") is None and not fixtures
    return "check" if is_light and item.nodeid.startswith(CHECK) else "test"


def _stand_in(item: pytest.Item) -> str | None:
    """Return the node id of the same test with the values that stand in for its own; None if none does."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return None
    others = {
        value: other for name, values in STAND_INS.items() if name in callspec.params for value, other in values.items()
    }
    ids = callspec.id.split("-")
    if others.keys().isdisjoint(ids):
        return None
    return f"{item.nodeid.partition('[')[0]}[{'-'.join(others.get(part, part) for part in ids)}]"
