"""A real project of Django's, by its manage.py, as its users run it."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integrations.databases import GuardedDatabase
from tests.integrations.djangos import manage, managed, project_on
from tests.support.helpers import wait_until

pytestmark = pytest.mark.process
KINDS = ["sqlite", *(pytest.param(kind, marks=pytest.mark.campaign) for kind in ("postgres", "mysql"))]
on_each = pytest.mark.parametrize("empty", KINDS, indirect=True)
"""A process takes seconds, and test_django.py runs what it does on every database: servers are left to campaigns."""


def value(guarded: GuardedDatabase) -> str:
    return guarded.rows("SELECT value FROM books_report")[0][0]


@pytest.fixture
def source(empty: GuardedDatabase, tmp_path: Path) -> str:
    """Make the project's tables with one report, and return its source of locks."""
    with project_on(empty):
        return f"sqlite:///{tmp_path / 'locks.db'}"


@pytest.mark.reduced
@on_each
def test_a_project_from_migrate_to_a_refused_script(empty: GuardedDatabase, tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path / 'locks.db'}"
    assert managed(empty, "migrate", "--run-syncdb", source=source)[0] == 0
    empty.rows("INSERT INTO books_report (id, value) VALUES (1, 'first')")
    code, said = managed(empty, "check", "--database", "default", "--fail-level", "WARNING", source=source)
    assert code == 1
    assert re.search(r"fencelock\.W001.*books_report.* is not protected", said)
    assert "books_report_tags" in said
    assert managed(empty, "fencelock_protect", "--check", source=source)[0] == 1

    code, said = managed(empty, "fencelock_protect", source=source)
    assert (code, said) == (0, "resource reports (lock nightly-report): books_report_tags, books_report: enforce\n")
    code, said = managed(empty, "fencelock_protect", "--check", source=source)
    assert (code, said) == (0, "2 tables are protected in database default (enforce)\n")
    assert managed(empty, "check", "--database", "default", "--fail-level", "WARNING", source=source)[0] == 0

    code, said = managed(empty, "nightly", "then", source=source)
    assert (code, said) == (0, "")
    assert value(empty) == "first, then"
    code, said = managed(empty, "unfenced", source=source)
    assert code != 0
    assert empty.refused in said
    assert value(empty) == "first, then"


@on_each
def test_a_database_that_cannot_be_read_is_reported_without_a_traceback(empty: GuardedDatabase) -> None:
    elsewhere = {"NAME": "/nowhere/app.db"} if empty.kind == "sqlite" else {"PORT": "1"}
    gone = replace(empty, settings=empty.settings | elsewhere)
    told = [managed(gone, "fencelock_protect", *words) for words in ((), ("--check",))]
    told.append(managed(empty, "fencelock_protect", "--database", "nope"))
    assert ["Traceback" in said for _, said in told] == [False] * 3
    assert all(code == 1 and "CommandError: Django cannot read database 'default' (" in said for code, said in told[:2])
    assert told[2][0] != 0
    assert "invalid choice: 'nope'" in told[2][1]
    if empty.kind != "mysql":  # There Django's own check does not get further than this.
        code, said = managed(gone, "check", "--database", "default")
        assert (code, "fencelock.W002) database 'default': Django cannot read" in said) == (0, True), said


@pytest.mark.campaign
def test_observed_first_and_enforced_then(empty: GuardedDatabase, source: str) -> None:
    assert managed(empty, "fencelock_protect", "--mode", "observe", source=source)[0] == 0
    assert managed(empty, "unfenced", source=source)[0] == 0
    assert value(empty) == "unfenced"
    code, said = managed(empty, "check", "--database", "default", source=source)
    assert (code, "is in observe mode" in said) == (0, True)
    assert managed(empty, "fencelock_install", source=source)[0] == 0
    code, said = managed(empty, "fencelock_protect", source=source)
    assert code == 0, said
    assert managed(empty, "unfenced", source=source)[0] != 0
    assert managed(empty, "nightly", "then", source=source) == (0, "")


def test_a_frozen_job_is_refused_after_its_successor(empty: GuardedDatabase, source: str) -> None:
    assert managed(empty, "fencelock_protect", source=source)[0] == 0
    frozen = manage(empty, "nightly", "stale", "--freeze", source=source)
    try:
        assert frozen.stdout is not None
        said = frozen.stdout.readline()
        assert said == "frozen\n", said + frozen.communicate(timeout=60)[1]
        wait_until(lambda: _state(frozen.pid) == "T")
        assert managed(empty, "nightly", "newer", source=source) == (0, "")
        os.kill(frozen.pid, signal.SIGCONT)
        _, complained = frozen.communicate(timeout=60)
    finally:
        frozen.kill()
    assert frozen.returncode != 0
    assert re.search(r"fencelock\.errors\.\w+|fencelock\.\w+Error", complained)
    assert value(empty) == "first, newer"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@on_each
def test_a_wrong_setting_is_an_error_of_the_check(empty: GuardedDatabase, source: str) -> None:
    code, said = managed(empty, "check", source="redis://localhost")
    assert code == 1
    assert "fencelock.E001" in said
