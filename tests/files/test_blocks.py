"""What a guarded block does at a folder, and what it refuses."""

import errno
import fcntl
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import ConfigError, GuardError, SourceUnavailableError, StaleTokenError, UnsupportedError
from fencelock.stores.files.guard import block as block_module
from fencelock.stores.files.guard import folder as folder_module
from fencelock.stores.files.guard.block import FilesTransaction
from tests.files.guarded import GuardedFolder, open_descriptors


# --- what a block does ------------------------------------------------------------------------------------------------
def test_a_block_writes_reads_and_deletes_whole_files(folder: GuardedFolder) -> None:
    with folder.guard.transaction(folder.lease(5)) as txn:
        txn.write("a", "text \N{CHECK MARK}")
        txn.write("2026/11/b.bin", b"\0\1")
        txn.write("gone", "x")
        assert folder.read() == {}, "nothing is there before the end"
    with folder.guard.transaction(folder.lease(5)) as txn:
        assert txn.read("a") == "text \N{CHECK MARK}".encode()
        assert txn.read("2026/11/b.bin") == b"\0\1"
        assert txn.read("2026/12/none") is None
        txn.delete("gone")
        txn.delete("never/there")
    assert set(folder.read()) == {"a", "2026/11/b.bin"}
    assert folder.leftovers() == []


def test_another_program_may_write_a_draft_at_its_path(folder: GuardedFolder) -> None:
    with folder.guard.transaction(folder.lease(5)) as txn:
        draft = txn.path("report.csv.gz")
        assert draft.name.endswith(".csv.gz"), "programs tell the format by the suffix"
        assert not draft.exists()
        draft.write_text("by hand")
        assert txn.path("report.csv.gz") == draft
    assert folder.read() == {"report.csv.gz": "by hand"}


def test_a_block_that_fails_leaves_nothing(folder: GuardedFolder) -> None:
    with pytest.raises(ZeroDivisionError):
        in_block(folder, 5, write("a", "never"), lambda _: 1 / 0)
    assert folder.read() == {}
    assert folder.leftovers() == []


def test_the_last_write_of_a_name_counts(folder: GuardedFolder) -> None:
    folder.write(5, kept="old", gone="old")
    with folder.guard.transaction(folder.lease(5)) as txn:
        txn.write("kept", "longer than what follows")
        txn.write("kept", "new")
        txn.write("gone", "never")
        txn.delete("gone")
        txn.delete("again")
        txn.write("again", "new")
    assert folder.read() == {"kept": "new", "again": "new"}
    assert folder.leftovers() == []


def test_a_file_keeps_its_permissions_and_new_ones_are_private(folder: GuardedFolder) -> None:
    folder.write(5, a="old")
    assert stat.S_IMODE((folder.files / "a").stat().st_mode) == 0o600
    (folder.files / "a").chmod(0o644)
    folder.write(5, a="new")
    assert stat.S_IMODE((folder.files / "a").stat().st_mode) == 0o644
    for path in folder.home.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_resources_have_folders_of_their_own(folder: GuardedFolder) -> None:
    odd = "a/../b \N{SNOWMAN}" + "x" * 450
    other = folder.open(odd)
    other.protect()
    with other.transaction(folder.lease(5)) as txn:
        txn.write("a", "odd")
    assert other.mark().token == 5
    assert folder.guard.mark().token == 0
    assert {mark.resource for mark in fencelock.inspect_resources(folder.url).marks} == {"daily", odd}
    assert folder.read() == {}
    assert [path.read_text() for path in folder.base.rglob("a") if path.is_file()] == ["odd"]


# --- what was read is compared ----------------------------------------------------------------------------------------
def test_two_blocks_of_one_lease_do_not_lose_each_others_update(folder: GuardedFolder) -> None:
    folder.write(5, a="old")
    second = meanwhile(lambda: folder.write(5, a="second"))
    with pytest.raises(GuardError, match="file 'a', which the block had read, has changed"):
        in_block(folder, 5, lambda txn: txn.read("a"), write("a", "first"), second)
    assert folder.read() == {"a": "second"}


def test_bytes_that_come_back_are_another_file(folder: GuardedFolder) -> None:
    folder.write(5, a="same")
    others = [meanwhile(lambda text=text: folder.write(5, a=text)) for text in ("other", "same")]
    with pytest.raises(GuardError, match="has changed"):
        in_block(folder, 5, lambda txn: txn.read("a"), write("b", "from what was read"), *others)
    assert folder.read() == {"a": "same"}


def test_a_file_that_was_not_there_is_compared_too(folder: GuardedFolder) -> None:
    made = meanwhile(lambda: folder.write(5, **{"sub/a": "now"}))
    with pytest.raises(GuardError, match="has changed"):
        in_block(folder, 5, lambda txn: txn.read("sub/a"), write("b", "from what was not there"), made)
    assert folder.read() == {"sub/a": "now"}


