"""Bad input and bad files lead to a FencelockError with its numbers and a remedy, and change nothing.

A file that is damaged, locked, full, read-only or taken away is never answered with a wrong grant.
"""

import hashlib
import os
import random
import re
import resource
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import (
    ConfigError,
    FencelockError,
    SchemaError,
    SourceError,
    SourceUnavailableError,
    UnsupportedError,
)
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.connection.forks import GATE
from tests.support.helpers import wait_until
from tests.support.programs import need
from tests.support.sources import LONG_MS, Client, one_token, rows

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


def contents(folder: Path) -> dict[str, Any]:
    """Return all that is in a folder: names, kinds, permissions and bytes."""
    found = {}
    for entry in sorted(folder.rglob("*")):
        status = entry.lstat()
        data = hashlib.sha256(entry.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else None
        found[str(entry.relative_to(folder))] = (status.st_mode, data)
    return found


# --- arguments ---
@pytest.mark.reduced
@pytest.mark.parametrize("name", ["", "x" * 513, "a\0b", "\ud800", None, 7], ids=ascii)
def test_name_outside_the_contract_is_config_error_and_opens_nothing(url: str, tmp_path: Path, name: Any) -> None:
    with fencelock.connect(url) as source:
        for use in (source.lock, source.rlock, source.info, lambda bad: source.break_lock(bad, reason="a test")):
            with pytest.raises(ConfigError, match="lock name"):
                use(name)
    assert contents(tmp_path) == {}


@pytest.mark.reduced
@pytest.mark.parametrize(
    "ttl",
    [0, -1, 0.0999, 86_400.001, 1e306, 10**400, float("nan"), float("inf"), 0.5001],
    ids=lambda ttl: repr(ttl)[:10],
)
def test_ttl_outside_the_range_is_config_error_with_the_range(url: str, tmp_path: Path, ttl: Any) -> None:
    with fencelock.connect(url) as source:
        with pytest.raises(ConfigError, match=r"lock 'lock': ttl .* 0\.1 to 86400 seconds, in steps of 0\.001"):
            source.lock("lock", ttl=ttl)
        for good in (0.1, 1, 86_400, 0.123):
            assert source.lock("lock", ttl=good).ttl == good  # What was asked for, never clamped.
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    "timeout", [-1, -0.1, float("nan"), float("inf"), 10**400, 1e300, "5", True], ids=lambda t: repr(t)[:10]
)
def test_timeout_outside_the_range_is_config_error(url: str, timeout: Any) -> None:
    with fencelock.connect(url) as source, pytest.raises(ConfigError, match="timeout is seconds, from 0 to"):
        source.lock("lock", timeout=timeout)


@pytest.mark.parametrize("reason", ["", " ", "\ud800", "x" * 2049, None], ids=ascii)
def test_operator_without_a_reason_is_refused_and_changes_nothing(url: str, path: Path, reason: Any) -> None:
    with fencelock.connect(url) as source:
        source.install()
        for use in (source.raise_epoch, lambda reason: source.break_lock("lock", reason=reason)):
            with pytest.raises(ConfigError, match="reason"):
                use(reason=reason)
    assert rows(path, "select count(*) from fencelock_source_audit") == [(0,)]


