"""`fencelock install` and `uninstall` with files, and with stores that are removed otherwise."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import fencelock
from fencelock._api import lock_options
from tests.cli.program import Program, program
from tests.support.guards import make_file, url_of

__all__ = ["program"]

LOCK = "nightly"


def contents(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as native:
        return [name for (name,) in native.execute("SELECT name FROM sqlite_schema ORDER BY name")]


def test_uninstall_empties_a_file_of_fencelocks_tables_alone(program: Program) -> None:
    file = make_file(program.folder / "app.db", "reports")
    url, before = url_of(file), contents(file)
    with fencelock.connect(url) as source, source.lock(LOCK) as lease:
        guard = fencelock.guard(url, resource="reports", lock=LOCK)
        guard.protect("reports")
        with guard.transaction(lease):
            pass
        assert source.lock(LOCK).acquire(timeout=0.01) is None
        assert Path(f"{file}-wake").exists()
        done = program.inside("uninstall", "--source", url)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"locks are held or waited for ({LOCK})" in done.stderr
    done = program.inside("uninstall", "--source", url)
    assert done.returncode == 1
    assert "tables are protected (reports)" in done.stderr
    assert program.json("uninstall", "--source", url, "--force") == {"source": url, "guards": [url]}
    assert program.json("uninstall", "--source", url, "--force") == {"source": None, "guards": []}
    assert not Path(f"{file}-wake").exists()
    assert {*contents(file)} - {"sqlite_sequence"} == {*before}  # SQLite keeps that one for ever.
    with closing(sqlite3.connect(file)) as native:
        native.execute("UPDATE reports SET value = value")


@pytest.mark.parametrize("is_there", [True, False])
def test_uninstall_says_that_nothing_was_there_and_creates_no_file(program: Program, is_there: bool) -> None:
    file = program.folder / "some.db"
    if is_there:
        make_file(file, "reports")
    done = program.inside("uninstall", "--source", url_of(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{half} at {url_of(file)}: nothing of fencelock's was there" for half in ("source of tokens", "guard")
    ]
    assert file.exists() == is_there


def test_69_install_makes_no_guard_in_a_file_that_does_not_exist(program: Program) -> None:
    missing = program.folder / "mistyped.db"
    done = program.inside("install", "--guard", url_of(missing))
    assert (done.returncode, done.stdout) == (69, "")
    assert f"{missing} does not exist, and a guard protects an existing database" in done.stderr
    assert not missing.exists()


@pytest.mark.parametrize(
    "guard", ["sqlite:///{folder}/mistyped.db", "postgresql://127.0.0.1:1/app", "etcd://127.0.0.1:1/a"]
)
def test_69_install_makes_no_source_if_the_guard_cannot_be_reached(program: Program, guard: str) -> None:
    file = program.folder / "fresh.db"
    done = program.inside("install", "--source", url_of(file), "--guard", guard.format(folder=program.folder))
    assert (done.returncode, done.stdout) == (69, "")
    assert not file.exists()


def test_protecting_inside_the_callers_transaction_leaves_its_locks_alone(tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "reports")
    with closing(sqlite3.connect(file, isolation_level=None)) as native:
        native.execute("PRAGMA locking_mode = EXCLUSIVE")
        native.execute("BEGIN EXCLUSIVE")
        fencelock.guard(url_of(file), resource="reports", lock=LOCK).protect("reports", connection=native)
        native.execute("COMMIT")


def test_uninstall_needs_a_url_and_never_means_the_default(program: Program) -> None:
    with program.source() as source, source.lock(LOCK):
        pass
    done = program.inside("uninstall")
    assert done.returncode == 64
    assert "say what to uninstall" in done.stderr
    assert "fencelock_source" in contents(program.folder / "locks.db")


def test_uninstall_says_how_to_empty_a_store_that_it_does_not(program: Program) -> None:
    done = program.inside("uninstall", "--source", "memory://test")
    assert done.returncode == 69
    assert "docs/how-to/upgrade-and-remove.md" in done.stderr


LOOKING = [
    ["locks"], ["show", LOCK], ["epoch"], ["purge"], ["break", LOCK, "--reason", "a test"],
    ["epoch", "--raise", "--reason", "a test"],
]  # fmt: skip


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_69_a_command_that_looks_makes_no_file_at_a_mistyped_path(program: Program, words: list[str]) -> None:
    missing = program.folder / "mistyped.db"
    done = program.inside(*words, "--source", f"sqlite:///{missing}")
    assert (done.returncode, done.stdout) == (69, "")
    assert f"{missing} holds no source of tokens of fencelock's (there is no such file): correct the URL" in done.stderr
    assert not missing.exists()


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_69_a_command_that_looks_names_a_folder_that_is_not_there(program: Program, words: list[str]) -> None:
    missing = program.folder / "nowhere" / "locks.db"
    done = program.inside(*words, "--source", f"sqlite:///{missing}")
    assert (done.returncode, done.stdout) == (69, "")
    assert f"(there is no folder {missing.parent}): correct the URL" in done.stderr
    told = program.inside("doctor", "--source", f"sqlite:///{missing}")
    assert f"no-source: {missing} is no source yet: there is no folder {missing.parent}" in told.stdout
    assert not missing.parent.exists()


@pytest.mark.parametrize("words", [["marks"], ["unprotect", "--resource", "r", "--reason", "a test"], ["rights"]])
def test_69_a_guards_command_makes_no_file_at_a_mistyped_path(program: Program, words: list[str]) -> None:
    missing = program.folder / "mistyped.db"
    done = program.inside(words[0], f"sqlite:///{missing}", *words[1:])
    assert (done.returncode, done.stdout) == (69, "")
    assert f"{missing} does not exist" in done.stderr
    assert not missing.exists()


def test_doctor_names_mistyped_paths_and_makes_no_file(program: Program) -> None:
    locks, app = program.folder / "mistyped.db", program.folder / "also.db"
    done = program.inside("doctor", "--source", f"sqlite:///{locks}", "--guard", f"sqlite:///{app}")
    assert done.returncode == 1
    assert f"no-source: {locks} is no source yet: there is no such file" in done.stdout
    assert f"guard-refused: {app} does not exist" in done.stdout
    assert not locks.exists()
    assert not app.exists()


def test_doctor_examines_guards_alone_if_nobody_has_named_a_source(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_file(program.folder / "app.db", "reports")
    monkeypatch.setattr(lock_options, "default_folder", lambda: program.folder / "nowhere")
    del program.environment["FENCELOCK_SOURCE"]
    told = json.loads(program.inside("doctor", "--guard", url_of(file), "--json").stdout)
    assert "no-source" not in {one["code"] for one in told["findings"]}
    assert told["unseen"][0].startswith("the source of the locks, which --source names")
    alone = json.loads(program.inside("doctor", "--json").stdout)["findings"]
    assert "no-source" in {one["code"] for one in alone}


def test_who_forgot_to_name_a_source_is_told_that_the_default_one_was_asked(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = program.folder / "state"
    folder.mkdir()
    monkeypatch.setattr(lock_options, "default_folder", lambda: folder)
    url = f"sqlite:///{folder}/locks.db"
    named = program.inside("locks", "--source", url)
    assert (named.returncode, len(named.stderr.splitlines())) == (69, 1)
    del program.environment["FENCELOCK_SOURCE"]
    for words in (["locks"], ["epoch"], ["break", "x", "--reason", "a test"]):
        done = program.inside(*words)
        assert done.returncode == 69
        first, second = done.stderr.splitlines()
        assert first.startswith(f"fencelock: {url} holds no source of tokens")
        assert second == "That is this user's default source: --source URL names another one"


def test_a_file_of_another_program_is_left_as_it_is(program: Program) -> None:
    file = make_file(program.folder / "app.db", "reports")
    before = contents(file)
    assert program.inside("locks", "--source", url_of(file)).returncode == 69
    assert "source-refused" in program.inside("doctor", "--source", url_of(file)).stdout
    assert contents(file) == before