def test_reading_a_file_again_keeps_no_more_open(folder: GuardedFolder) -> None:
    folder.write(5, a="old")
    with folder.guard.transaction(folder.lease(5)) as txn:
        txn.read("a")
        before = open_descriptors(folder)
        assert {txn.read("a") for _ in range(50)} == {b"old"}
        assert len(open_descriptors(folder)) == len(before)


@pytest.mark.parametrize("is_first_there", [True, False])
def test_every_state_that_was_read_is_compared(folder: GuardedFolder, *, is_first_there: bool) -> None:
    """Another one that was read in between counts, even if the first is back at the end."""
    made, gone = meanwhile(lambda: folder.write(5, a="between")), meanwhile((folder.files / "a").unlink)
    if is_first_there:
        folder.write(5, a="old")
    changes = [gone, lambda txn: txn.read("a"), made] if is_first_there else [made, lambda txn: txn.read("a"), gone]
    with pytest.raises(GuardError, match="file 'a', which the block had read, has changed"):
        in_block(folder, 5, lambda txn: txn.read("a"), *changes, write("b", "from what was read"))
    assert "b" not in folder.read()


def test_an_unfenced_write_to_what_was_read_refuses_the_block(folder: GuardedFolder) -> None:
    folder.write(5, a="old")
    by_hand = meanwhile(lambda: (folder.files / "a").write_text("by hand"))
    with pytest.raises(GuardError, match="has changed"):
        in_block(folder, 5, lambda txn: txn.read("a"), write("a", "new"), by_hand)
    assert folder.read() == {"a": "by hand"}


def in_block(folder: GuardedFolder, token: int, *steps: Callable[[FilesTransaction], Any]) -> None:
    """Take these steps in one block."""
    with folder.guard.transaction(folder.lease(token)) as txn:
        for step in steps:
            step(txn)


def write(name: str, data: str) -> Callable[[FilesTransaction], Any]:
    return lambda txn: txn.write(name, data)


def meanwhile(work: Callable[[], Any]) -> Callable[[FilesTransaction], Any]:
    """Do it as another process would: a thread refuses to wait for its own block."""

    def step(_: FilesTransaction) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    return step


# --- what a block refuses ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "/etc/passwd", "a//b", "a/../../b", "a/", "nul\0", "\udc80", "x" * 3000, b"a", None],
)
def test_a_name_that_leads_out_is_refused(folder: GuardedFolder, name: str) -> None:
    with folder.guard.transaction(folder.lease(5)) as txn:
        for use in (txn.read, txn.path, txn.delete, lambda name: txn.write(name, "x")):
            with pytest.raises(ConfigError, match=r"file's name|names no file of the resource"):
                use(name)


NOT_PLAIN = r"symbolic link|not a plain file|hard links"