# --- places that are no file ---
@contextmanager
def all_descriptors_used() -> Iterator[None]:
    """Leave this process no descriptor for the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = [os.open(os.devnull, os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used[0] + 32, limits[1]))
        with suppress(OSError):
            while True:
                used.append(os.dup(used[0]))
        yield
    finally:
        for descriptor in used:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def make_socket(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(path))


@pytest.mark.reduced
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.mkdir(), "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (make_socket, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/null"), "is not a regular file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.symlink_to(path.parent / "missing" / "file"), "the file and its folder must exist"),
    ],
    ids=["folder", "pipe", "socket", "device", "link to itself", "link into nowhere"],
)
def test_place_that_is_no_regular_file_is_refused(short_path: Path, make: Callable[[Path], Any], said: str) -> None:
    path = short_path / "locks.db"
    make(path)
    before = contents(short_path)
    with pytest.raises(SourceUnavailableError, match=said) as caught:
        one_token(path)
    assert str(path) in str(caught.value)
    assert contents(short_path) == before


@pytest.mark.reduced
def test_process_that_may_open_no_further_file_is_told_so(path: Path) -> None:
    """SQLite has one code for that and for a folder that is missing."""
    one_token(path)
    with all_descriptors_used(), pytest.raises(SourceUnavailableError, match="too many are open") as caught:
        one_token(path)
    assert caught.value.definite
    assert str(path) in str(caught.value)
    assert one_token(path) == 2


@pytest.mark.reduced
def test_file_with_a_second_name_is_refused_by_both(path: Path, tmp_path: Path) -> None:
    """SQLite keeps a log beside each name: under the other name, a second process got the lock and the same token."""
    one_token(path)
    another = tmp_path / "other.db"
    another.hardlink_to(path)
    for name in (path, another):
        with pytest.raises(SourceUnavailableError, match=r"has 2 names \(hard links\).*`find -samefile`"):
            one_token(name)
    another.unlink()
    (tmp_path / "link.db").symlink_to(path)
    assert one_token(tmp_path / "link.db") == 2


@pytest.mark.parametrize("folder", ["inside", "in side\\"])
def test_file_that_is_mounted_by_itself_is_refused(path: Path, tmp_path: Path, folder: str) -> None:
    """As containers are given single files: the log would be in the container's own folder."""
    inside = [need("unshare"), "--mount"]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("unshare --mount is not permitted here: run the tests as root")
    one_token(path)
    mounted = tmp_path / folder / "locks.db"
    mounted.parent.mkdir()
    mounted.touch()
    code = "import fencelock, sys; print(fencelock.connect(sys.argv[1]).lock('lock').acquire().token)"

    def acquired(what: Path, name: Path) -> subprocess.CompletedProcess[str]:
        mount = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"']
        command = [*inside, *mount, str(what), str(name), sys.executable, "-c", code, f"sqlite:///{mounted}"]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    refused = acquired(path, mounted)
    assert "SourceUnavailableError" in refused.stderr
    assert "is mounted by itself, apart from its folder" in refused.stderr
    assert "mount its folder instead" in refused.stderr
    assert (mounted.stat().st_size, one_token(path)) == (0, 2)
    assert acquired(path.parent, mounted.parent).stdout == "3\n"


@pytest.mark.parametrize(
    "name", ["missing/locks.db", "file/locks.db", "x" * 300, "y/" * 2500 + "x"], ids=lambda n: n[:12]
)
def test_folder_that_is_not_there_is_unavailable_with_the_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    before = contents(tmp_path)
    with pytest.raises(SourceUnavailableError, match="the file and its folder must exist and be writable"):
        one_token(tmp_path / name)
    assert contents(tmp_path) == before


# --- files that are something else ---
@pytest.mark.reduced
@pytest.mark.parametrize("size", [2, 15, 16, 99, 100, 511, 512, 1024, 5000])
def test_file_that_is_no_database_is_left_as_it_is(path: Path, tmp_path: Path, size: int) -> None:
    path.write_bytes(b"It was the best of times. " * 200)
    os.truncate(path, size)
    before = contents(tmp_path)
    for act in (lambda: one_token(path), lambda: Client(path).describe(), lambda: Client(path).raise_epoch()):
        with pytest.raises(SourceUnavailableError, match="is not a SQLite database: choose another file"):
            act()
    assert contents(tmp_path) == before


@pytest.mark.reduced
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_file_of_another_schema_is_left_as_it_is(path: Path, tmp_path: Path, journal: str) -> None:
    one_token(path)
    rows(path, "update fencelock_source set schema = 1")
    rows(path, f"pragma journal_mode = {journal}")
    before = path.read_bytes()
    message = r"holds fencelock's source of tokens with schema 1, and this version of fencelock has schema 3: an older"
    for act in (Client.one_token, Client.describe, Client.raise_epoch):
        client = Client(path)
        with pytest.raises(SchemaError, match=message):
            act(client)
        client.close()
    assert path.read_bytes() == before


