"""The guard's store of a folder: its URL, what it refuses to run on, what `doctor` and `--print-policy` say."""

import errno
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import (
    ConfigError,
    GuardError,
    OutcomeUnknownError,
    SchemaError,
    SourceUnavailableError,
    UnsupportedError,
)
from fencelock.stores import filesystems
from fencelock.stores.files.guard import commit as commit_module
from fencelock.stores.files.guard import inspection
from fencelock.stores.files.guard import journal as journal_module
from fencelock.stores.files.guard.folder import OpenFolder
from fencelock.stores.files.guard.journal import decode_journal, encode_journal
from fencelock.stores.files.guard.layout import Step, name_parts, names_of
from fencelock.stores.files.guard.store import FilesGuard
from tests.files.guarded import LOCK, RESOURCE, GuardedFolder
from tests.support.helpers import folder_in_memory


# --- errors -----------------------------------------------------------------------------------------------------------
def test_what_fails_once_the_files_are_renamed_takes_nothing_back(
    folder: GuardedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors may run out just when what killed processes have left behind is looked for."""

    def list_nothing(*_: object) -> list[str]:
        marks.append(json.loads((folder.home / "marks" / RESOURCE).read_bytes()))
        raise OSError(errno.EMFILE, "too many open files")

    marks: list[dict[str, str]] = []
    with monkeypatch.context() as patched:
        patched.setattr(OpenFolder, "names", list_nothing)
        folder.write(5, day="monday")
    assert [mark["token"] for mark in marks] == ["5"], "what is left behind is looked for when the seal is done"
    assert folder.read() == {"day": "monday"}
    assert folder.guard.mark().token == 5


def test_a_rename_that_was_done_and_reports_an_error_is_no_definite_failure(
    folder: GuardedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def rename_and_fail(*names: str, **folders: int) -> None:
        rename(*names, **folders)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    folder.write(5, day="monday")
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", rename_and_fail)
        with pytest.raises(OutcomeUnknownError, match="next use of the guard finishes it"):
            folder.write(5, day="tuesday")
    assert folder.guard.mark().token == 5
    assert folder.read() == {"day": "tuesday"}


def test_a_link_that_appears_during_a_commit_stops_nothing_halfway(
    folder: GuardedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion in a folder that did not exist would come upon it after the first rename."""
    (tmp_path / "name").write_text("elsewhere")
    write_journal = commit_module._write_journal

    def make_link(*arguments: Any, **more: Any) -> None:
        write_journal(*arguments, **more)
        (folder.files / "sub").symlink_to(tmp_path)

    folder.write(5, day="monday")
    monkeypatch.setattr(commit_module, "_write_journal", make_link)
    with folder.guard.transaction(folder.lease(5)) as txn:
        txn.write("day", "tuesday")
        txn.delete("sub/name")
    assert (folder.files / "day").read_text() == "tuesday"
    assert (tmp_path / "name").read_text() == "elsewhere"
    assert folder.guard.mark().token == 5


# --- the URL ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("url", ["file://", "file://host/srv", "file://srv", "file:///srv?a=b", "file:///srv#a"])
def test_a_url_that_names_no_folder_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="names no folder: write file:// and an absolute path"):
        fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    with pytest.raises(ConfigError, match="contains no NUL"):
        fencelock.guard("file:///srv/%00", resource=RESOURCE, lock=LOCK)


def test_all_urls_of_a_folder_are_one(tmp_path: Path) -> None:
    base = tmp_path / "a b?"
    base.mkdir()
    (tmp_path / "link").symlink_to(base)
    urls = {
        FilesGuard(f"file://{path}").url for path in (f"{tmp_path}/a%20b%3F", f"{tmp_path}/link", f"{tmp_path}/./link/")
    }
    assert len(urls) == 1
    assert FilesGuard(urls.pop()).path == base


def test_a_folder_that_is_deleted_meanwhile_is_an_error_of_the_folder(tmp_path: Path) -> None:
    folder = OpenFolder(tmp_path / "exports")
    folder.path.mkdir()
    folder.folder(())
    folder.path.rmdir()
    assert not folder.lock(create=False)
    with pytest.raises(FileNotFoundError):
        folder.lock(create=True)
    folder.close()


