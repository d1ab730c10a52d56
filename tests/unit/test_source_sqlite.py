"""The SQLite source, request by request over a real file: its replies, and the state that it leaves in the file."""

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fencelock import OutcomeUnknownError, SchemaError, SourceError, SourceUnavailableError, UnsupportedError
from fencelock.model import MAX_LOCK_NAME_BYTES, digest_of_claim, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.connection import file_identity
from fencelock.stores.sqlite.connection.database import Database
from fencelock.stores.sqlite.connection.file_identity import FileIdentity, identify_file
from fencelock.stores.sqlite.connection.forks import GATE
from fencelock.stores.sqlite.source import admin, inspection, queue
from fencelock.stores.sqlite.source.store import SQLiteSource
from tests.support.helpers import wait_until
from tests.support.sources import LONG_MS, Client, one_token, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def client(path: Path) -> Client:
    return Client(path)


# --- the file ---
LOOKING = [
    ask.ReadSource(), ask.Inspect("a"), ask.ListLocks(None), ask.Purge(), ask.Check("a", "h", "0" * 32),
    ask.Break("a", "c", "operator", "a test"), ask.RaiseEpoch("h", "a test"),
]  # fmt: skip


@pytest.mark.parametrize("request_", LOOKING, ids=lambda one: type(one).__name__)
def test_a_request_about_what_is_there_makes_no_file_and_no_source(path: Path, request_: Any) -> None:
    connection = SQLiteSource(f"sqlite:///{path}").connect(request_timeout_s=1)
    with pytest.raises(SchemaError, match=f"{path} holds no source of tokens .*no such file"):
        connection.perform(request_)
    assert not path.exists()
    with closing(sqlite3.connect(path)) as native:
        native.execute("CREATE TABLE own (id)")
    with pytest.raises(SchemaError, match=f"{path} holds no source of tokens"):
        connection.perform(request_)
    assert rows(path, "SELECT name FROM sqlite_schema") == [("own",)]
    connection.close()


@pytest.mark.reduced
def test_making_a_source_opens_nothing_and_the_first_acquire_makes_a_private_file(path: Path) -> None:
    store = SQLiteSource(f"sqlite:///{path}")
    connection = store.connect(request_timeout_s=1)
    assert not path.exists()
    connection.perform(ask.Acquire("a", "c" * 32, "holder", 1000, 0, may_wait=False))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(f"{path}-wal").stat().st_mode) == 0o600
    assert rows(path, "pragma journal_mode") == [("wal",)]
    connection.close()


