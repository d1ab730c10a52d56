"""The rule T7, where a file was copied, restored or moved: what is noticed, and the documented limits.

Each `test_…_is_not_noticed` holds a limit that the documents name: if it fails one day, that is good news for them.
"""

import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import fencelock
from fencelock import LeaseExpiredError, LeaseLostError, SourceError
from fencelock.model import EPOCH_STRIDE, TOKENS_PER_S
from fencelock.protocol import source_requests as ask
from fencelock.stores import source_clock
from tests.support.helpers import wait_until
from tests.support.sources import Client, one_token, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def client(path: Path) -> Client:
    return Client(path)


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


# --- T7: a file that was copied, restored or moved ---
REMEDY = "stop everything that uses it, then run `fencelock epoch --raise"


class Backup:
    """A source with a backup of an older state, and tokens issued after it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.client = Client(path)
        for _ in range(3):
            self.client.one_token()
        self.client.close()
        self.copy = path.with_name("backup.db")
        shutil.copy(path, self.copy)
        while self.client.one_token() < 10:
            pass
        self.token = 10

    def check_refused(self, client: Client, message: str) -> None:
        """Assert that no lock is granted until an operator raises the epoch."""
        held = rows(self.path, "select counter from fencelock_source")
        for request in (
            lambda: client.acquire("lock", may_wait=True),
            lambda: client.acquire("new", may_wait=False),
            lambda: client.ask(ask.Break("lock", "breaker", "tester", "a test")),
            lambda: client.ask(ask.ReserveBlock()),
        ):
            with pytest.raises(SourceError, match=message) as caught:
                request()
            assert REMEDY in str(caught.value)
        assert rows(self.path, "select counter from fencelock_source") == held
        assert client.raise_epoch("restored").last_token > self.token
        assert client.one_token() > self.token
        assert one_token(self.path) > self.token


@pytest.fixture
def backup(path: Path) -> Backup:
    return Backup(path)


def remove(path: Path) -> None:
    """Remove the file and its log."""
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        name.unlink(missing_ok=True)


def removed_and_copied_back(backup: Backup) -> None:
    remove(backup.path)
    shutil.copy(backup.copy, backup.path)


def renamed_over(backup: Backup) -> None:
    """Replace a file in the way rsync does."""
    remove(backup.path)
    temporary = backup.path.with_name(".locks.db.tmp")
    shutil.copy(backup.copy, temporary)
    temporary.rename(backup.path)


def backed_up_by_sqlite_and_moved_in(backup: Backup) -> None:
    with closing(sqlite3.connect(backup.path)) as old, closing(sqlite3.connect(f"{backup.path}.new")) as new:
        old.backup(new)
    remove(backup.path)
    Path(f"{backup.path}.new").rename(backup.path)
    backup.token = 10


def vacuumed_into(backup: Backup) -> None:
    rows(backup.path, "vacuum into ?", (f"{backup.path}.new",))
    remove(backup.path)
    Path(f"{backup.path}.new").rename(backup.path)


@pytest.mark.reduced
@pytest.mark.parametrize(
    "restore", [removed_and_copied_back, renamed_over, backed_up_by_sqlite_and_moved_in, vacuumed_into]
)
@pytest.mark.parametrize("is_running", [False, True], ids=["nobody running", "a process running"])
def test_t7_file_that_is_a_copy_is_refused(backup: Backup, restore: Callable[[Backup], None], is_running: bool) -> None:
    if is_running:
        wait_until(lambda: backup.client.connection.database.is_open)
    else:
        backup.client.close()
        backup.client = Client(backup.path)
    restore(backup)
    backup.client.connection._next_check_s = 0  # It looks at the file a few times a second.
    backup.check_refused(backup.client, r"is a copy: it was made as inode \d+, born 20\S+Z, and is inode \d+, born 20")


def test_t7_folder_that_was_copied_is_refused(backup: Backup, tmp_path: Path) -> None:
    backup.client.close()
    shutil.copytree(tmp_path, tmp_path.with_name("elsewhere"), dirs_exist_ok=True)
    elsewhere = tmp_path.with_name("elsewhere") / backup.path.name
    with pytest.raises(SourceError, match="is a copy"):
        one_token(elsewhere)
    assert backup.client.one_token() == 11  # The original goes on.
    copied = Client(elsewhere)
    copied.raise_epoch()
    assert copied.one_token() > EPOCH_STRIDE
    shutil.rmtree(elsewhere.parent)


def test_t7_a_backup_from_before_a_raise_does_not_begin_that_history_again(
    backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup does not contain the raise. Only the clock tells, once 17 minutes have passed."""
    backup.client.raise_epoch()
    latest = backup.client.one_token()
    backup.client.close()
    remove(backup.path)
    shutil.copy(backup.copy, backup.path)
    later_s = time.time() + EPOCH_STRIDE / TOKENS_PER_S
    monkeypatch.setattr(source_clock.time, "time", lambda: later_s)
    restored = Client(backup.path)
    restored.raise_epoch()
    assert restored.one_token() > latest
    restored.close()