def test_file_with_foreign_tables_of_our_names_is_an_error_and_no_grant(path: Path) -> None:
    rows(path, "create table fencelock_source (mine)")
    for act in (lambda: one_token(path), lambda: Client(path).describe()):
        with pytest.raises(SourceError, match="no such column"):
            act()
    assert rows(path, "select count(*) from sqlite_schema") == [(1,)]


@pytest.mark.parametrize("table", ["fencelock_lock", "fencelock_waiter", "fencelock_source_audit", "fencelock_source"])
def test_table_that_is_gone_is_an_error_and_no_grant(path: Path, table: str) -> None:
    client = Client(path)
    client.token("lock", "holder")
    rows(path, f"drop table {table}")
    for request in (
        ask.Acquire("new", "new", "tester", LONG_MS, 2**62, may_wait=True),
        ask.Acquire("lock", "new", "tester", LONG_MS, 2**62, may_wait=True),
        ask.Break("lock", "new", "tester", "a test"),
    ):
        if isinstance(request, ask.Break) or table != "fencelock_source_audit":
            with pytest.raises(SourceUnavailableError, match=f"no such table: (main.)?{table}"):
                client.connection.perform(request)


# --- permissions (root ignores them, so a child gives them up) ---
def as_nobody(path: Path) -> subprocess.CompletedProcess[str]:
    """Acquire once as a user without rights, and return the process's output."""
    code = f"""
import os, sys, fencelock
fencelock.connect("sqlite:///" + sys.argv[2]).lock("lock").acquire().release()  # Python's own files may be root's.
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
try:
    with fencelock.connect("sqlite:///" + sys.argv[1]) as source, source.lock("lock") as lease:
        print(lease.token)
except fencelock.FencelockError as error:
    print(type(error).__name__, error, file=sys.stderr)
"""
    command = [sys.executable, "-c", code, path, path.parents[1] / "own.db"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture
def open_folder(short_path: Path) -> Path:
    """A folder that everybody may enter and write."""
    short_path.chmod(0o777)
    return short_path


@pytest.mark.parametrize(
    ("is_there", "folder_mode", "file_mode", "said"),
    [
        (False, 0o555, 0, "Permission denied.*its folder must exist and be writable"),
        (True, 0o555, 0o666, "it or its folder is read-only|cannot be opened: its folder must exist and be writable"),
        (True, 0o777, 0o444, r"\(-r--r--r--\) may not be read and written by this user: make it and its"),
        (True, 0o777, 0o000, r"\(----------\) may not be read and written by this user: make it and its"),
        (True, 0o000, 0o666, "Permission denied"),
    ],
    ids=["new in read-only folder", "in read-only folder", "read-only file", "hidden file", "closed folder"],
)
def test_place_without_permission_is_unavailable_and_unchanged(
    open_folder: Path, is_there: bool, folder_mode: int, file_mode: int, said: str
) -> None:
    folder = open_folder / "folder"
    folder.mkdir()
    path = folder / "locks.db"
    if is_there:
        one_token(path)
        path.chmod(file_mode)
    folder.chmod(folder_mode)
    before = contents(folder)
    result = as_nobody(path)
    assert contents(folder) == before
    assert re.match(f"SourceUnavailableError {path}.*({said})", result.stderr), result.stderr


def test_file_that_may_be_written_is_shared_by_its_users(open_folder: Path) -> None:
    folder = open_folder / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    path = folder / "locks.db"
    one_token(path)
    path.chmod(0o666)
    result = as_nobody(path)
    assert (result.stdout, result.stderr) == ("2\n", "")
    assert one_token(path) == 3


# --- a full disk ---
@pytest.fixture
def small_disk(short_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, if this user may mount one."""
    disk = short_path / "disk"
    disk.mkdir()
    command = [need("mount"), "-t", "tmpfs", "-o", "size=1m,mode=0777", "none", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here: run the tests as root")
    yield disk
    subprocess.run([need("umount"), "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Fill the disk, and return the file that fills it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


@pytest.mark.reduced
def test_full_disk_refuses_and_changes_nothing_until_there_is_room(small_disk: Path) -> None:
    path = small_disk / "locks.db"
    client = Client(path)
    last = client.token("held", "holder")
    ballast = fill(small_disk)
    refusals: list[FencelockError] = []
    for number in range(2000):  # Until what the log has in reserve is used up.
        try:
            last = client.token(f"lock {number}")
        except SourceUnavailableError as error:
            refusals.append(error)
            assert client.describe().last_token == last
        if len(refusals) == 3:
            break
    for refusal in refusals:
        assert "the disk is full: make room, then try again; nothing was changed" in str(refusal)
        assert refusal.definite
    assert len(refusals) == 3
    with pytest.raises(FencelockError):
        one_token(small_disk / "new.db")
    with pytest.raises(SourceUnavailableError, match="disk is full"):
        client.raise_epoch()
    assert client.ask(ask.Inspect("held")).is_held
    ballast.unlink()
    assert client.one_token() == last + 1
    assert client.ask(ask.Renew((("held", "holder"),))).remaining_ms == {"holder": LONG_MS}
    assert one_token(small_disk / "new.db") == 1


@pytest.mark.usefixtures("early_beats")
def test_lease_outlives_a_full_disk_that_is_cleared_in_time(small_disk: Path) -> None:
    lost: list[str] = []
    client = Client(small_disk / "locks.db")
    with (
        fencelock.connect(f"sqlite:///{small_disk}/locks.db") as source,
        source.lock("held", ttl=30.0, on_lost=lost.append) as lease,
    ):
        for number in range(10):
            ballast = fill(small_disk)
            with suppress(SourceUnavailableError):
                client.token(f"lock {number}")
            ballast.unlink()
        assert lease.is_valid
        before = lease.deadline_ms
        wait_until(lambda: lease.deadline_ms > before)
    assert lost == []


# --- locked ---
@pytest.mark.reduced
def test_process_frozen_in_a_write_transaction_makes_the_source_unavailable(path: Path) -> None:
    client = Client(path, request_timeout_s=0.3)
    token = client.token("lock", "holder")
    code = (
        "import sqlite3, sys, signal, os; c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('begin immediate'); c.execute('update fencelock_source set counter = counter')\n"
        "print('inside', flush=True); os.kill(os.getpid(), signal.SIGSTOP); c.execute('rollback')"
    )
    command = [sys.executable, "-c", code, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as frozen:
        assert frozen.stdout is not None
        frozen.stdout.readline()
        for request in (
            ask.Acquire("lock", "new", "tester", LONG_MS, 2**62, may_wait=True),
            ask.Acquire("free", "new", "tester", LONG_MS, 2**62, may_wait=True),
            ask.Renew((("lock", "holder"),)),
            ask.Release("lock", "holder"),
            ask.ReserveBlock(),
            ask.Purge(),
            ask.RaiseEpoch(client.describe().history_id, "a test"),
        ):
            with pytest.raises(
                SourceUnavailableError, match=r"locked by another connection for more than 0\.3 s: some"
            ) as caught:
                client.connection.perform(request)
            assert caught.value.definite
        assert client.ask(ask.Inspect("lock")).token == token
        frozen.send_signal(signal.SIGCONT)
        assert frozen.wait(30) == 0
    assert client.acquire("lock", "holder").token == token
    assert client.one_token("free") == token + 1


def test_process_killed_in_a_write_transaction_leaves_no_trace(path: Path) -> None:
    client = Client(path)
    token = client.one_token()
    code = (
        "import sqlite3, sys, signal, os; c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('pragma cache_size = 1'); c.execute('begin immediate')\n"
        # Enough to be written to the log before any commit.
        "c.execute('create table trash (x)')\n"
        "c.executemany('insert into trash values (randomblob(500))', [()] * 2000)\n"
        "c.execute('update fencelock_source set counter = 0'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == -signal.SIGKILL
    assert client.one_token() == token + 1
    assert one_token(path) == token + 2


# --- taken away while in use ---
@pytest.mark.parametrize("leftovers", [(), ("-wal", "-shm")], ids=["without its log", "with its log"])
def test_file_that_is_unlinked_in_use_is_noticed_by_who_used_it(path: Path, leftovers: tuple[str, ...]) -> None:
    running = Client(path)
    for _ in range(5):
        running.one_token()
    idle = Client(path)
    idle.one_token()
    source_id = running.describe().source_id
    for name in ("", "-wal", "-shm"):
        if name not in leftovers:
            Path(f"{path}{name}").unlink()

    def refusal() -> str | None:
        try:
            assert running.one_token() > 5  # On the file that it has: it looks at the path a few times a second.
        except FencelockError as error:
            return str(error)
        return None

    said = wait_until(refusal)
    assert f"was source {source_id} and is " in said
    idle.close()
    running.close()
    try:
        other = Client(path)
        other.one_token()
        assert other.describe().source_id != source_id  # Another source, which guards of the first refuse.
    except SourceUnavailableError:
        assert leftovers


def test_log_that_is_unlinked_in_use_costs_no_token(path: Path) -> None:
    """SQLite goes on in the unlinked log; a process that opens the file later reads an older state, or nothing."""
    running = Client(path)
    tokens = [running.one_token() for _ in range(5)]
    Path(f"{path}-wal").unlink()
    for client in (running, Client(path, request_timeout_s=0.2), running, Client(path, request_timeout_s=0.2)):
        with suppress(FencelockError):
            tokens.append(client.one_token())
    assert len(set(tokens)) == len(tokens)


@pytest.mark.parametrize("size", [0, 100, 1024, 3000])
def test_file_that_is_cut_short_is_no_wrong_grant(path: Path, size: int) -> None:
    client = Client(path)
    last = [client.one_token() for _ in range(5)][-1]
    client.close()
    os.truncate(path, size)
    with suppress(FencelockError):
        assert client.one_token() > last  # Who saw more refuses a file that begins anew.
    with suppress(FencelockError):
        fresh = Client(path)
        fresh.one_token()
        assert size == 0 or fresh.describe().last_token > last


# --- damaged ---
class Damage:
    """A file with a life behind it, to be damaged in place over and over (a copy would be refused as one)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        client = Client(path)
        self.last = {}
        for _ in range(100):
            for lock in ("one", "two", "three"):
                self.last[lock] = client.one_token(lock)
        self.last["held"] = client.token("held", "holder")
        client.acquire("held", "waiter", may_wait=True)
        client.close()
        self.whole = path.read_bytes()

    def put(self, data: bytes) -> None:
        """Make these the file's bytes."""
        for name in ("-wal", "-shm"):
            Path(f"{self.path}{name}").unlink(missing_ok=True)
        with self.path.open("r+b") as file:
            file.truncate()
            file.write(data)

    def requests(self) -> list[Any]:
        def acquire(lock: str, claim: str) -> ask.Acquire:
            return ask.Acquire(lock, claim, "tester", LONG_MS, 2**62, may_wait=True)

        return [
            *(acquire(lock, f"new {lock}") for lock in ("one", "two", "three", "held", "four")),
            acquire("one", "newer"),
            ask.Poll("held", "waiter"),
            ask.Renew((("held", "holder"), ("one", "new one"))),
            ask.Release("two", "new two"),
            acquire("two", "newest"),
            ask.Inspect("held"),
            ask.ListLocks(None),
            ask.ReserveBlock(),
            ask.Break("three", "breaker", "operator", "a test"),
            ask.Purge(),
            acquire("three", "last"),
            ask.ReadSource(),
            ask.RaiseEpoch("unknown", "a test"),
        ]

    def check(self) -> int:
        """Use the file in every way: each token is above all earlier ones, and every error is a FencelockError."""
        tokens = dict(self.last)
        client = Client(self.path, request_timeout_s=0.05)
        errors: list[str] = []
        for request in self.requests():
            try:
                reply = client.ask(request)
            except FencelockError as error:
                errors.append(str(error))
                continue
            if isinstance(reply, ask.Granted | ask.Broken):
                assert type(reply.token) is int
                assert reply.token > tokens.get(request.lock, 0)
                tokens[request.lock] = reply.token
        client.close()
        assert all(str(self.path) in error for error in errors)
        return len(errors)


def flip(data: bytes, place: int, chance: random.Random) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def scribble(data: bytes, place: int, chance: random.Random) -> bytes:
    return data[:place] + chance.randbytes(16) + data[place + 16 :]


def blank(data: bytes, place: int, chance: random.Random) -> bytes:
    sector = place // 512 * 512
    return data[:sector] + bytes(512) + data[sector + 512 :]


@pytest.mark.parametrize("damage", [flip, scribble, blank])
def test_damaged_file_is_an_error_of_the_tree_or_harmless(
    path: Path, damage: Callable[[bytes, int, random.Random], bytes]
) -> None:
    chance = random.Random(damage.__name__)
    damaged = Damage(path)
    assert damaged.check() == 0
    errors = 0
    for _ in range(60):
        place = chance.randrange(len(damaged.whole))
        damaged.put(damage(damaged.whole, place, chance))
        errors += damaged.check() > 0
    assert errors > 3  # The damage was seen.


@pytest.mark.reduced
def test_damage_in_every_page_header_is_an_error_of_the_tree(path: Path) -> None:
    chance = random.Random(3)
    damaged = Damage(path)
    (page_bytes,) = rows(path, "pragma page_size")[0]
    for page in range(0, len(damaged.whole), page_bytes):
        damaged.put(scribble(damaged.whole, page, chance))
        damaged.check()


def test_text_that_is_no_text_is_corruption_with_the_remedy(path: Path) -> None:
    damaged = Damage(path)
    damaged.put(damaged.whole.replace(b"CREATE TABLE fencelock_lock", b"CREATE TABLE \xff\xfencelock_lock", 1))
    with pytest.raises(
        SourceUnavailableError, match="it is corrupted: restore it from a backup, then run `fencelock epoch"
    ):
        one_token(path)


def test_value_of_another_type_is_corruption_with_the_remedy(path: Path) -> None:
    """The tables are strict, so that nothing but damage can do this; the test takes the strictness away meanwhile."""
    client = Client(path)
    client.token("lock", "holder")
    client.close()
    for strict, lax in ((" STRICT, WITHOUT", " WITHOUT"), (" WITHOUT", " STRICT, WITHOUT")):
        with closing(sqlite3.connect(path, isolation_level=None)) as native:
            native.execute("pragma writable_schema = on")
            native.execute(
                "update sqlite_schema set sql = replace(sql, ?, ?) where name = 'fencelock_lock'", (strict, lax)
            )
        if lax == " WITHOUT":
            rows(path, "update fencelock_lock set ttl_ms = 'long'")
    for act in (client.token, lambda: client.ask(ask.Inspect("lock")), lambda: client.ask(ask.ListLocks(None))):
        with pytest.raises(SourceUnavailableError, match=r"it is corrupted: restore it from a backup, .*ttl_ms"):
            act()


def test_log_full_of_rubbish_is_no_wrong_grant(path: Path) -> None:
    damaged = Damage(path)
    Path(f"{path}-wal").write_bytes(random.Random(1).randbytes(20_000))
    assert damaged.check() == 0  # Not a log of this file: SQLite begins a new one.


# --- this machine ---
def test_old_sqlite_is_unsupported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(UnsupportedError, match=r"is too old: fencelock needs 3\.37 or newer"):
        one_token(path)
    assert not path.exists()


def test_file_whose_transaction_was_inherited_is_refused_in_the_child(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_token(path)
    monkeypatch.setattr(GATE, "_inherited", {path})
    with pytest.raises(UnsupportedError, match="it was forked while a transaction was open on that file"):
        one_token(path)


def test_place_without_a_log_is_unsupported(path: Path, tmp_path: Path) -> None:
    """A file that a process holds open in rollback-journal mode cannot get a log: wait, then report it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("create table mine (x)")
        other.execute("begin")
        other.execute("select * from mine").fetchall()
        with pytest.raises(SourceUnavailableError, match="was locked by another connection"):
            Client(path, request_timeout_s=0.2).one_token()
        other.execute("rollback")
    assert one_token(path) == 1
    shutil.rmtree(tmp_path / "locks.db-wake", ignore_errors=True)
