"""Other systems, made up in a process of their own: what Linux alone has is taken away before fencelock is imported.

None of this ran on macOS or Windows. It shows that nothing is used that those systems lack by their manuals.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fencelock.stores.registry import GUARDS, SOURCES
from fencelock.stores.wakeup import EventWakeup

WITHOUT_LINUX = """
import asyncio, ctypes, logging, os, select, signal, sqlite3, subprocess, sys, threading, time
import click
for name in [name for name in dir(os) if name.startswith(("eventfd", "EFD_"))]:
    delattr(os, name)
del time.CLOCK_BOOTTIME
"""
WINDOWS = (
    WITHOUT_LINUX
    + """
sys.platform = "win32"
for name in ("fork", "register_at_fork", "geteuid", "mkfifo", "mknod", "set_blocking", "getpgid", "killpg", "waitid"):
    delattr(os, name)
for name in ("SIGHUP", "SIGPIPE", "SIGUSR1", "SIGCHLD", "pthread_sigmask", "set_wakeup_fd"):
    delattr(signal, name)
for name in ("clock_gettime_ns", "clock_gettime", "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW"):
    delattr(time, name)
del select.poll
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios"):
    sys.modules[name] = None
"""
)
MACOS = (
    WITHOUT_LINUX
    + """
sys.platform = "darwin"
def mknod(*_):
    raise PermissionError(1, "Operation not permitted")
os.mknod = mknod
class SystemLibrary:
    def __init__(self, name):
        assert name is None
    def sysctlbyname(self, name, text, size, new, new_size):
        assert name == b"kern.bootsessionuuid"
        text.value = b"0F2A-BOOT"
        return 0
    def gethostuuid(self, answer, wait):
        answer.raw = bytes(range(16))
        return 0
ctypes.CDLL = SystemLibrary
"""
)


def run_python(program: str, *words: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *words], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_windows_imports_everything_and_each_store_says_in_one_sentence_what_it_needs() -> None:
    program = f"""{WINDOWS}
import fencelock, fencelock.aio, fencelock.protocol
for module in (fencelock, fencelock.aio, fencelock.protocol):
    for name in module.__all__:
        getattr(module, name)
for scheme in {sorted({*SOURCES, *GUARDS})!r}:
    for use in (fencelock.connect, lambda url: fencelock.guard(url, resource="r", lock="l")):
        try:
            use(scheme + "://host/name")
        except fencelock.UnsupportedError as error:
            print(error)
        except (fencelock.UnknownSchemeError, fencelock.UnsafeSourceError):
            assert scheme in ("file", "memory", "redis", "rediss")  # A source alone, or a guard alone.
"""
    said = run_python(program).splitlines()
    assert len(said) == len(SOURCES) + len(GUARDS)
    for line in said:
        assert " needs " in line
        assert line.endswith("run this program in WSL 2 or in a Linux container")


@pytest.mark.parametrize("system", [WINDOWS, MACOS], ids=["windows", "macos"])
def test_the_command_starts_and_run_says_that_it_needs_linux(system: str) -> None:
    program = f"{system}\nfrom fencelock.cli.commands import execute\nprint(execute(sys.argv[1:]))"
    assert run_python(program, "--version").splitlines()[-1] == "0"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "x", "--", "true"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "69\n"
    assert "supervises processes by Linux's /proc" in done.stderr


def test_macos_refuses_a_sqlite_file_unless_the_url_asks_for_what_was_never_run(tmp_path: Path) -> None:
    program = f"""{MACOS}
import fencelock
for use in (fencelock.connect, lambda url: fencelock.guard(url, resource="r", lock="l")):
    try:
        use("sqlite:///locks.db")
    except fencelock.UnsupportedError as error:
        print(error)
"""
    said = run_python(program, folder=tmp_path).splitlines()
    assert len(said) == 2
    assert all("never run" in line and "?experimental=macos" in line for line in said)


def test_macos_keeps_locks_and_marks_in_a_private_file_that_is_flushed_to_the_disk_itself(tmp_path: Path) -> None:
    program = f"""{MACOS}
import fencelock
URL = "sqlite:///app.db?experimental=macos"
with fencelock.connect(URL) as source:
    waited = []
    with source.lock("notes", ttl=20) as first:
        assert oct(os.stat("app.db").st_mode)[-3:] == "600", "made with another mode"
        thread = threading.Thread(target=lambda: waited.append(source.lock("notes", ttl=20).acquire()))
        thread.start()
        while not source.info("notes").waiters:
            time.sleep(0.001)
    thread.join()
    assert waited[0].token > first.token
    guard = fencelock.guard(URL, resource="r", lock="notes")
    with guard.transaction(waited[0]) as connection:
        assert connection.execute("PRAGMA fullfsync").fetchone() == (1,)
        assert connection.execute("PRAGMA checkpoint_fullfsync").fetchone() == (1,)
        print(connection.execute("SELECT boot_id, machine_id FROM fencelock_source").fetchone())
    if not os.fork():
        with source.lock("other"):
            os._exit(0)
    assert os.wait()[1] == 0
    waited[0].release()
"""
    assert run_python(program, folder=tmp_path) == "('0F2A-BOOT', '000102030405060708090a0b0c0d0e0f')\n"


def test_macos_waits_in_memory_without_an_eventfd() -> None:
    program = f"""{MACOS}
import fencelock, fencelock.aio
with fencelock.connect("memory://x") as source:
    first = source.lock("a").acquire()
    waited = []
    async def wait():
        async with fencelock.aio.connect("memory://x") as other, other.lock("a") as lease:
            waited.append(lease.token)
    thread = threading.Thread(target=lambda: asyncio.run(wait()))
    thread.start()
    while not source.info("a").waiters:
        time.sleep(0.001)
    first.release()
    thread.join()
    assert waited[0] > first.token
"""
    run_python(program)


def test_linux_takes_the_option_too_so_that_one_url_serves_a_team(tmp_path: Path) -> None:
    program = """
import fencelock
with fencelock.connect("sqlite:///locks.db?experimental=macos") as one, fencelock.connect("sqlite:///locks.db") as two:
    with one.lock("a"):
        assert two.info("a").is_held
"""
    run_python(program, folder=tmp_path)
    assert not list(tmp_path.glob("*experimental*"))


def test_a_closed_wakeup_takes_nothing_from_the_next_owner_of_its_descriptor() -> None:
    wakeup = EventWakeup()
    wakeup.close()
    reader, writer = os.pipe()  # It gets the number that was closed.
    os.write(writer, b"theirs")
    with suppress(OSError):
        wakeup.drain()
    wakeup.notify()
    wakeup.close()
    assert wakeup.fileno() == -1
    assert os.read(reader, 100) == b"theirs"
    os.close(reader)
    os.close(writer)
