"""A test without its program skips, and says what to install; in CI it fails."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fencelock_lab.servers.programs import PACKAGES
from tests.support.helpers import ROOT
from tests.support.programs import need


@pytest.fixture
def empty_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")


def test_a_program_that_is_there_is_found() -> None:
    assert need("sh").endswith("/sh")


def test_a_program_that_is_not_on_path_is_found_by_a_pattern(tmp_path: Path) -> None:
    program = tmp_path / "15" / "server"
    program.parent.mkdir()
    program.touch()
    assert need(f"{tmp_path}/*/server") == str(program)


def test_a_missing_program_skips_with_the_command(empty_path: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCELOCK_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="gcc is missing: as root, run apt-get install gcc libc6-dev"):
        need("gcc")


def test_a_missing_program_fails_where_servers_are_required(empty_path: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCELOCK_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install strace"):
        need("strace")


def test_a_path_that_leads_nowhere_names_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = "/usr/lib/postgresql/*/bin/postgres"
    monkeypatch.setattr("tests.support.programs.glob.glob", lambda _: [])
    monkeypatch.delenv("FENCELOCK_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="run apt-get install postgresql"):
        need(pattern)


def test_every_program_of_the_lab_is_among_those_that_are_installed() -> None:
    """The lab's errors and scripts/install-servers name the same Debian packages."""
    installed = (ROOT / "requirements" / "system.txt").read_text().split()
    assert sorted(set(PACKAGES.values()) - set(installed)) == []


def test_a_package_that_this_system_does_not_have_keeps_no_other_from_being_installed(tmp_path: Path) -> None:
    """`apt-get install` of several packages installs none if it does not know one of them."""
    scripts, done = tmp_path / "scripts", tmp_path / "done"
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "system.txt").write_text("# A comment\nno-such-one one\nno-such-two two\nsh three\n")
    scripts.mkdir()
    shutil.copy(ROOT / "scripts" / "install-servers", scripts)
    commands = {
        "id": "echo 0",
        "apt-get": f'echo "$@" >> {done}',
        "apt-cache": 'case $2 in one) echo "  Candidate: (none)";; *) echo "  Candidate: 1.2";; esac',
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    told = subprocess.run([scripts / "install-servers"], env=environment, capture_output=True, text=True, check=True)
    assert done.read_text() == "update\ninstall --yes --no-install-recommends two\n"
    assert "no package one: tests that need it will skip" in told.stdout
