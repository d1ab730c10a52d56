"""The documentation site: its sidebar reaches every page. `make docs` builds it, where a warning is an error."""

import importlib.util
import re
from pathlib import Path

import fencelock
import fencelock.aio
from fencelock import errors
from tests.support.helpers import ROOT

SPEC = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "_site" / "pages.py")
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)


def test_every_page_is_in_the_sidebar() -> None:
    written = {*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")} - {ROOT / "README.md"}
    assert pages.reachable() == written


def test_the_sidebar_has_each_page_once() -> None:
    shown = [page for below in pages.sections().values() for page in below]
    assert len(shown) == len(set(shown))
    assert ROOT / "docs" / "decisions" / "index.md" in shown
    assert ROOT / "docs" / "decisions" / "fork.md" not in shown


def test_sections_follow_the_links_of_the_index(tmp_path: Path) -> None:
    index = tmp_path / "index.md"
    index.write_text(
        "# All\n[x](x.md)\n## One\n[b](b.md#part), [a](a.md)\n```\n[c](c.md)\n```\n## Two\n[a](a.md) [d](d.md)\n"
    )
    assert pages.sections(index) == {"One": [tmp_path / "b.md", tmp_path / "a.md"], "Two": [tmp_path / "d.md"]}


def test_a_link_out_of_the_site_becomes_text() -> None:
    page = ROOT / "docs" / "explanation" / "measured.md"
    text = "[its files](../../lab/results), [tests](../../tests/README.md), [costs](performance.md#a), [us](https://example.org/)"
    assert (
        pages.without_foreign_links(text, page)
        == "its files, tests, [costs](performance.md#a), [us](https://example.org/)"
    )


def test_the_docstrings_of_every_public_name_are_in_the_reference() -> None:
    public = {f"{module.__name__}.{name}" for module in (fencelock, fencelock.aio) for name in module.__all__}
    page = ROOT / "docs" / "reference" / "api.md"
    found = pages.documented(page.read_text(), page)
    assert {"fencelock.Source", "fencelock.aio.AsyncLease", "fencelock.aio.connect"} <= found.keys()
    assert found.keys() == public - {f"fencelock.{name}" for name in vars(errors)}


def test_a_code_host_leads_to_the_docstrings() -> None:
    page = ROOT / "docs" / "reference" / "api.md"
    for name, file in pages.documented(page.read_text(), page).items():
        assert re.search(rf"^(class|def) {name.rpartition('.')[2]}\b", file.read_text(), re.MULTILINE), name
