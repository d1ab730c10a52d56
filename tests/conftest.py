"""Fixtures for every test. A store's own fixtures live in a module of their own."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import fencelock
from fencelock._keeper import schedule
from fencelock._keeper.lifecycle import keeper
from fencelock.stores.sqlite.connection import wal_reset
from tests.process.actors import EARLY_BEATS_PER_TTL, Stage

# On a loaded machine the making of an example may take seconds: that is no failure.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

pytest_plugins = [
    "tests.budgets",
    "tests.shown_secrets",
    "tests.tiers",
    "tests.turns",
    "tests.fix_servers",
    "tests.own_process",
    "tests.stored_secrets",
    "tests.run_reports",
    "tests.sql.postgres.fix_postgres",
    "tests.sql.postgres.fix_copies",
    "tests.sql.postgres.fix_pgbouncer",
    "tests.sql.postgres.fix_tls",
    "tests.sql.mysql.fix_mysql",
    "tests.sql.mysql.fix_tls",
    "tests.etcd.fix_etcd",
    "tests.etcd.fix_tls",
    "tests.zookeeper.fix_zookeeper",
    "tests.redis.fix_redis",
]


RESET = ("SIGHUP", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGTSTP")
"""Not SIGPIPE, which Python ignores by itself, and resets in the programs that it starts."""
MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a private folder in it
MEMORY_BYTES = 2**30
"""What the folders of all tests need, by far."""


def pytest_configure() -> None:
    """Give signals their default effect, here and in every program that a test starts.

    `nohup`, a shell's `&` and CI runners start programs with some signals ignored, and a program keeps that over exec:
    the processes that tests interrupt or hang up would not notice.
    """
    for number in (signal.Signals[name] for name in RESET):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without the garbage collector, and keep it out of them afterwards.

    They stay until the end: to look through them takes a collector half a second, each of the many times that it runs.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a private folder: in memory, where flushes cost nothing, unless the test is marked `disk`."""
    if request.node.get_closest_marker("disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="fencelock-test-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Yield a private folder with a path short enough for a Unix socket in it (108 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="fl-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the tester's own settings, default source and SQLite's version apart from those of the tests."""
    for name in ("FENCELOCK_SOURCE", "FENCELOCK_LOCK", "FENCELOCK_TOKEN", "FENCELOCK_SEQUENCER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    monkeypatch.setattr(wal_reset, "VERSION", (3, 51, 3))  # What `doctor` finds depends on it.


@pytest.fixture(autouse=True)
def give_up_claims() -> Iterator[None]:
    """Have the keeper give up what it could not release in the test: by now its file or database is out of reach.

    Some leases here are of ten minutes, and the keeper would try for each of them four times a second until then.
    """
    yield
    for message in list(keeper()._abandoned.values()):
        keeper()._inbox.put(message._replace(give_up_ms=0))


@pytest.fixture
def early_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have leases of this process renewed long before that is due: each quarter of a second with a ttl of thirty."""
    monkeypatch.setattr(schedule, "BEATS_PER_TTL", EARLY_BEATS_PER_TTL)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Yield a place for real processes that share one source file; whatever still runs is killed at the end."""
    with Stage(tmp_path / "locks.db") as the_stage:
        yield the_stage


@pytest.fixture
def source(tmp_path: Path) -> Iterator[fencelock.Source]:
    """Yield a source at the file that `stage` uses."""
    with fencelock.connect(f"sqlite:///{tmp_path / 'locks.db'}") as the_source:
        the_source.install()
        yield the_source
