"""The reference names everything: errors, commands with their options, stores, settings. test_site.py: the Python API.

What exists is asked of the installed package: its classes, its scheme table, its own `--help`. Links lead
somewhere.
"""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest

from fencelock import errors, protocol
from fencelock.cli.commands import execute
from fencelock.stores import registry
from tests.support.helpers import ROOT

REFERENCE = ROOT / "docs" / "reference"
ERRORS = sorted(name for name in vars(errors) if name.endswith("Error"))
SCHEMES = sorted({*registry.SOURCES, *registry.GUARDS, *registry.UNSAFE_SOURCES})


@cache
def usage(*command: str) -> str:
    """Return what `fencelock COMMAND --help` prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert execute([*command, "--help"]) == 0
    return out.getvalue()


def commands() -> list[str]:
    """Return the names below `Commands:` in the help of `fencelock`."""
    _, _, listed = usage().partition("Commands:\n")
    return re.findall(r"^  ([a-z][a-z-]*)", listed, re.MULTILINE)


def options(command: str) -> list[str]:
    """Return the long options that a command's help explains."""
    lines = re.findall(r"^  (?:-\w, )?--.*", usage(command), re.MULTILINE)
    return sorted({name for line in lines for name in re.findall(r"--[a-z][a-z-]*", line)})


def settings() -> list[str]:
    """Return the environment variables that the source reads or sets."""
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    return sorted({name for text in texts for name in re.findall(r"\bFENCELOCK_[A-Z]+\b", text)})


def names(text: str, word: str) -> bool:
    """Return whether a text has this word, and not only as a part of a longer one."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def reference() -> str:
    return "\n".join(path.read_text() for path in sorted(REFERENCE.rglob("*.md")))


def section(text: str, command: str) -> str:
    """Return what cli.md says of a command: below its heading, and before the first one (common).

    Empty if no heading names the command.
    """
    common, *sections = re.split(r"^##+ ", text, flags=re.MULTILINE)
    own = [part for part in sections if names(part.partition("\n")[0], command)]
    return common + "".join(own) if own else ""


def drawn_below(kind: type, indent: str = "") -> Iterator[str]:
    """Yield the lines that draw what inherits from a class, and what else each inherits from."""
    below = [one for one in kind.__subclasses__() if one.__name__ in ERRORS]
    for one in below:
        is_last = one is below[-1]
        others = ", ".join(base.__name__ for base in one.__bases__ if base is not kind)
        yield f"{indent}{'└─' if is_last else '├─'} {one.__name__}{others and f'({others})'}"
        yield from drawn_below(one, indent + ("   " if is_last else "│  "))


@pytest.mark.parametrize("name", protocol.__all__)
def test_the_protocol_page_names_what_a_store_author_imports(name: str) -> None:
    assert names((REFERENCE / "protocol.md").read_text(), name)


def test_the_errors_are_drawn_as_the_tree_that_they_are() -> None:
    tree = [errors.FencelockError.__name__, *drawn_below(errors.FencelockError)]
    assert "\n".join(tree) in (REFERENCE / "errors.md").read_text()
    assert "\n".join(f"    {line}" for line in tree) in (errors.__doc__ or "")


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def slug(heading: str) -> str:
    """Return the anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def broken_links(document: Path) -> list[str]:
    """Return the relative links of a document that lead to no file, or to no heading of it."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if re.match(r"\w+:", link):
            continue
        headings = (
            re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
            if target.suffix == ".md" and target.exists()
            else []
        )
        if not target.exists() or (anchor and anchor not in map(slug, headings)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert broken_links(document) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title: `it`\n[a](page.md#a-title-it) [b](#b) [c](c.md) [d](https://example.org/x)\n")
    assert broken_links(page) == ["#b", "c.md"]


def test_every_error_is_in_the_reference() -> None:
    assert "StaleTokenError" in ERRORS
    text = reference()
    assert [name for name in ERRORS if not names(text, name)] == []


def test_every_store_is_in_the_reference() -> None:
    assert "sqlite" in SCHEMES
    text = reference()
    assert [scheme for scheme in SCHEMES if f"{scheme}://" not in text] == []


def test_every_setting_is_in_the_reference() -> None:
    found = settings()
    assert "FENCELOCK_SEQUENCER" in found
    text = reference()
    assert [name for name in found if not names(text, name)] == []


def test_every_command_and_option_is_in_the_reference() -> None:
    found = commands()
    assert {"demo", "run", "protect", "doctor"} <= set(found)
    assert "--grace" in options("run")
    text = (REFERENCE / "cli.md").read_text()
    missing = [
        f"{command} {option}"
        for command in found
        for option in options(command)
        if not names(section(text, command), option)
    ]
    assert missing == []


@pytest.mark.parametrize(("text", "word"), [("--wait-for", "--wait"), ("LeaseLostErrors", "LeaseLostError"), ("", "a")])
def test_a_part_of_a_word_does_not_count(text: str, word: str) -> None:
    assert not names(text, word)
    assert names(f"{text} `{word}`: …", word)


def test_an_option_below_another_command_does_not_count() -> None:
    text = "# CLI\nAll: --json\n\n## `fencelock run`\n--wait\n\n## show\n--all\n"
    assert names(section(text, "run"), "--wait")
    assert names(section(text, "run"), "--json")
    assert not names(section(text, "run"), "--all")
    assert section(text, "break") == ""