def test_private_file_is_made_at_the_end_of_a_dangling_link(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere.db")
    assert one_token(path) == 1
    assert stat.S_IMODE((tmp_path / "elsewhere.db").stat().st_mode) == 0o600
    assert one_token(tmp_path / "elsewhere.db") == 2


def test_file_with_other_tables_is_shared_with_them(path: Path, client: Client) -> None:
    rows(path, "create table mine (x)")
    assert client.one_token() == 1
    assert rows(path, "select count(*) from mine") == [(0,)]


def test_opening_a_second_connection_keeps_the_locks_of_the_first(path: Path, client: Client) -> None:
    """POSIX locks are the process's: closing any descriptor of the file would drop those of all its connections."""
    client.one_token()
    second = Client(path)
    second.one_token()
    identify_file(path)
    code = f"import sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('select * from fencelock_source'); c.close()"
    subprocess.run([sys.executable, "-c", code], check=True)
    # Another process's last connection takes the log away, unless it sees that ours is still there.
    assert Path(f"{path}-wal").exists()
    assert one_token(path) == 3
    assert client.one_token() == 4


# --- names ---
NAMES = ["plain", "sp ace", "a'b\"c", "back\\slash", "new\nline", "\x01", "%", "{json}", "[1]", "null", "é", "😀"]


@pytest.mark.reduced
@pytest.mark.parametrize("name", [*NAMES, "x" * MAX_LOCK_NAME_BYTES], ids=ascii)
def test_any_name_is_acquired_renewed_shown_and_released_as_itself(client: Client, name: str) -> None:
    claim = draw_claim()
    token = client.token(name, claim)
    assert client.ask(ask.Renew(((name, claim),))).remaining_ms == {claim: LONG_MS}
    assert client.ask(ask.Inspect(name)).token == token
    assert [info.name for info in client.ask(ask.ListLocks(None))] == [name]
    assert client.release(name, claim)
    assert not client.ask(ask.Inspect(name)).is_held


def test_names_that_look_alike_are_different_locks(client: Client) -> None:
    names = ["a", "A", "a ", "á", "a\u0301", "1", "01", "1.0"]
    assert [client.token(name) for name in names] == list(range(1, 9))


def test_locks_are_listed_once_each_in_the_order_of_their_names(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "PAGE_LOCKS", 4)
    for name in NAMES:
        client.token(name)
    listed: list[str] = []
    while page := client.ask(ask.ListLocks(listed[-1] if listed else None)):
        assert len(page) <= 4
        listed += [info.name for info in page]
    assert listed == sorted(NAMES, key=str.encode)


# --- replies that are lost ---
def test_t3_repeated_acquire_is_answered_with_the_token_that_was_lost(client: Client) -> None:
    claim = draw_claim()
    token = client.token("lock", claim)
    for repeated in (client.acquire("lock", claim, born_us=0), client.ask(ask.Poll("lock", claim))):
        assert isinstance(repeated, ask.Granted)
        assert repeated.token == token
        assert 0 < repeated.remaining_ms <= LONG_MS
    assert client.describe().last_token == token


def test_repeated_wait_keeps_its_place(client: Client) -> None:
    client.token("lock", "holder")
    for claim in ("first", "second", "first"):
        assert isinstance(client.acquire("lock", claim, may_wait=True), ask.Queued)
    order = [(digest_of_claim(claim),) for claim in ("first", "second")]
    assert rows(client.path, "select digest from fencelock_waiter order by ticket") == order


def test_h4_repeated_release_frees_nobody(client: Client) -> None:
    client.token("lock", "first")
    assert client.release("lock", "first")
    client.token("lock", "second")
    for _ in range(3):
        assert not client.release("lock", "first")
    assert client.ask(ask.Inspect("lock")).is_held


def test_release_under_another_locks_name_frees_nothing(client: Client) -> None:
    client.token("one", "claim")
    assert not client.release("two", "claim")
    assert client.ask(ask.Inspect("one")).is_held


def test_repeated_reservation_raises_the_bound_once(client: Client) -> None:
    for _ in range(3):
        client.ask(ask.ReserveBlock())
    info = client.describe()
    assert (info.last_token, info.reserved_token) == (0, admin.BLOCK_TOKENS)


# --- limits ---
def test_queue_has_a_limit_that_the_dead_do_not_count_towards(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_WAITERS", 3)
    client.token("lock")
    for number in range(3):
        client.acquire("lock", f"waiter {number}", may_wait=True)
    with pytest.raises(SourceError, match=r"lock 'lock' has 3 waiters, the most that it may have: try again later"):
        client.acquire("lock", may_wait=True)
    client.acquire("another", may_wait=True)  # The limit is each lock's own.
    dead = "update fencelock_waiter set deadline_ms = 1 where digest != ?"
    rows(client.path, dead, (digest_of_claim("waiter 1"),))
    assert isinstance(client.acquire("lock", may_wait=True), ask.Queued)
    assert len(client.ask(ask.Inspect("lock")).waiters) == 2


def test_purge_forgets_dead_waiters_and_their_pipes(client: Client) -> None:
    client.token("lock", "holder")
    client.acquire("lock", "waiter", ttl_ms=1, may_wait=True)
    bell = client.store.listen("lock", "waiter")
    wait_until(lambda: not client.ask(ask.Inspect("lock")).waiters)
    client.ask(ask.Purge())
    assert rows(client.path, "select * from fencelock_waiter") == []
    assert list(Path(f"{client.path}-wake").iterdir()) == []
    bell.close()


# --- other processes in the way ---
@pytest.mark.reduced
def test_write_waits_for_a_busy_file_and_gives_up_with_the_remedy(path: Path, client: Client) -> None:
    client.one_token()
    impatient = Client(path, request_timeout_s=0.2)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(
            SourceUnavailableError, match=r"was locked by another connection for more than 0\.2 s: .* perhaps this one"
        ) as caught:
            impatient.one_token()
        assert caught.value.definite
        assert impatient.describe().last_token == 1  # Reading needs no lock.
        other.execute("commit")
    assert impatient.one_token() == 2


def test_read_waits_while_another_process_recovers_the_log(path: Path, client: Client) -> None:
    """A process that finds the log's index broken rebuilds it under a lock, and no other can read meanwhile."""
    client.one_token()
    client.close()
    client.one_token()
    waiting = Client(path, request_timeout_s=30)
    waiting.describe()
    waiting.close()
    code = (
        "import fcntl, struct, sys\n"
        f"index = open({str(path) + '-shm'!r}, 'r+b')\n"
        # The locks of a writer and of a recovering process: bytes 120 to 122 of the index.
        "fcntl.lockf(index, fcntl.LOCK_EX, 3, 120)\n"
        "index.write(bytes(96)); index.flush()\n"
        "print('recovering', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as recovering:
        assert recovering.stdout is not None
        assert recovering.stdin is not None
        assert recovering.stdout.readline() == "recovering\n"
        with pytest.raises(SourceUnavailableError, match=r"for more than 0\.2 s"):
            Client(path, request_timeout_s=0.2).describe()
        answers: list[int] = []
        thread = threading.Thread(target=lambda: answers.append(waiting.describe().last_token))
        thread.start()
        recovering.stdin.close()
        thread.join(30)
    assert answers == [2]


def test_a_fork_in_the_middle_keeps_a_flushed_transaction_flushed(path: Path, client: Client) -> None:
    """A fork closes idle connections, and the one that comes after it must flush as the one before would have."""
    client.one_token()
    database = client.connection.database
    levels: list[int] = []

    class ForkedInBetween(Database):
        def transact(self, body, *, to_write=True):
            GATE.before_fork()
            GATE.after_fork_in_parent()
            assert not self.is_open
            return super().transact(body, to_write=to_write)

    database.__class__ = ForkedInBetween
    database.transact_flushed(lambda: levels.extend(database.execute("pragma synchronous").fetchone()))
    assert levels == [3]  # EXTRA
    assert database.run_alone("pragma synchronous") == 1  # NORMAL again


def test_a_flushed_transaction_tells_its_own_end_though_the_file_fails_afterwards(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost in the commit, it may have happened, and no later error of the same disk must deny that."""
    client.one_token()
    database = client.connection.database

    def lost(*_: object) -> None:
        monkeypatch.setattr(database, "run_alone", unavailable)
        raise OutcomeUnknownError("the commit was not confirmed")

    def unavailable(*_: object) -> None:
        raise SourceUnavailableError("the disk fails")

    with pytest.raises(OutcomeUnknownError):
        database.transact_flushed(lost)
    monkeypatch.undo()
    assert not database.is_open  # What it flushes from now on is not known: it is opened anew.
    assert client.one_token() == 2


def test_a_rollback_raises_nothing_though_somebody_closed_the_connection(path: Path) -> None:
    database = Database(path)
    database.begin()
    database.native.close()
    database.rollback()
    assert not database.is_open
    assert database.run_alone("SELECT 1") == 1


# --- which file this is ---
def test_birth_tells_a_file_from_its_copy_though_it_has_the_same_inode(path: Path, tmp_path: Path) -> None:
    path.write_text("one")
    first = identify_file(path)
    assert first.is_of(identify_file(path))
    for _ in range(20):  # A file system may, or may not, give the inode out again.
        copy = tmp_path / "copy"
        copy.write_bytes(path.read_bytes())
        path.unlink()
        copy.rename(path)
        assert not identify_file(path).is_of(first)


def test_birth_survives_what_happens_to_a_file_in_place(path: Path, tmp_path: Path) -> None:
    path.write_text("one")
    first = identify_file(path)
    path.write_text("two")
    path.chmod(0o640)
    os.utime(path, (1, 1))
    moved = path.rename(tmp_path / "moved")
    assert identify_file(moved) == first
    assert first.born_ns > 0
    (tmp_path / "link").symlink_to(moved)
    assert identify_file(tmp_path / "link") == first


def test_birth_where_it_is_not_known_is_judged_by_the_inode() -> None:
    assert FileIdentity(7, 0).is_of(FileIdentity(7, 123))
    assert FileIdentity(7, 123).is_of(FileIdentity(7, 0))
    assert not FileIdentity(7, 0).is_of(FileIdentity(8, 0))
    assert not FileIdentity(7, 123).is_of(FileIdentity(7, 124))


def test_birth_is_asked_without_the_c_library_where_that_has_no_word_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("")
    monkeypatch.setitem(sys.modules, "ctypes", None)  # As where Python was built without libffi.
    assert identify_file(path) == FileIdentity(path.stat().st_ino, 0)
    with pytest.raises(FileNotFoundError):
        identify_file(path.with_name("missing"))


# --- which kernel this is ---
def test_kernel_is_this_machines() -> None:
    here = file_identity.this_kernel()
    assert here.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert here.is_same_clock(here)
    assert not here.is_reboot_of(here)


@pytest.fixture
def fresh_kernel() -> None:
    file_identity.this_kernel.cache_clear()
    yield
    file_identity.this_kernel.cache_clear()


@pytest.mark.parametrize("text", ["", "uninitialized\n", "3d1219c7", "3D1219C7C4C5404AAA1F6D2A48ADFDA4\n", "\udcff"])
def test_placeholder_is_no_machine_id(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_kernel: None
) -> None:
    file = tmp_path / "machine-id"
    file.write_text(text, errors="surrogateescape")
    monkeypatch.setattr(file_identity, "MACHINE_ID", file)
    file_identity.this_kernel.cache_clear()  # Another test's keeper may have asked between the fixture and this line.
    here = file_identity.this_kernel()
    assert here.machine_id == ""
    assert not here._replace(boot_id="another").is_reboot_of(here)  # It may be another machine.


def test_missing_machine_id_and_time_namespace_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_kernel: None
) -> None:
    monkeypatch.setattr(file_identity, "MACHINE_ID", tmp_path / "missing")
    monkeypatch.setattr(file_identity, "TIME_NAMESPACE", str(tmp_path / "missing"))
    file_identity.this_kernel.cache_clear()  # Another test's keeper may have asked between the fixture and this line.
    assert file_identity.this_kernel()[1:] == ("", "")


def test_kernel_that_does_not_tell_its_boot_is_unsupported(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_kernel: None
) -> None:
    monkeypatch.setattr(file_identity, "BOOT_ID", tmp_path / "missing")
    file_identity.this_kernel.cache_clear()  # Another test's keeper may have asked between the fixture and this line.
    with pytest.raises(UnsupportedError, match="mount /proc"):
        one_token(path)


def test_forked_child_asks_anew_which_kernel_it_is_on() -> None:
    file_identity.this_kernel()
    child = os.fork()
    if child == 0:
        os._exit(file_identity.this_kernel.cache_info().currsize)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- a file that somebody changed by hand ---
@pytest.mark.parametrize("is_open", [False, True])
def test_file_whose_source_row_was_deleted_is_schema_error(path: Path, client: Client, is_open: bool) -> None:
    token = client.token("lock", "claim")
    rows(path, "delete from fencelock_source")
    asking = client if is_open else Client(path)
    for request in (
        ask.Acquire("lock", "new", "tester", 1000, 0, may_wait=True),
        ask.Renew((("lock", "claim"),)),
        ask.ReserveBlock(),
        ask.ReadSource(),
        ask.Purge(),
        ask.Release("lock", "unknown"),
        ask.Break("lock", "new", "tester", "a test"),
        ask.RaiseEpoch("history", "a test"),
    ):
        with pytest.raises(SchemaError, match="its one row was deleted"):
            asking.connection.perform(request)
    assert rows(path, "select token from fencelock_lock") == [(token,)]


@pytest.mark.parametrize("is_known", [False, True], ids=["taken the slow way", "taken the fast way"])
def test_counter_below_a_locks_token_is_refused(path: Path, client: Client, is_known: bool) -> None:
    for _ in range(5):
        client.one_token("lock")
    client.one_token("low")
    rows(path, "update fencelock_lock set token = 1 where name = 'low'")
    rows(path, "update fencelock_source set counter = 2")
    fresh = Client(path)
    if is_known:
        assert fresh.one_token("low") == 3  # Nothing contradicts this.
    for request in (
        ask.Acquire("lock", "new", "tester", 1000, 2**62, may_wait=False),
        ask.Break("lock", "new", "tester", "a test"),
    ):
        with pytest.raises(SourceError, match=r"lock 'lock' had token 5, and the file's counter says [23]: .* damaged"):
            fresh.connection.perform(request)
    assert fresh.raise_epoch().last_token > 5
    assert fresh.one_token("lock") > 5


def test_epoch_is_raised_above_a_token_that_damage_left_behind(path: Path, client: Client) -> None:
    client.one_token()
    rows(path, "update fencelock_source set bound = ?, reserved = ?", (2**61 + 2**40 - 1,) * 2)
    rows(path, "update fencelock_lock set token = ?", (2**61 + 1,))
    rows(path, "update fencelock_source set counter = 0, bound = 0, reserved = 0")
    assert Client(path).raise_epoch().last_token == 2**61 + 2**40


def test_waiters_are_shown_as_json_has_them(client: Client) -> None:
    client.token("lock")
    holders = ['quo"te', "back\\slash", "é😀", "[]"]
    for holder in holders:
        client.ask(ask.Acquire("lock", draw_claim(), holder, LONG_MS, 2**62, may_wait=True))
    assert client.ask(ask.Inspect("lock")).waiters == tuple(holders)
