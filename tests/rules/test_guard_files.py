"""Bad files under a guard: a FencelockError, nothing changed and nothing lost."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fencelock import SourceUnavailableError
from fencelock.stores.sqlite.guard import block as guard_database
from fencelock.stores.sqlite.guard.block import SQLiteBlockConnection
from tests.support.guards import (
    HandmadeLease,
    Opener,
    ask,
    make_file,
    plain,
    url_of,
    value_in,
    write,
)
from tests.support.helpers import DEADLINE_S, ROOT


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up waiting for a lock at once."""
    made = SQLiteBlockConnection.__init__

    def init(database: SQLiteBlockConnection, path: Path) -> None:
        made(database, path)
        database.request_timeout_s = 0.02

    monkeypatch.setattr(SQLiteBlockConnection, "__init__", init)


def attempts(guard: Any) -> list[Any]:
    return [
        guard.mark,
        lambda: guard.seal(HandmadeLease(5)),
        lambda: write(guard, HandmadeLease(5)),
        lambda: guard.close(HandmadeLease(5)),
        lambda: guard.protect("reports"),
        lambda: guard.raise_to(7, reason="x"),
    ]


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"\0" * 4096, b"SQLite format 3\0" + b"\7" * 5000])
def test_a_file_that_is_not_a_database_is_unavailable_and_unchanged(
    open_guard: Opener, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "app.db"
    file.write_bytes(content)
    for attempt in attempts(open_guard(file)):
        with pytest.raises(SourceUnavailableError, match=str(file)):
            attempt()
    assert file.read_bytes() == content


def test_a_missing_file_is_unavailable_and_not_made(open_guard: Opener, tmp_path: Path) -> None:
    for file in (tmp_path / "nosuch.db", tmp_path / "nosuch" / "app.db"):
        for attempt in attempts(open_guard(file)):
            with pytest.raises(SourceUnavailableError, match="does not exist"):
                attempt()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_unavailable(open_guard: Opener, tmp_path: Path) -> None:
    for attempt in attempts(open_guard(tmp_path)):
        with pytest.raises(SourceUnavailableError):
            attempt()


def test_a_corrupted_file_is_unavailable_with_the_remedy(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    guard = open_guard(file)
    write(guard, HandmadeLease(4))
    content = bytearray(file.read_bytes())
    pages = ask(file, "SELECT rootpage FROM sqlite_schema WHERE name LIKE 'fencelock%' AND rootpage > 0")
    for (page,) in pages:
        content[(page - 1) * 4096 : page * 4096] = b"\xa5" * 4096
    file.write_bytes(content)
    for attempt in attempts(open_guard(file))[:4]:
        with pytest.raises(SourceUnavailableError, match="--raise-to"):
            attempt()


@pytest.fixture(params=["wal", "delete"])
def locked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file on which another connection has a write transaction open."""
    file = make_file(tmp_path / "app.db", journal=request.param)
    with plain(file) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE reports SET value = 'theirs'")
        yield file


def test_a_locked_file_is_unavailable_and_its_marks_can_be_read(
    open_guard: Opener, locked: Path, impatient: None
) -> None:
    guard = open_guard(locked)
    assert guard.mark().token == 0
    for attempt in attempts(guard)[1:]:
        with pytest.raises(SourceUnavailableError, match="locked by another connection"):
            attempt()
    assert ask(locked, "SELECT name FROM sqlite_schema WHERE name LIKE 'fencelock%'") == []


def test_a_commit_that_waits_too_long_for_a_kept_cursor_names_it(
    open_guard: Opener, tmp_path: Path, impatient: None
) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    with plain(file) as connection:
        connection.execute("INSERT INTO reports VALUES (2, 0), (3, 0)")
    guard, lease, kept = open_guard(file), HandmadeLease(5), []
    write(guard, lease, "first", then=lambda connection: kept.append(connection.execute("SELECT * FROM reports")))
    with pytest.raises(SourceUnavailableError, match="this one has kept a cursor or a BLOB handle"):
        write(guard, lease, "second")
    assert value_in(file) == "first"
    kept.clear()
    write(guard, lease, "third")
    assert value_in(file) == "third"


def test_a_commit_waits_for_readers_in_rollback_journal_mode(
    open_guard: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    is_reading, is_waited_for = threading.Event(), threading.Event()

    def read() -> None:
        with plain(file) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM reports").fetchall()
            is_reading.set()
            is_waited_for.wait(DEADLINE_S)
            reader.execute("ROLLBACK")

    def pause(seconds: float) -> None:
        is_waited_for.set()
        time.sleep(seconds)

    monkeypatch.setattr(guard_database, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
    thread = threading.Thread(target=read)
    thread.start()
    assert is_reading.wait(DEADLINE_S)
    write(guard, lease, "waited")
    thread.join()
    assert is_waited_for.is_set()
    assert value_in(file) == "waited"


def test_a_reader_that_stays_makes_the_commit_a_definite_failure(
    open_guard: Opener, tmp_path: Path, impatient: None
) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    with plain(file) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM reports").fetchall()
        with pytest.raises(SourceUnavailableError) as caught:
            write(guard, lease, "blocked")
        assert caught.value.definite
        reader.execute("ROLLBACK")
    assert value_in(file) == 0
    write(guard, lease, "free")
    assert value_in(file) == "free"


# --- what root cannot play: a process without rights, or with a disk that is full ---
WORK = """
    import os, resource, signal, sys
    sys.path.insert(0, {root!r})
    from tests.support.guards import HandmadeLease, write
    import fencelock, fencelock.stores.sqlite.guard.store
    guard = fencelock.guard({url!r}, resource="reports", lock="nightly-report")
    {before}
    for name, attempt in {{
        "seal": lambda: guard.seal(HandmadeLease(5)),
        "write": lambda: write(guard, HandmadeLease(5), "x" * 100_000),
        "protect": lambda: guard.protect("reports"),
    }}.items():
        try:
            attempt()
        except fencelock.FencelockError as error:
            print(name, type(error).__name__, error.definite, error)
"""


def run(file: Path, before: str) -> list[str]:
    program = textwrap.dedent(WORK).format(root=str(ROOT), url=url_of(file), before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture
def nobodys_folder(short_path: Path) -> Path:
    """A folder that an unprivileged process can reach."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process as somebody else")
    short_path.chmod(0o755)
    return short_path


@pytest.mark.parametrize(("folder", "mode"), [(0o555, 0o666), (0o777, 0o444), (0o777, 0o000)])
def test_a_read_only_file_or_folder_is_unavailable(nobodys_folder: Path, folder: int, mode: int) -> None:
    file = make_file(nobodys_folder / "app.db", journal="delete")
    file.chmod(mode)
    nobodys_folder.chmod(folder)
    lines = run(file, "os.setgroups([]); os.setgid(65534); os.setuid(65534)")
    assert [line.split()[:3] for line in lines] == [
        [name, "SourceUnavailableError", "True"] for name in ("seal", "write", "protect")
    ]
    assert value_in(file) == 0


def test_a_disk_that_takes_no_more_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    size = file.stat().st_size
    before = f"signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, ({size},) * 2)"
    lines = run(file, before)
    assert [line.split()[0] for line in lines] == ["seal", "write", "protect"]
    assert {line.split()[1] for line in lines} <= {"SourceUnavailableError", "OutcomeUnknownError"}
    assert ask(file, "PRAGMA integrity_check") == [("ok",)]
    assert value_in(file) == 0