def test_names_are_kept_apart_however_long() -> None:
    names = ["a", "x" * 200, "x" * 201, "x" * 400, "x" * 200 + "+", "/", "..", ".", "%2F", "\N{SNOWMAN}" * 170]
    parts = [name_parts(name) for name in names]
    assert len(set(parts)) == len(names)
    for name, its in zip(names, parts, strict=True):
        assert all(part not in {".", ".."} and "/" not in part and len(part) <= 255 for part in its)
        assert names_of((*its, *name_parts("k"))) == [name, "k"]
    assert names_of(("x+",)) is None
    assert names_of(("a b",)) is None


# --- what it refuses to run on ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("nfs4", "of type nfs4"),
        ("9p", "of type 9p"),
        ("fuse.rclone", "fuse"),
        ("", "cannot be told"),
        ("vfat", "no journal"),
    ],
)
def test_a_file_system_that_cannot_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shown: str
) -> None:
    guard = fencelock.guard(f"file://{tmp_path}", resource=RESOURCE, lock=LOCK)
    monkeypatch.setattr(inspection, "filesystem_of", lambda path: kind)
    with pytest.raises(UnsupportedError, match=shown):
        guard.protect()
    assert list(tmp_path.iterdir()) == []
    (finding,) = FilesGuard(guard.url).examine()
    assert finding.code == "guard-refused"


def test_a_file_system_that_folds_case_is_refused(folder: GuardedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """There `daily` and `Daily` would be one resource, and so would two keys of `once`."""
    lstat = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: lstat(str(path).replace(".FENCELOCK", ".fencelock")))
    with pytest.raises(UnsupportedError, match="differ in case only"):
        FilesGuard(folder.url).prove()


def test_a_mount_point_inside_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    line = "36 35 98:0 /mnt1 {} rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
    inner = str(tmp_path / "a b").replace(" ", "\\040")
    mounts.write_text(line.format("/") + line.format(tmp_path) + line.format(inner))
    monkeypatch.setattr(filesystems, "_MOUNTS", mounts)
    assert filesystems.filesystem_of(tmp_path) == "ext3"
    with pytest.raises(UnsupportedError, match="a b is mounted inside"):
        FilesGuard(f"file://{tmp_path}").prove()
    monkeypatch.setattr(filesystems, "_MOUNTS", tmp_path / "none")
    assert filesystems.filesystem_of(tmp_path) == ""


def test_a_folder_that_does_not_exist_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    guard = fencelock.guard(f"file://{tmp_path}/none", resource=RESOURCE, lock=LOCK)
    for use in (guard.mark, guard.protect):
        with pytest.raises(SourceUnavailableError, match=r"there is no folder .*: create it, or correct the URL"):
            use()


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert fencelock.guard(f"file://{tmp_path}", resource=RESOURCE, lock=LOCK).mark().token == 0
    assert fencelock.inspect_resources(f"file://{tmp_path}").marks == ()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def unprivileged() -> Iterator[GuardedFolder]:
    """A guarded folder that any user of the system reaches, and that belongs to one who is no administrator."""
    base = folder_in_memory("fencelock-")
    made = GuardedFolder(base)
    made.write(5, a="old")
    for path in [base, *base.rglob("*")]:
        os.chown(path, NOBODY if os.geteuid() == 0 else -1, -1)
    yield made
    shutil.rmtree(base)


@pytest.mark.parametrize("closed", ["", "daily", ".fencelock/staged", ".fencelock/marks", ".fencelock/drafts/daily"])
def test_a_folder_that_may_not_be_written_is_an_error_with_a_remedy(unprivileged: GuardedFolder, closed: str) -> None:
    """In a child without the rights of an administrator, who may write everywhere. "": the child succeeds."""
    if closed:
        (unprivileged.base / closed).chmod(0o500)
    pid = os.fork()
    if pid == 0:
        os._exit(_is_denied(unprivileged))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (0 if closed else WRITTEN)
    if closed:
        (unprivileged.base / closed).chmod(0o700)
    assert unprivileged.read() == {"a": "old" if closed else "new"}
    unprivileged.guard.seal(unprivileged.lease(7))
    assert unprivileged.leftovers() == []


