"""The rules G4 and G9 on a SQLite file: a seal is durable, and its tenure remembers it."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

import fencelock
from fencelock import (
    OutcomeUnknownError,
    SealLostError,
    SourceUnavailableError,
    StaleTokenError,
)
from fencelock.protocol import guard_requests as ask_for
from fencelock.stores.sqlite.guard.block import SQLiteBlockConnection
from fencelock.stores.sqlite.guard.connection import SQLiteGuardConnection
from tests.support.guards import (
    LOCK,
    RESOURCE,
    HandmadeLease,
    HandmadeSource,
    Opener,
    ask,
    make_file,
    sequencer,
    url_of,
    value_in,
    write,
)

pytestmark = pytest.mark.reduced


# --- G4: durable ---------------------------------------------------------------------------------------------------
@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that guards' connections run."""
    seen: list[str] = []
    opened = SQLiteBlockConnection._open

    def traced(database: SQLiteBlockConnection) -> sqlite3.Connection:
        native = opened(database)
        native.set_trace_callback(seen.append)
        return native

    monkeypatch.setattr(SQLiteBlockConnection, "_open", traced)
    return seen


def test_g4_the_seal_is_flushed_and_the_users_commit_is_as_sqlite_makes_it(
    journal: str, tmp_path: Path, statements: list[str]
) -> None:
    file = make_file(tmp_path / "app.db", journal=journal)
    usual = ask(file, "PRAGMA synchronous")[0][0]
    guard, lease = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK), HandmadeLease(5)
    write(guard, lease)
    wanted = [text for text in statements if text.startswith(("PRAGMA synchronous =", "BEGIN", "COMMIT"))]
    seal = ["PRAGMA synchronous = EXTRA", "BEGIN IMMEDIATE", "COMMIT -- by fencelock"]
    work = [f"PRAGMA synchronous = {usual}", "BEGIN IMMEDIATE", "COMMIT -- by fencelock"]
    assert wanted == seal + work
    statements.clear()
    write(guard, lease)
    assert not [text for text in statements if text.startswith("PRAGMA") and "=" in text]


@pytest.mark.parametrize("fates", [["happened"], ["lost"], ["lost", "happened"]])
def test_g4_a_seal_whose_commit_was_not_confirmed_is_read_again_and_decided(
    open_guard: Opener, file: Path, lost_commits: list[str], fates: list[str]
) -> None:
    lost_commits += fates
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    assert not lost_commits
    assert guard.mark().token == 5
    write(guard, lease)


def test_g4_a_seal_that_perhaps_was_not_flushed_is_written_again(
    open_guard: Opener, file: Path, statements: list[str], lost_commits: list[str]
) -> None:
    def writes() -> int:
        count = len([text for text in statements if text.startswith("UPDATE main.fencelock_mark")])
        statements.clear()
        return count

    guard = open_guard(file)
    guard.seal(HandmadeLease(3))
    writes()
    guard.seal(HandmadeLease(4))
    once = writes()
    lost_commits.append("happened")
    guard.seal(HandmadeLease(5))
    assert writes() == 2 * once > 0


def test_g4_a_tenure_does_not_remember_a_seal_that_was_never_confirmed(
    open_guard: Opener, file: Path, lost_commits: list[str]
) -> None:
    lost_commits += ["lost"] * 3
    guard, lease = open_guard(file), HandmadeLease(5)
    with pytest.raises(OutcomeUnknownError):
        guard.seal(lease)
    assert not lease.tenure.sealed
    guard.seal(lease)
    assert guard.mark().token == 5


@pytest.mark.parametrize("method", ["seal", "close"])
@pytest.mark.parametrize("fate", ["happened", "lost"])
def test_g4_what_was_in_doubt_stays_so_when_the_resource_goes_away(
    open_guard: Opener, file: Path, lost_commits: list[str], monkeypatch: pytest.MonkeyPatch, method: str, fate: str
) -> None:
    """The first commit was not confirmed, and then no transaction can begin."""
    guard, lease = open_guard(file), HandmadeLease(5)
    begin = SQLiteGuardConnection._ANSWERS[ask_for.Begin]

    def away(connection: SQLiteGuardConnection, request: ask_for.Begin) -> None:
        if not lost_commits:
            raise SourceUnavailableError("the resource is away")
        begin(connection, request)

    with monkeypatch.context() as patched:
        patched.setitem(SQLiteGuardConnection._ANSWERS, ask_for.Begin, away)
        lost_commits.append(fate)
        with pytest.raises(OutcomeUnknownError, match=r"no answer.*the resource is away") as caught:
            getattr(guard, method)(lease)
        assert not caught.value.definite
        assert isinstance(caught.value.__cause__, SourceUnavailableError)
        with pytest.raises(SourceUnavailableError):
            getattr(guard, method)(lease)
    getattr(guard, method)(lease)
    assert (guard.mark().token, guard.mark().is_closed) == (5, method == "close")


def test_g4_a_seal_that_was_lost_to_a_newer_holder_is_stale(
    open_guard: Opener, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = open_guard(file)
    commit = SQLiteGuardConnection._ANSWERS[ask_for.Commit]

    def overtaken(connection: SQLiteGuardConnection, request: ask_for.Commit) -> None:
        monkeypatch.setitem(SQLiteGuardConnection._ANSWERS, ask_for.Commit, commit)
        connection.rollback()
        fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK).seal(HandmadeLease(6))
        raise OutcomeUnknownError("no answer")

    monkeypatch.setitem(SQLiteGuardConnection._ANSWERS, ask_for.Commit, overtaken)
    with pytest.raises(StaleTokenError):
        guard.seal(HandmadeLease(5))


