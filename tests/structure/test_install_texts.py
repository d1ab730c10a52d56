"""How to install fencelock: `_install.py` says it in messages, docs/how-to/install.md to readers, and no other text."""

import re
import tomllib

import pytest

from fencelock._install import install_extra, install_lab
from fencelock.stores.registry import EXTRAS
from tests.support.helpers import ROOT

PAGE = ROOT / "docs" / "how-to" / "install.md"
MESSAGES = ROOT / "src" / "fencelock" / "_install.py"
TEXTS = {
    *(path for folder in ("src", "lab/src") for path in (ROOT / folder).rglob("*.py")),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
} - {PAGE, MESSAGES}
SHORT = {ROOT / "README.md": r"pip install '\.\[cli,postgres\]'"}
"""README's one command, for a reader of the first screen."""
_OWN_WORDS = re.compile(r"[Ff]rom\s+a\s+clone|pip3?\s+install\s+[^`\n]*(?:'?\.(?:\[|\s|$|/)|clone|fencelock)")


def own_words(text: str) -> list[str]:
    """Return what a text says of its own about installing fencelock."""
    return [found.group() for found in _OWN_WORDS.finditer(text)]


def test_the_page_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS.values()) <= set(extras)
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)) == set(extras)


@pytest.mark.parametrize("text", [install_extra("cli"), install_lab()])
def test_the_page_has_the_commands_of_the_messages(text: str) -> None:
    command = text[text.index("pip install") :]
    assert f"$ {command}\n" in PAGE.read_text()


def test_no_other_place_has_words_of_its_own() -> None:
    found = {path: own_words(re.sub(SHORT.get(path, r"(?!)"), "", path.read_text())) for path in TEXTS}
    assert {path: words for path, words in found.items() if words} == {}


@pytest.mark.parametrize(
    "text",
    ["From a clone, do it", "pip install '.[cli]'", "$ pip install . ./lab", "pip install 'fencelock[etcd]'"],
)
def test_words_of_its_own_are_found(text: str) -> None:
    assert own_words(text)


@pytest.mark.parametrize(
    "text", ["pip install 'PyMySQL[rsa]'", "pip install 'psycopg[binary]'", "pip install pure-sasl"]
)
def test_another_package_may_be_named(text: str) -> None:
    assert not own_words(text)
