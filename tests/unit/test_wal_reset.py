"""`fencelock doctor` names SQLite's WAL-reset bug, for a source and for a guard's file in WAL mode."""

from pathlib import Path

import pytest

import fencelock
from fencelock.stores.registry import guard_store
from fencelock.stores.sqlite.connection import wal_reset
from tests.cli.program import Program
from tests.support.guards import make_file, url_of

AFFECTED = (3, 40, 1)


@pytest.mark.parametrize(
    "version", [(3, 37, 0), AFFECTED, (3, 44, 5), (3, 45, 0), (3, 50, 6), (3, 51, 0), (3, 51, 2)], ids=str
)
def test_an_affected_version_is_known(version: tuple[int, ...]) -> None:
    assert wal_reset.has_bug(version)


@pytest.mark.parametrize("version", [(3, 6, 9), (3, 44, 6), (3, 50, 7), (3, 51, 3), (3, 52, 0), (4, 0, 0)], ids=str)
def test_a_version_without_the_bug_is_known(version: tuple[int, ...]) -> None:
    assert not wal_reset.has_bug(version)


def test_the_doctor_names_the_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path)
    program.inside("install")
    assert "wal-reset-bug" not in program.inside("doctor").stdout
    monkeypatch.setattr(wal_reset, "VERSION", AFFECTED)
    done = program.inside("doctor")
    assert done.returncode == 1
    assert "wal-reset-bug: " in done.stdout
    assert "SQLite 3.40.1" in done.stdout
    assert "use a Python with SQLite 3.51.3 or newer" in done.stdout


@pytest.mark.parametrize(("journal", "codes"), [("wal", ["wal-reset-bug"]), ("delete", [])])
def test_a_guards_file_is_affected_in_wal_mode_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str, codes: list[str]
) -> None:
    file = make_file(tmp_path / "app.db", "reports", journal=journal)
    fencelock.guard(url_of(file), resource="reports", lock="x").protect("reports")
    monkeypatch.setattr(wal_reset, "VERSION", AFFECTED)
    assert [finding.code for finding in guard_store(url_of(file)).examine()] == codes
