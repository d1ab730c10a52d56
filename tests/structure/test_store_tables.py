"""The tables of the documents say of each guard what its store declares."""

import re
from importlib import import_module

import pytest

from fencelock.protocol import GuardCapabilities
from fencelock.stores.registry import GUARDS
from tests.support.helpers import ROOT

README = ROOT / "README.md"
PAGE = ROOT / "docs" / "reference" / "stores" / "index.md"
REFUSED_BY = {"store": "itself", "policy": "its access control, if you set it up", "nobody": "nobody"}
SAID_IN_README = {"store": "triggers", "policy": "must keep other writers out", "nobody": "stops nobody"}
YES = {True: "yes", False: "no"}


def cells(can: GuardCapabilities) -> list[str]:
    """Return what the table says of a guard, after its name."""
    limits = [
        f"{limit:,} {unit}"
        for limit, unit in ((can.max_writes, "writes"), (can.max_request_bytes, "bytes"))
        if limit is not None
    ]
    return [
        REFUSED_BY[can.enforced_by],
        YES[can.spans_resources],
        YES[can.keeps_open],
        "the first seal" if can.first_seal_creates else "`protect`",
        YES[can.seal_is_durable],
        ", ".join(limits) or "-",
    ]


def rows(text: str, scheme: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows of one section that are about a scheme."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in found if re.search(rf"`{scheme}://`", row[0])]


def capabilities(scheme: str) -> GuardCapabilities:
    module, _, name = GUARDS[scheme].partition(":")
    declared: GuardCapabilities = getattr(import_module(module), name).capabilities
    return declared


@pytest.mark.parametrize("scheme", sorted(GUARDS))
def test_the_reference_says_what_the_store_declares(scheme: str) -> None:
    (row,) = rows(PAGE.read_text(), scheme, "What guards can do")
    assert row[1:] == cells(capabilities(scheme))


@pytest.mark.parametrize("scheme", sorted(GUARDS))
def test_readme_says_who_refuses_a_writer_without_a_token(scheme: str) -> None:
    for row in rows(README.read_text(), scheme, "Stores"):
        assert SAID_IN_README[capabilities(scheme).enforced_by] in row[-1]


def test_a_row_that_says_something_else_is_noticed() -> None:
    page = PAGE.read_text().replace("| `etcd://` | its access control", "| `etcd://` | itself")
    (row,) = rows(page, "etcd", "What guards can do")
    assert row[1:] != cells(capabilities("etcd"))
