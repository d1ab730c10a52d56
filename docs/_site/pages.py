"""A Sphinx extension: adds to the Markdown files what only the site has, while it reads them.

- The sidebar. Its captions are the `##` headings of docs/index.md, and its entries are the pages that are linked below
  them, in that order. A page named index.md has the pages of its own folder below it.
- The docstrings of a public name, where a line of a page is only a link with the title `autodoc: NAME`.
- The pictures of docs/explanation/measured.md, drawn from the results in lab/results.
- `index.html`, which leads to the README.

Promise: a link to a file of the repository that is no page of the site becomes plain text.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "index.md"
MEASURED = "docs/explanation/measured"
RESULTS = ROOT / "lab" / "results"
INTERNAL = {
    "begin_term",
    "check_last",
    "claim",
    "done",
    "enter_guarded",
    "enter_term",
    "goes_on_after",
    "goes_on_without",
    "intent",
    "is_stopped",
    "leave_block",
    "leave_guarded",
    "leave_inner_block",
    "leave_term",
    "take",
    "tenure",
    "without_own_cancellation",
}
"""What public classes have for each other: not for programs, and not on the page."""
CONSTRUCTED = {"Once", "Verifier"}
"""Classes without fields that programs construct; a method or function of ours makes the others."""

_LINK = re.compile(r"\[(?P<text>[^][]*)\]\((?P<target>[^)#\s:]+)(?:#[^)\s]*)?\)")
_AUTODOC = re.compile(r"^\[[^][]+\]\((?P<path>\S+) \"autodoc: (?P<name>[\w.]+)\"\)$", re.MULTILINE)
_HEADING = re.compile(r"^## (?P<title>.*)$", re.MULTILINE)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def linked_pages(text: str, page: Path) -> list[Path]:
    """Return the Markdown files that a page links to, each once, in the order of the links."""
    targets = (found["target"] for found in _LINK.finditer(_FENCED.sub("", text)))
    pages = ((page.parent / target).resolve() for target in targets if target.endswith(".md"))
    return list(dict.fromkeys(other for other in pages if other != page))


def sections(index: Path = INDEX) -> dict[str, list[Path]]:
    """Return the captions of the sidebar, and the pages below each."""
    _, *parts = _HEADING.split(index.read_text())
    listed: set[Path] = set()
    found: dict[str, list[Path]] = {}
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        found[title] = [
            page for page in linked_pages(text, index) if page not in listed and not _has_parent(page, index)
        ]
        listed.update(found[title])
    return found


def children(page: Path) -> list[Path]:
    """Return the pages below a page in the sidebar: those of its own folder, if it is the folder's index."""
    if page.name != INDEX.name or page == INDEX:
        return []
    return [other for other in linked_pages(page.read_text(), page) if other.parent == page.parent]


def _has_parent(page: Path, index: Path) -> bool:
    """Return whether the page belongs below the index of its own folder."""
    return page.name != index.name and page.parent != index.parent and (page.parent / index.name).exists()


def reachable() -> set[Path]:
    """Return every page that the sidebar shows."""
    shown = list(chain.from_iterable(sections().values()))
    return {INDEX, *shown, *chain.from_iterable(children(page) for page in shown)}


def documented(text: str, page: Path) -> dict[str, Path]:
    """Return the public names whose docstrings a page has, and the files that they are in."""
    return {found["name"]: (page.parent / found["path"]).resolve() for found in _AUTODOC.finditer(text)}


def _with_docstrings(text: str) -> str:
    """Return the text with a directive of autodoc for each link that stands for docstrings."""

    def directive(found: re.Match[str]) -> str:
        module, _, name = found["name"].rpartition(".")
        kind = "class" if isinstance(getattr(import_module(module), name), type) else "function"
        options = "\n   :members:\n   :inherited-members:" if kind == "class" else ""
        return f"```{{eval-rst}}\n.. auto{kind}:: {found['name']}{options}\n```"

    return _AUTODOC.sub(directive, text)


def _toctree(pages: Iterable[Path], caption: str | None = None) -> str:
    """Return the directive that puts pages into the sidebar."""
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    names = [f"/{page.relative_to(ROOT).with_suffix('')}" for page in pages]
    return "\n".join(["", "```{toctree}", *options, "", *names, "```", ""])


def _sidebar(docname: str) -> Iterator[str]:
    """Yield the directives that a page needs for its part of the sidebar."""
    if docname == "README":
        yield _toctree([INDEX])
        for title, pages in sections().items():
            yield _toctree(pages, title)
    elif below := children(ROOT / f"{docname}.md"):
        yield _toctree(below)


def without_foreign_links(text: str, page: Path) -> str:
    """Return the text with links only to pages and pictures of the site."""

    def kept(found: re.Match[str]) -> str:
        target = (page.parent / found["target"]).resolve()
        is_shown = target.is_file() and (target.parent == ROOT or target.is_relative_to(INDEX.parent))
        return found[0] if is_shown else found["text"]

    return _LINK.sub(kept, text)


def _with_pictures(text: str, folder: Path) -> str:
    """Draw the results into a folder, and return the page with each picture below its heading."""
    from fencelock_lab.benchmarks import plots
    from fencelock_lab.benchmarks.results import read_all

    folder.mkdir(parents=True, exist_ok=True)
    reports = read_all(RESULTS)
    titles = {report.subject: report.title for report in reports}
    for name, picture in plots.draw(reports).items():
        path = folder / f"{name}.svg"
        path.write_text(picture)
        heading = f"## {titles[name]}\n" if name in titles else "## Many waiters, many leases\n"
        shown = f"{heading}\n![The figures of the tables below, drawn](/{path.relative_to(ROOT)})\n"
        text = text.replace(heading, shown) if heading in text else f"{text}\n{shown}"
    return text


def _read_source(app: "Sphinx", docname: str, source: list[str]) -> None:
    """Change one page's text, as Sphinx has read it."""
    text = without_foreign_links(_with_docstrings(source[0]), ROOT / f"{docname}.md")
    if docname == MEASURED:
        text = _with_pictures(text, Path(app.outdir).parent / "pictures")
    source[0] = "\n".join([text, *_sidebar(docname)])


def _skip_internal(_app: "Sphinx", _kind: str, name: str, *_rest: object) -> bool | None:
    """Leave out what only guards and handles call, though its name has no underscore."""
    return True if name in INTERNAL else None


def _shorten_signature(
    _app: "Sphinx", kind: str, name: str, value: object, _options: object, arguments: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Leave out the arguments of a class that another call makes, and the fields of a default value."""
    if kind == "class" and name.rpartition(".")[2] not in CONSTRUCTED and not is_dataclass(value):
        return "", None
    return re.sub(r"= Hooks\([^)]*\)", "= Hooks()", arguments or "") or None, returned


def _lead_to_readme(app: "Sphinx", error: Exception | None) -> None:
    """Write the page that a server shows for the folder."""
    if error is None:
        to = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=README.html">'
        (Path(app.outdir) / "index.html").write_text(f'{to}<title>fencelock</title><a href="README.html">fencelock</a>')


def setup(app: "Sphinx") -> dict[str, bool]:
    """Connect the extension to Sphinx."""
    app.connect("source-read", _read_source)
    app.connect("autodoc-skip-member", _skip_internal)
    app.connect("autodoc-process-signature", _shorten_signature)
    app.connect("build-finished", _lead_to_readme)
    return {"parallel_read_safe": True}