# --- G9: the tenure remembers its seal -----------------------------------------------------------------------------
def restore(backup: Path, file: Path, how: str) -> None:
    """Replace the file with the backup; no other process has it open."""
    for name in (f"{file}-wal", f"{file}-shm"):
        if os.path.exists(name):
            os.unlink(name)
    if how == "renamed over":
        os.replace(shutil.copy(backup, f"{file}.new"), file)
    else:
        shutil.copyfile(backup, file)


@pytest.mark.parametrize("how", ["renamed over", "overwritten in place"])
def test_g9_inspecting_a_restored_file_shows_its_own_marks(open_guard: Opener, tmp_path: Path, how: str) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    guard = open_guard(file)
    guard.protect("reports")
    backup = Path(shutil.copy(file, tmp_path / "backup.db"))
    guard.seal(HandmadeLease(5))
    assert guard.mark().token == 5
    restore(backup, file, how)
    assert guard.mark().token == 0


@pytest.mark.parametrize("how", ["renamed over", "overwritten in place"])
def test_g9_a_file_from_before_the_seal_is_a_lost_seal_and_never_sealed_again(
    open_guard: Opener, tmp_path: Path, how: str
) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.protect("reports")
    backup = Path(shutil.copy(file, tmp_path / "backup.db"))
    write(guard, lease, "read by this tenure")
    restore(backup, file, how)
    for _ in range(2):
        with pytest.raises(SealLostError, match="token 5, and now its mark is 0"):
            write(guard, lease)
    with pytest.raises(SealLostError):
        guard.seal(lease)
    with pytest.raises(SealLostError):
        guard.close(lease)
    assert guard.mark().token == 0


@pytest.mark.parametrize("how", ["renamed over", "overwritten in place"])
def test_g9_a_file_from_before_fencelock_is_a_lost_seal(open_guard: Opener, tmp_path: Path, how: str) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    backup = Path(shutil.copy(file, tmp_path / "backup.db"))
    guard, lease = open_guard(file), HandmadeLease(5)
    write(guard, lease)
    restore(backup, file, how)
    with pytest.raises(SealLostError, match="now its mark is 0"):
        write(guard, lease)


def test_g9_a_mark_that_was_only_closed_is_not_raised_again_when_it_is_lost(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    backup = Path(shutil.copy(file, tmp_path / "backup.db"))
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.close(lease)
    restore(backup, file, "renamed over")
    for attempt in (guard.close, guard.seal, lambda lease: write(guard, lease)):
        with pytest.raises(SealLostError):
            attempt(lease)


def test_g9_a_bare_sequencers_tenure_remembers_its_seal_too(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    backup = Path(shutil.copy(file, tmp_path / "backup.db"))
    write(open_guard(file), sequencer(5))
    restore(backup, file, "renamed over")
    with pytest.raises(SealLostError):
        write(open_guard(file), sequencer(5))


@pytest.mark.parametrize("is_lease_first", [True, False])
def test_g9_a_lease_and_its_sequencer_are_one_tenure(
    open_guard: Opener, source: fencelock.Source, tmp_path: Path, is_lease_first: bool
) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    backup = Path(shutil.copy(file, tmp_path / "backup.db"))
    with source.lock(LOCK) as lease:
        proofs = (lease, lease.sequencer) if is_lease_first else (lease.sequencer, lease)
        write(open_guard(file), proofs[0])
        restore(backup, file, "renamed over")
        with pytest.raises(SealLostError):
            write(open_guard(file), proofs[1])


def test_g9_a_mark_that_an_operator_lowered_is_a_lost_seal(open_guard: Opener, file: Path) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    guard.lower(3, reason="test")
    with pytest.raises(SealLostError):
        write(guard, lease)


def test_g9_after_raise_to_a_restored_resource_refuses_every_earlier_lease(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    backup = Path(shutil.copy(file, tmp_path / "backup.db"))
    guard, lease = open_guard(file), HandmadeLease(5)
    write(guard, lease)
    restore(backup, file, "renamed over")
    guard.raise_to(HandmadeSource(5), reason="restored the backup")
    with pytest.raises(StaleTokenError):
        write(guard, lease)
    write(guard, HandmadeLease(6), "after")
    assert value_in(file) == "after"


def test_g9_a_backup_from_within_the_tenure_is_refused_after_raise_to(open_guard: Opener, tmp_path: Path) -> None:
    """The mark in the backup is the tenure's own, so only the operator's step can tell that the data went back."""
    file = make_file(tmp_path / "app.db", journal="delete")
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    backup = Path(shutil.copy(file, tmp_path / "backup.db"))
    write(guard, lease, "undone by the restore")
    restore(backup, file, "renamed over")
    guard.raise_to(HandmadeSource(5), reason="restored the backup")
    with pytest.raises(StaleTokenError, match="raised over every token"):
        write(guard, lease)


def test_g9_a_file_that_vanished_is_not_created_again(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", journal="delete")
    guard, lease = open_guard(file), HandmadeLease(5)
    write(guard, lease)
    file.unlink()
    with pytest.raises(fencelock.SourceUnavailableError, match="does not exist"):
        write(guard, lease)
    assert not file.exists()
