"""docs/reference/findings.md lists the codes that `fencelock doctor` can report, each at its store, and no others."""

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.helpers import ROOT

SOURCE = ROOT / "src" / "fencelock"
PAGE = ROOT / "docs" / "reference" / "findings.md"
SOURCES, GUARDS, MACHINE = "Sources", "Guards", "The machine"
"""Headings of the page. A finding about the machine may come from either half of a store."""
HALVES = {"source": SOURCES, "source.py": SOURCES, "guard": GUARDS}
STORES = {"dynamodb": "DynamoDB", "memory": "memory", "mysql": "MySQL", "postgres": "PostgreSQL", "redis": "Redis"} | {
    "etcd": "etcd",
    "files": "files",
    "s3": "S3",
    "sqlite": "SQLite",
    "zookeeper": "ZooKeeper",
}
IN_SQL = "stores/mysql/guard/inspection.py"
"""The one module whose statement names the codes: it reports what a query returns."""


class Reported(NamedTuple):
    """A code that a file of the source reports; None if the file does not spell it."""

    file: str
    code: str | None


@cache
def texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.py"))}


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def modules_that_name(names: Collection[str], folder: Path) -> dict[str, ast.Module]:
    """Return the modules whose text has one of the names: to parse all others takes seconds."""
    return {file: parsed(text) for file, text in texts(folder).items() if any(name in text for name in names)}


def named(call: ast.expr) -> str:
    return call.attr if isinstance(call, ast.Attribute) else call.id if isinstance(call, ast.Name) else ""


def argument(call: ast.Call, index: int, name: str) -> ast.expr | None:
    """Return what a call gives for a parameter; None if nothing."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return given[0] if given else call.args[index] if index < len(call.args) else None


@cache
def calls(tree: ast.AST) -> tuple[ast.Call, ...]:
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call))


def calls_of(function: str, tree: ast.AST) -> Iterator[ast.Call]:
    return (call for call in calls(tree) if named(call.func) == function)


def helpers(trees: dict[str, ast.Module]) -> dict[str, tuple[int, str]]:
    """Return the functions that make a finding of a code that they are given, and which parameter it is."""
    found = {}
    functions = (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    for function in functions:
        parameters = [one.arg for one in function.args.args]
        for call in calls_of("Finding", function):
            code = argument(call, 0, "code")
            if isinstance(code, ast.Name) and code.id in parameters:
                found[function.name] = parameters.index(code.id), code.id
    return found


def constants(tree: ast.Module) -> dict[str, str]:
    """Return the strings that a module gives a name."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


@cache
def reported(folder: Path = SOURCE) -> set[Reported]:
    """Return the codes in calls of Finding and of its helpers."""
    makers = {"Finding": (0, "code"), **helpers(modules_that_name({"Finding"}, folder))}
    found = set()
    for file, tree in modules_that_name(makers, folder).items():
        known = constants(tree)
        in_helpers = {
            id(call)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name in makers
            for call in calls_of("Finding", node)
        }
        for function, (index, name) in makers.items():
            for call in calls_of(function, tree):
                code = argument(call, index, name)
                if isinstance(code, ast.Constant) and isinstance(code.value, str):
                    found.add(Reported(file, code.value))
                elif id(call) not in in_helpers:
                    found.add(Reported(file, known.get(code.id) if isinstance(code, ast.Name) else None))
    return found


def all_reported() -> set[Reported]:
    """Return what `reported` does, with the codes that a query of MySQL's names."""
    query = (SOURCE / IN_SQL).with_suffix(".sql").read_text()
    codes = re.findall(r"^SELECT '([a-z][a-z-]+)', '\w+', @@", query, re.MULTILINE)
    return {one for one in reported() if one.code is not None} | {Reported(IN_SQL, code) for code in codes}


def listed(page: str) -> dict[str, dict[str, str]]:
    """Return the rows of the page: below each heading the codes, each with the rest of its row."""
    _, *parts = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)
    rows = (re.findall(r"^\| `([a-z][a-z0-9-]*)` \|(.*)$", text, re.MULTILINE) for text in parts[1::2])
    return {heading: dict(found) for heading, found in zip(parts[::2], rows, strict=True)}


def is_listed(one: Reported, page: dict[str, dict[str, str]]) -> bool:
    """Return whether the page names a code, and its store beside it if a folder of that store reports it."""
    _, *rooms = Path(one.file).parts
    store = STORES.get(rooms[0]) if rooms else None
    half = next((HALVES[room] for room in rooms[1:] if room in HALVES), None)
    sections = [page.get(heading, {}) for heading in ((half, MACHINE) if half and store else page)]
    rows = [rest for rows in sections for code, rest in rows.items() if code == one.code]
    return any(store is None or store in rest.partition("|")[0] for rest in rows)


def test_every_code_is_listed_where_it_is_reported() -> None:
    page, found = listed(PAGE.read_text()), all_reported()
    assert {"blocked-queue", "guard-refused", "replication", "source-went-back"} <= {one.code for one in found}
    assert sorted(map(str, (one for one in found if not is_listed(one, page)))) == []


def test_every_listed_code_can_be_reported() -> None:
    codes = {one.code for one in all_reported()}
    assert sorted({code for rows in listed(PAGE.read_text()).values() for code in rows} - codes) == []


def test_one_module_alone_reports_codes_that_it_does_not_spell() -> None:
    assert {one.file for one in reported() if one.code is None} == {IN_SQL}


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ('Finding("torn", "", "")', "torn"),
        ('model.Finding(code="torn", message="", remedy="")', "torn"),
        ('refuse(error, "torn")', "torn"),
        ("Finding(TORN, '', '')", "torn-by-name"),
        ("Finding(rows[0], '', '')", None),
    ],
)
def test_codes_are_found_in_calls_of_findings_and_of_helpers(tmp_path: Path, call: str, code: str | None) -> None:
    (tmp_path / "helper.py").write_text("def refuse(error, code):\n    return Finding(code, str(error), '')\n")
    (tmp_path / "store.py").write_text(f'TORN = "torn-by-name"\nfound = {call}\n')
    assert reported(tmp_path) == {Reported("store.py", code)}


def test_a_code_below_another_half_or_at_another_store_is_not_listed() -> None:
    page = listed("## Sources\n| `torn` | MySQL | |\n\n## Guards\n| `open` | S3, files | |\n")
    assert is_listed(Reported("stores/mysql/source/inspection.py", "torn"), page)
    assert is_listed(Reported("stores/sql/inspection.py", "torn"), page)
    assert not is_listed(Reported("stores/sqlite/source/inspection.py", "torn"), page)
    assert not is_listed(Reported("stores/mysql/guard/inspection.py", "torn"), page)
    assert not is_listed(Reported("stores/files/guard/store.py", "shut"), page)