@pytest.mark.parametrize("name", ["link", "linked/a", "circle/a", "folder", "twice", "pipe", "socket"])
def test_links_and_special_files_are_refused(folder: GuardedFolder, tmp_path: Path, name: str) -> None:
    """Each of them leads, or could lead, out of the resource."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("outside")
    folder.write(5, twice="two names")
    (folder.files / "link").symlink_to(outside / "a")
    (folder.files / "linked").symlink_to(outside)
    (folder.files / "circle").symlink_to("circle")
    (folder.files / "folder").mkdir()
    os.link(folder.files / "twice", tmp_path / "other name")
    os.mkfifo(folder.files / "pipe")
    os.mknod(folder.files / "socket", stat.S_IFSOCK)
    for steps in ([write("fine", "new"), write(name, "new")], [lambda txn: txn.read(name)]):
        with pytest.raises(GuardError, match=NOT_PLAIN):
            in_block(folder, 5, *steps)
    assert (outside / "a").read_text() == "outside"
    assert not (folder.files / "fine").exists()
    assert folder.leftovers() == []


def test_a_file_in_the_place_of_a_folder_is_refused(folder: GuardedFolder) -> None:
    folder.write(5, **{"a.txt": "file"})
    for use in (write("a.txt/b", "new"), lambda txn: txn.read("a.txt/b"), lambda txn: txn.delete("a.txt/b")):
        with pytest.raises(GuardError, match="or not a folder"):
            in_block(folder, 5, write("fine", "new"), use)
    assert folder.read() == {"a.txt": "file"}
    assert folder.leftovers() == []


@pytest.mark.parametrize("name", ["\N{SNOWMAN}" * 86, "a/" + "x" * 256])
def test_a_name_that_no_file_can_have_is_refused(folder: GuardedFolder, name: str) -> None:
    with folder.guard.transaction(folder.lease(5)) as txn:
        for use in (txn.read, txn.path, txn.delete, lambda name: txn.write(name, "x")):
            with pytest.raises(ConfigError, match="and 255 in each part"):
                use(name)


def test_a_name_of_the_greatest_length_is_written(folder: GuardedFolder) -> None:
    folder.write(5, **{"x" * 255: "new"})
    assert folder.read() == {"x" * 255: "new"}


DRAFTS = {
    "link": lambda draft, other: draft.symlink_to(other),
    "two names": lambda draft, other: os.link(other, draft),
    "folder": lambda draft, other: draft.mkdir(),
    "pipe": lambda draft, other: os.mkfifo(draft),
}


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_draft_that_is_no_plain_file_is_refused(folder: GuardedFolder, tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other"
    other.write_text("elsewhere")
    with pytest.raises(GuardError, match=NOT_PLAIN):
        in_block(folder, 5, lambda txn: DRAFTS[kind](txn.path("a"), other))
    assert folder.read() == {}
    assert other.read_text() == "elsewhere"


def test_a_draft_that_was_never_written_is_refused(folder: GuardedFolder) -> None:
    with pytest.raises(GuardError, match=r"no file is at .*, where the block has a draft"):
        in_block(folder, 5, lambda txn: txn.path("a"), write("b", "never"))
    assert folder.read() == {}
    assert folder.leftovers() == []


def test_a_write_that_failed_is_never_published_in_half(folder: GuardedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the program catches the error and goes on: every file that readers open is whole."""
    folder.write(5, cache="whole")
    write_some, full = os.write, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_until_the_disk_is_full(descriptor: int, data: bytes) -> int:
        if len(data) == 1:
            raise full
        return write_some(descriptor, data[:-1])

    def fail(txn: FilesTransaction) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", write_until_the_disk_is_full)
            with pytest.raises(SourceUnavailableError, match="make room on the disk"):
                txn.write("cache", "half")

    with pytest.raises(GuardError, match="its write failed"):
        in_block(folder, 5, write("totals", "1"), fail)
    assert (folder.read(), folder.leftovers()) == ({"cache": "whole"}, [])
    in_block(folder, 5, fail, write("cache", "again"))
    assert folder.read() == {"cache": "again"}


