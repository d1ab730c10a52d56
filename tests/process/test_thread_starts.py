"""A thread that does not start, as when a limit on threads is reached: each store recovers, and tells the truth (H10).

The program is `thread_starts.py`. Here each kind of thread fails to start once; the campaign fails each single start.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.support.helpers import ROOT

pytestmark = pytest.mark.process

APIS = ["sync", "async"]
SAME_THREADS = ["sync", pytest.param("async", marks=pytest.mark.campaign)]
"""For stores whose two APIs differ only in threads that SQLite's test shows as well."""
ENDS_S = 100
"""How long the program may take; it has shorter limits for each step."""
TTL_S = 5.0
"""A renewal is due within two seconds, and a loaded machine has three more for it."""
MAX_STARTS = 100
KEEPER = {"fencelock-callbacks", "fencelock-keeper"}
"""What every store needs."""


def run(api: str, url: str, ttl: float, number: int | None = None) -> list[str]:
    """Run the program until its exit, and return the names of the threads that did not start."""
    found: list[str] = json.loads(run_program("thread_starts", api, url, ttl, *([] if number is None else [number])))
    return found


def run_program(name: str, *words: object) -> str:
    """Run a program of this folder until its exit, and return its output."""
    ran = subprocess.run(
        [sys.executable, "-m", f"tests.process.{name}", *map(str, words)],
        cwd=ROOT,
        timeout=ENDS_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{name} {words}: {ran.stderr}"
    return ran.stdout


def run_each(api: str, url: str, ttl: float) -> None:
    """Fail the first start, then the second one, until the program ends before the start that would fail."""
    for number in range(1, MAX_STARTS):
        if not run(api, url, ttl, number):
            return
    raise AssertionError(f"the program starts more than {MAX_STARTS} threads")


@pytest.mark.parametrize("api", APIS)
def test_h2_sqlite_recovers_from_each_thread_that_did_not_start(api: str, sqlite_url: str) -> None:
    assert set(run(api, sqlite_url, TTL_S)) == KEEPER | ({"fencelock_0"} if api == "async" else set())


@pytest.mark.parametrize("api", SAME_THREADS)
def test_h2_a_source_in_memory_recovers_from_each_thread_that_did_not_start(api: str) -> None:
    assert set(run(api, "memory://starts", TTL_S)) >= KEEPER


@pytest.mark.parametrize("api", SAME_THREADS)
def test_h2_postgres_recovers_from_each_thread_that_did_not_start(api: str, postgres_url: str) -> None:
    assert set(run(api, postgres_url, TTL_S)) >= KEEPER | {"fencelock-listener"}


@pytest.mark.parametrize("api", SAME_THREADS)
def test_h2_mysql_recovers_from_each_thread_that_did_not_start(api: str, mysql_url: str) -> None:
    assert set(run(api, mysql_url, TTL_S)) >= KEEPER


@pytest.mark.parametrize("api", APIS)
def test_h2_etcd_recovers_from_each_thread_that_did_not_start(api: str, etcd_url: str) -> None:
    failed = run(api, etcd_url, TTL_S)
    assert set(failed) >= KEEPER | {"fencelock-watcher"}
    assert len(failed) >= len(KEEPER) + 3, "the watcher's, and gRPC's two"


@pytest.mark.parametrize("api", SAME_THREADS)
def test_h2_zookeeper_recovers_from_each_thread_that_did_not_start(api: str, zookeeper_own_url: str) -> None:
    failed = run(api, zookeeper_own_url, TTL_S)
    assert set(failed) > KEEPER, "and kazoo's own"


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("store", ["sqlite", "postgres", "mysql", "etcd", "zookeeper_own"])
def test_h2_every_store_recovers_from_each_single_start_that_failed(
    request: pytest.FixtureRequest, store: str, api: str
) -> None:
    url = request.getfixturevalue(f"{store}_url")
    run_each(api, url, TTL_S)


@pytest.mark.campaign
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without processes")
def test_h2_a_real_limit_on_threads_costs_no_lease_and_hides_no_loss(etcd_url: str) -> None:
    run_program("thread_limit", etcd_url)
