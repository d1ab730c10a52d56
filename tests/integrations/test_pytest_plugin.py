"""`fencelock.testing.pytest`, as its users run it: by real runs of pytest in projects with a conftest.py."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencelock.testing.once_per_run import OncePerRun
from fencelock_lab.servers.postgres import PostgresFleet

CONFTEST = """
import fencelock, pytest
from sqlalchemy import create_engine, text

pytest_plugins = ["fencelock.testing.pytest"]

@pytest.fixture
def fencelock_prepare():
    def prepare(url):
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE stock (amount INTEGER NOT NULL)"))
            connection.execute(text("INSERT INTO stock VALUES (100)"))
        engine.dispose()
        fencelock.guard(url, resource="stock", lock="stock").protect("stock")
    return prepare

@pytest.fixture
def guard(fencelock_url):
    return fencelock.guard(fencelock_url, resource="stock", lock="stock")

@pytest.fixture
def add(guard):
    def add(lease, amount):
        with guard.transaction(lease) as connection:
            connection.execute(f"UPDATE stock SET amount = amount + {amount}")
            return connection.execute("SELECT amount FROM stock").fetchone()[0]
    return add
"""
GUARDED = """
import os, fencelock, pytest
from fencelock.testing import expire, lose

@pytest.mark.parametrize("again", range(2))
def test_each_test_begins_anew(fencelock_locks, add, again):
    lease = fencelock_locks.hold("stock")
    assert lease.token == 1 or again
    assert add(lease, 1) == 101

def test_a_frozen_holder_is_refused(fencelock_source, fencelock_locks, guard, add):
    lease = fencelock_source.lock("stock").acquire()
    add(lease, 1)
    successor = fencelock_locks.overtake("stock", guard)
    with pytest.raises((fencelock.StaleTokenError, fencelock.LeaseError)):
        add(lease, 1)
    assert add(successor, 10) == 111

def test_somebody_else_has_it(fencelock_locks):
    fencelock_locks.hold("stock")
    with pytest.raises(fencelock.AcquireTimeoutError):
        fencelock_locks.hold("stock")
    with fencelock.connect() as source:  # The default source is the test's own.
        assert source.lock("stock").acquire(blocking=False) is None

@pytest.mark.parametrize("end", [lose, expire])
def test_a_lease_ends_on_demand(fencelock_locks, end):
    lease = fencelock_locks.hold("stock")
    end(lease)
    assert lease.lost.is_set()

def test_without_fixtures_the_default_source_is_nobody_elses():
    with fencelock.connect() as source:
        assert source.url.startswith("memory://test-")
"""
ONCE = """
import time, pytest
from pathlib import Path

LOG = Path(__file__).parent / "log"

def log(text):
    with LOG.open("a") as file:
        file.write(text + "\\n")

@pytest.fixture(scope="session")
def database(fencelock_once):
    with fencelock_once("a/database", lambda: log("up") or {"port": 7}, lambda value: log(f"down {value}")) as value:
        yield value

@pytest.mark.parametrize("turn", range(4))
def test_it(database, turn, worker_id):
    assert database == {"port": 7}
    log(f"used {worker_id}")
    while not {"used gw0", "used gw1"} <= set(LOG.read_text().splitlines()):
        time.sleep(0.01)
"""


def run_pytest(project: Path, *arguments: str, expected: int = 0, **files: str) -> str:
    for name, text in files.items():
        (project / f"{name}.py").write_text(text)
    (project / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={project / 'temp'}"]
    ended = subprocess.run(
        [*command, *arguments],
        cwd=project,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == expected, ended.stdout + ended.stderr
    return ended.stdout


def test_each_test_has_a_guarded_sqlite_file(tmp_path: Path) -> None:
    assert "7 passed" in run_pytest(tmp_path, conftest=CONFTEST, test_guarded=GUARDED)


def test_each_test_has_a_guarded_postgresql_database(tmp_path: Path, postgres_fleet: PostgresFleet) -> None:
    server = postgres_fleet.shared("18")
    option = f"--fencelock-server={server.url()}"
    assert "7 passed" in run_pytest(tmp_path, option, conftest=CONFTEST, test_guarded=GUARDED)
    assert not server.rows("SELECT datname FROM pg_database WHERE datname LIKE 'fencelock_test_%'")


def test_a_server_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, postgres_fleet: PostgresFleet) -> None:
    server = postgres_fleet.shared("18")
    server.rows("CREATE ROLE plain LOGIN")
    shown = server.url().replace("postgres@", "")
    told = {
        "redis://127.0.0.1:1/0": "write the URL of a PostgreSQL server, postgresql://",
        "postgresql+psycopg://127.0.0.1/x": "write the URL of a PostgreSQL server, postgresql://",
        "postgresql://127.0.0.1/x?ssl_mode=x": "a PostgreSQL URL is not understood (there is no parameter 'ssl_mode'",
        "postgresql://127.0.0.1:1/x": "postgresql://127.0.0.1:1/x cannot be reached: ",
        server.url(user="plain"): f"{shown} does not permit it (permission denied to create database): name a role",
    }
    test = "def test_it(fencelock_url): pass"
    for url, text in told.items():
        conftest = 'pytest_plugins = ["fencelock.testing.pytest"]'
        said = run_pytest(tmp_path, f"--fencelock-server={url}", expected=1, conftest=conftest, test_it=test)
        assert f"\n--fencelock-server: {text}" in said
        assert "Traceback" not in said
        assert "psycopg.connect(" not in said
    server.rows("DROP ROLE plain")


def test_two_workers_do_it_once(tmp_path: Path) -> None:
    run_pytest(tmp_path, "-p", "xdist", "-n2", conftest=CONFTEST, test_once=ONCE)
    first, *used, last = (tmp_path / "log").read_text().splitlines()
    assert (first, last) == ("up", "down {'port': 7}")
    assert set(used) == {"used gw0", "used gw1"}


def test_what_killed_users_left_is_undone_before_it_is_done_again(tmp_path: Path) -> None:
    done: list[object] = []
    once = OncePerRun(tmp_path)
    left = tmp_path / "left"
    child = os.fork()
    if child == 0:
        with once("x", lambda: "first"):
            left.touch()
            signal.pause()
    while not left.exists():
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    with once("x", pytest.fail, done.append) as value:
        assert value == "first"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with once("x", lambda: done.append("up") or "second", done.append) as value:
        assert value == "second"
    assert done == ["first", "up", "second"]


def test_a_setup_that_fails_is_tried_again(tmp_path: Path) -> None:
    once = OncePerRun(tmp_path)
    with pytest.raises(ZeroDivisionError), once("x", lambda: 1 / 0):
        pass
    with once("x", lambda: "value") as value:
        assert value == "value"