def test_another_device_is_refused(folder: GuardedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be renamed there; `os.fstat` says so of the subfolder."""
    folder.write(5, **{"sub/a": "old"})
    inode, real = (folder.files / "sub").stat().st_ino, os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        values = list(found)
        values[2] += found.st_ino == inode
        return os.stat_result(values)

    monkeypatch.setattr(folder_module.os, "fstat", fstat)
    with pytest.raises(GuardError, match="on another device"):
        in_block(folder, 5, write("sub/a", "new"))
    monkeypatch.undo()
    assert folder.read() == {"sub/a": "old"}


def test_a_block_reads_no_file_that_it_has_written(folder: GuardedFolder) -> None:
    with folder.guard.transaction(folder.lease(5)) as txn:
        txn.write("a", "new")
        txn.delete("b")
        for name in ("a", "b"):
            with pytest.raises(GuardError, match="read first, then write"):
                txn.read(name)


def test_a_block_that_is_over_does_nothing(folder: GuardedFolder) -> None:
    with folder.guard.transaction(folder.lease(5)) as txn:
        pass
    for use in (txn.read, txn.path, txn.delete, lambda name: txn.write(name, "late")):
        with pytest.raises(GuardError, match="the guarded block is over"):
            use("a")


def test_a_block_takes_so_many_files(folder: GuardedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_module, "MAX_FILES", 2)
    with folder.guard.transaction(folder.lease(5)) as txn:
        txn.write("a", "1")
        txn.read("b")
        txn.write("a", "2")
        with pytest.raises(GuardError, match="more than 2 files"):
            txn.write("c", "3")


def test_only_str_and_bytes_are_written(folder: GuardedFolder) -> None:
    with folder.guard.transaction(folder.lease(5)) as txn, pytest.raises(ConfigError, match="must be str or bytes"):
        txn.write("a", 7)


# --- other holders and processes --------------------------------------------------------------------------------------
def test_a_stale_lease_writes_nothing(folder: GuardedFolder) -> None:
    folder.write(5, a="old")
    with pytest.raises(StaleTokenError) as caught:
        in_block(folder, 5, write("a", "late"), meanwhile(lambda: folder.open().seal(folder.lease(6))))
    assert (caught.value.token, caught.value.mark) == (5, 6)
    assert folder.read() == {"a": "old"}


def test_a_seal_collects_what_dead_holders_left_and_no_more(folder: GuardedFolder) -> None:
    """A draft under a lower token can never be committed, whoever wrote it."""
    folder.write(5, a="old")
    drafts = folder.home / "drafts" / "daily"
    for name in (f"{5:019}-dead", f"{9:019}-early", "stray"):
        (drafts / name).write_text("left")
    (folder.home / "staged").mkdir(exist_ok=True)
    (folder.home / "staged" / "dead").write_text("left")
    folder.guard.seal(folder.lease(7))
    assert sorted(path.name for path in folder.leftovers()) == [f"{9:019}-early", "stray"]


def test_a_draft_that_a_seal_has_collected_makes_its_block_stale(folder: GuardedFolder) -> None:
    folder.write(5, a="old")
    found = []
    sealed = meanwhile(lambda: folder.open().seal(folder.lease(6)))
    with pytest.raises(StaleTokenError):
        in_block(folder, 5, write("a", "late"), sealed, lambda _: found.extend(folder.leftovers()))
    assert found == []


def test_a_forked_child_neither_writes_nor_removes_its_parents_drafts(folder: GuardedFolder) -> None:
    def child(txn: FilesTransaction) -> int:
        try:
            txn.write("a", "child's")
        except UnsupportedError:
            txn.end()
            return 0
        return 1

    with folder.guard.transaction(folder.lease(5)) as txn:
        txn.write("a", "parent's")
        pid = os.fork()
        if pid == 0:
            os._exit(child(txn))
        assert os.waitpid(pid, 0)[1] == 0
    assert folder.read() == {"a": "parent's"}


def test_a_forked_child_does_not_keep_its_parents_lock(folder: GuardedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """H6: it inherits the descriptor of a lock that another thread holds; its parent then dies, or goes on."""
    monkeypatch.setattr(folder_module, "LOCK_TIMEOUT_S", 0.2)
    held = folder_module.OpenFolder(folder.base)
    assert held.lock(create=False)
    reader, writer = os.pipe()
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(tell, b"1")
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    os.close(tell)
    try:
        # The child has closed what it inherited before it runs its first line.
        assert os.read(told, 1) == b"1"
        os.close(told)
        with pytest.raises(SourceUnavailableError, match="has held the lock"):
            folder.guard.mark()
        held.close()
        assert folder.guard.mark().token == 0
    finally:
        os.close(writer)
        os.waitpid(pid, 0)


def test_the_lock_is_not_held_while_user_code_runs(folder: GuardedFolder) -> None:
    with folder.guard.transaction(folder.lease(5)) as txn:
        txn.write("a", "x")
        txn.read("b")
        with (folder.home / "journal").open("r+b") as journal:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(journal, fcntl.LOCK_UN)


def test_a_journal_that_was_deleted_and_made_again_is_the_one_to_lock(folder: GuardedFolder) -> None:
    held = folder_module.OpenFolder(folder.base)
    assert held.lock(create=False)
    (folder.home / "journal").unlink()
    folder.write(5, a="new")
    held.close()
    assert folder.read() == {"a": "new"}


@pytest.mark.parametrize("replaced", [".fencelock", "."])
def test_a_folder_that_was_replaced_while_its_lock_was_waited_for_is_opened_again(
    folder: GuardedFolder, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """Else a stale holder would compare a mark, and take a lock, that nobody else sees."""
    folder.write(5, day="monday")
    flock, place = fcntl.flock, folder.base / replaced
    waiting = iter([True])

    def replace(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and next(waiting, False):
            place.rename(old := folder.base.parent / "old")
            shutil.copytree(old, place)
            with ThreadPoolExecutor(1) as other:
                other.submit(folder.write, 6, day="tuesday").result()
        flock(descriptor, operation)

    def overtaken() -> None:
        with folder.guard.transaction(folder.lease(5)) as txn:
            txn.write("day", "stale")
            monkeypatch.setattr(fcntl, "flock", replace)

    with pytest.raises(StaleTokenError):
        overtaken()
    assert folder.read() == {"day": "tuesday"}


def test_a_journal_that_somebody_else_makes_at_the_same_moment_is_the_one_to_lock(
    folder: GuardedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, reopen = folder.home / "journal", folder_module.OpenFolder._reopen
    journal.unlink()

    def make_meanwhile(*args: Any) -> None:
        try:
            reopen(*args)
        except FileNotFoundError:
            journal.touch()
            raise

    monkeypatch.setattr(folder_module.OpenFolder, "_reopen", make_meanwhile)
    folder.write(5, a="new")
    assert folder.read() == {"a": "new"}


def test_no_clock_decides_who_may_write(folder: GuardedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(5, a="old")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 10 * 86_400)
    folder.guard.seal(folder.lease(6))
    with pytest.raises(StaleTokenError):
        folder.write(5, a="late")
    folder.write(6, a="new")
    assert folder.read() == {"a": "new"}