def test_t7_file_that_was_renamed_is_the_same_file(backup: Backup, tmp_path: Path) -> None:
    backup.client.close()
    moved = backup.path.rename(tmp_path / "moved.db")
    assert one_token(moved) == 11


def written_over_in_place(backup: Backup) -> None:
    """`cp backup.db locks.db`, after removing the log."""
    for name in (f"{backup.path}-wal", f"{backup.path}-shm"):
        Path(name).unlink(missing_ok=True)
    shutil.copyfile(backup.copy, backup.path)


def restored_by_sqlite(backup: Backup) -> None:
    """`.restore backup.db` of the sqlite3 program: page by page, in a transaction of its own."""
    with closing(sqlite3.connect(backup.copy)) as old, closing(sqlite3.connect(backup.path)) as live:
        old.backup(live)


IN_PLACE = [written_over_in_place, restored_by_sqlite]


@pytest.mark.reduced
@pytest.mark.parametrize("restore", IN_PLACE)
def test_t7_restore_in_place_is_noticed_by_a_process_that_saw_more(
    backup: Backup, restore: Callable[[Backup], None]
) -> None:
    """Its connection is closed, as a fork or an idle pool closes it; the process remembers."""
    backup.client.close()
    restore(backup)
    backup.check_refused(backup.client, r"went back from token 10 \(epoch 1, history \w+\) to 3 \(epoch 1")


def test_t7_restore_by_sqlite_is_noticed_under_an_open_connection(backup: Backup) -> None:
    restored_by_sqlite(backup)
    backup.check_refused(backup.client, "went back from token 10")


def test_t7_holder_learns_of_a_restore_in_place_by_its_renewal(url: str, path: Path) -> None:
    with fencelock.connect(url) as connected:
        backup = Backup(path)
        lease = connected.lock("mine", ttl=0.6).acquire()
        assert lease is not None
        restored_by_sqlite(backup)
        # Whatever is refused leaves the lease in doubt, and at its deadline it is over.
        wait_until(lease.lost.is_set)
        with pytest.raises((LeaseExpiredError, LeaseLostError)):
            lease.check_valid()


@pytest.mark.parametrize("restore", IN_PLACE)
def test_restore_in_place_without_witness_is_not_noticed(backup: Backup, restore: Callable[[Backup], None]) -> None:
    """The documented limit: no process that saw the newer state is running, and the file is the same file."""
    backup.client.close()
    restore(backup)
    assert one_token(backup.path) == 4  # Issued before: this is why a restore ends with `fencelock epoch --raise`.


def test_t7_raise_after_a_restore_in_place_without_witness_makes_it_good(backup: Backup) -> None:
    backup.client.close()
    written_over_in_place(backup)
    Client(backup.path).raise_epoch()
    assert one_token(backup.path) > backup.token


def test_removed_log_of_a_killed_process_is_not_noticed(path: Path) -> None:
    """The documented limit: without its log, the file is an older state of itself."""
    code = (
        "import os, sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path\n"
        "from tests.support.sources import Client\n"
        "client = Client(Path(sys.argv[1])); client.one_token(); client.close()\n"
        "[client.one_token() for _ in range(5)]; os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, path, *sys.path], check=True)
    Path(f"{path}-wal").unlink()
    assert one_token(path) == 2


def test_t7_history_that_forked_at_the_same_epoch_is_noticed(backup: Backup) -> None:
    """Both the running history and the restored one were raised once: equal epochs, and tokens that overlap."""
    backup.client.raise_epoch()
    last = backup.client.one_token()
    backup.client.close()
    written_over_in_place(backup)
    forked = Client(backup.path)
    forked.raise_epoch()
    while forked.one_token() <= last + 1:
        pass
    with pytest.raises(
        SourceError, match=rf"went back from token {last} \(epoch 2, history \w+\) to {last + 2} \(epoch 2"
    ):
        backup.client.one_token()


def test_backup_older_than_a_raise_needs_as_many_raises(backup: Backup) -> None:
    """The documented limit: a raise reaches above the state that it finds, and cannot know of a later raise."""
    backup.client.raise_epoch()
    last = backup.client.one_token()
    backup.client.close()
    written_over_in_place(backup)
    Client(backup.path).raise_epoch()
    assert one_token(backup.path) == last  # Again, though under another history id, by which guards tell them apart.
    Client(backup.path).raise_epoch()
    assert one_token(backup.path) > last


def test_t7_file_of_another_source_is_refused_by_a_process_that_used_the_first(backup: Backup, path: Path) -> None:
    backup.client.close()
    remove(path)
    stranger = Client(path)
    stranger.one_token()
    with pytest.raises(SourceError, match=r"was source \w+ and is source \w+ now: its file was replaced"):
        backup.client.one_token()