NOBODY = 65534
WRITTEN = 3


def _is_denied(folder: GuardedFolder) -> int:
    """Return the exit code of a child that may not write: 0 if it is told so."""
    try:
        if os.geteuid() == 0:
            os.seteuid(NOBODY)
        guard = folder.open()
        guard.seal(folder.lease(6))
        with guard.transaction(folder.lease(6)) as txn:
            txn.write("a", "new")
    except SourceUnavailableError as error:
        return 0 if "let this user read and write the folder" in str(error) else 1
    except BaseException:  # Nothing may leave the child.
        return 2
    return WRITTEN


# --- the journal ------------------------------------------------------------------------------------------------------
STEPS = [Step(("drafts", "x"), ("daily", "a")), Step(None, ("daily", "b"))]


def test_a_journal_that_is_not_whole_is_none() -> None:
    content = encode_journal(STEPS)
    assert decode_journal("u", content) == STEPS
    for cut in range(len(content)):
        assert decode_journal("u", content[:cut]) == []
    assert decode_journal("u", content[:-1] + b"?") == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"schema":3}', b'{"schema":3,"steps":[[null]]}', b'{"schema":3,"steps":[[null,[]]]}',
        b'{"schema":3,"steps":[[null,["..","x"]]]}', b'{"schema":3,"steps":[[null,["a/b"]]]}',
        b'{"schema":3,"steps":[[["x"],"a"]]}', b'{"schema":3,"steps":[[null,[7]]]}', b'{"schema":4,"steps":[]}', b"[]",
    ],
)  # fmt: skip
def test_a_journal_that_somebody_else_wrote_admits_nobody(folder: GuardedFolder, body: bytes) -> None:
    (folder.home / "journal").write_bytes(journal_module._digest(body) + b"\n" + body)
    with pytest.raises(SchemaError, match=r"is not a journal|schema 4"):
        folder.guard.seal(folder.lease(5))


def test_a_mark_that_is_none_admits_nobody(folder: GuardedFolder) -> None:
    (folder.home / "marks" / RESOURCE).write_text("{}")
    with pytest.raises(SchemaError, match="is not a mark"):
        folder.guard.seal(folder.lease(5))
    (folder.home / "marks" / RESOURCE).unlink()
    (folder.home / "marks" / RESOURCE).symlink_to("/etc/hostname")
    with pytest.raises(GuardError, match="is a symbolic link"):
        folder.guard.seal(folder.lease(5))


def test_a_mark_that_is_gone_admits_nobody_and_is_not_made_again_silently(folder: GuardedFolder) -> None:
    folder.write(5, a="old")
    (folder.home / "marks" / RESOURCE).unlink()
    with pytest.raises(GuardError, match="has no mark"):
        folder.open().seal(folder.lease(6))
    with pytest.raises(GuardError, match="was protected before, and its mark is gone"):
        folder.open().protect()


# --- operators --------------------------------------------------------------------------------------------------------
def test_doctor_names_what_others_may_write_and_what_a_reboot_loses(folder: GuardedFolder) -> None:
    folder.write(5, a="x")
    store = FilesGuard(folder.url)
    kinds = {finding.code for finding in store.examine()}
    assert kinds <= {"volatile-filesystem"}
    folder.files.chmod(0o777)
    (finding,) = (one for one in store.examine() if one.code == "open-to-all")
    assert str(folder.files) in finding.message
    assert "chmod go-w" in finding.remedy


def test_the_policy_is_a_script_that_gives_the_files_to_one_user(folder: GuardedFolder) -> None:
    folder.write(5, a="x")
    (folder.files / "a").chmod(0o666)
    (folder.home / "journal").chmod(0o666)
    user = str(os.geteuid())
    script = FilesGuard(folder.url).policy(RESOURCE, LOCK, user)
    subprocess.run(["sh", "-eu", "-c", script], check=True)
    assert stat.S_IMODE((folder.files / "a").stat().st_mode) == 0o644
    assert stat.S_IMODE((folder.home / "journal").stat().st_mode) == 0o600
    folder.write(5, a="y")
    with pytest.raises(ConfigError, match="belong to one user"):
        FilesGuard(folder.url).policy(RESOURCE, LOCK, "one", "two")
