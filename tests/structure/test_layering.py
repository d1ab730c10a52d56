"""Imports go one way, and the flows stay pure."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.structure.imports import (
    LAB,
    PACKAGE,
    circles,
    client_faults,
    direction_faults,
    faults_of_test_imports,
    imports,
    kit_faults,
    lab_faults,
    modules,
    purity_faults,
)
from tests.support.helpers import ROOT

SOURCE = ROOT / "src" / "fencelock"
LABORATORY = ROOT / "lab" / "src" / "fencelock_lab"
Check = Callable[[Path], list[str]]


def test_imports_go_one_way() -> None:
    assert direction_faults(SOURCE) == []


def test_only_handles_and_their_source_import_each_other() -> None:
    """A source makes handles, and a handle's annotations name its source."""
    assert circles(SOURCE) == [
        ["fencelock._api.aio_lock", "fencelock._api.aio_source"],
        ["fencelock._api.lock", "fencelock._api.source"],
    ]


def test_a_circle_is_reported(tmp_path: Path) -> None:
    _module(tmp_path, "_api/a.py", "from fencelock._api import b")
    (tmp_path / "_api" / "b.py").write_text("if TYPE_CHECKING:\n    from fencelock._api.c import x")
    (tmp_path / "_api" / "c.py").write_text("def f():\n    from fencelock._api.a import y")
    (tmp_path / "_api" / "d.py").write_text("from fencelock._api import a, errors")
    assert circles(tmp_path) == [["fencelock._api.a", "fencelock._api.b", "fencelock._api.c"]]


def test_flows_import_no_time_thread_or_socket() -> None:
    assert purity_faults(SOURCE) == []


def test_core_imports_the_standard_library_only() -> None:
    assert client_faults(SOURCE) == []


def test_kits_import_public_names_only() -> None:
    assert kit_faults(SOURCE) == []


def test_the_laboratory_imports_public_names_only() -> None:
    assert lab_faults(LABORATORY) == []


def test_nothing_that_is_installed_imports_the_tests() -> None:
    assert faults_of_test_imports(SOURCE, PACKAGE) + faults_of_test_imports(LABORATORY, LAB) == []


def test_the_checks_read_the_whole_source() -> None:
    assert {"fencelock", "fencelock.errors", "fencelock._flows.acquire"} <= set(modules(SOURCE))
    assert sum(1 for _ in imports(SOURCE)) > len(modules(SOURCE))


@pytest.mark.parametrize(
    ("check", "module", "line", "fault"),
    [
        (direction_faults, "_flows/wait.py", "from fencelock.stores import registry", "stores"),
        (direction_faults, "_flows/wait.py", "from .. import _keeper", "fencelock._keeper"),
        (direction_faults, "_flows/wait.py", "from ..stores.sqlite import guard", "stores.sqlite"),
        (direction_faults, "protocol/a.py", "from fencelock._flows import retry", "fencelock._flows"),
        (direction_faults, "protocol/a.py", "from fencelock.stores import registry", "stores"),
        (direction_faults, "stores/__init__.py", "from .._api import locks", "fencelock._api"),
        (direction_faults, "_keeper/beat.py", "def f():\n    import fencelock", "fencelock"),
        (direction_faults, "errors.py", "if TYPE_CHECKING:\n    from .stores import x", "stores"),
        (direction_faults, "_api/a.py", "import_module('fencelock.cli')", "fencelock.cli"),
        (direction_faults, "extra.py", "", "in no layer"),
        (purity_faults, "_flows/wait.py", "def f():\n    from time import sleep", "time"),
        (purity_faults, "_flows/wait.py", "import asyncio.locks", "asyncio.locks"),
        (client_faults, "_api/a.py", "import click", "click"),
        (client_faults, "cli/a.py", "import requests", "requests"),
        (client_faults, "stores/sqlite/a.py", "import psycopg", "psycopg"),
        (client_faults, "_api/a.py", "import fencelock_lab", "fencelock_lab"),
        (client_faults, "cli/a.py", "from fencelock_lab import demo", "fencelock_lab"),
        (kit_faults, "testing/conformance/a.py", "from fencelock._flows import retry", "fencelock._flows"),
        (kit_faults, "testing/conformance/a.py", "import fencelock.stores.memory", "stores.memory"),
    ],
)
def test_a_bad_import_is_reported(tmp_path: Path, check: Check, module: str, line: str, fault: str) -> None:
    path = _module(tmp_path, module, line)
    faults = check(tmp_path)
    assert len(faults) == 1
    assert path.stem in faults[0] or path.parent.name in faults[0]
    assert fault in faults[0]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("_flows/wait.py", "from .. import errors\nfrom ..model import Token\nimport random"),
        ("_api/a.py", "from fencelock import errors\nimport asyncio"),
        ("stores/sqlite/source/store.py", "from ..contract import Store\nimport sqlite3, time"),
        ("cli/a.py", "import click\nimport fencelock\nfrom . import b"),
    ],
)
def test_a_good_import_is_not_reported(tmp_path: Path, module: str, line: str) -> None:
    _module(tmp_path, module, line)
    assert [check(tmp_path) for check in (direction_faults, purity_faults, client_faults)] == [
        [],
        [],
        [],
    ]


@pytest.mark.parametrize(
    ("module", "line", "is_fault"),
    [
        ("demo/a.py", "from fencelock._flows import retry", True),
        ("campaigns/a.py", "from fencelock.stores.registry import source_store", True),
        ("servers/a.py", "def f():\n    from fencelock.model import Mark", True),
        ("simulator/a.py", "from fencelock._flows import retry", False),
        ("campaigns/a.py", "import fencelock\nfrom fencelock.protocol import Acquire", False),
        ("benchmarks/a.py", "from fencelock.testing import ManualClock\nimport fencelock.aio", False),
    ],
)
def test_a_private_import_of_the_laboratory_is_reported(tmp_path: Path, module: str, line: str, is_fault: bool) -> None:
    _module(tmp_path, module, line)
    assert len(lab_faults(tmp_path)) == is_fault


def test_an_import_of_the_tests_is_reported(tmp_path: Path) -> None:
    _module(tmp_path, "_api/a.py", "def f():\n    from tests.support.helpers import ROOT")
    (fault,) = faults_of_test_imports(tmp_path, PACKAGE)
    assert "_api.a:2 imports tests.support.helpers" in fault


def _module(root: Path, name: str, text: str) -> Path:
    """Write a module of a made-up package, of which every layer has one, and return its path."""
    for layer in ("protocol", "_flows", "stores", "_keeper", "_api", "cli"):
        (root / layer).mkdir()
        (root / layer / "__init__.py").touch()
    (root / "errors.py").touch()
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
