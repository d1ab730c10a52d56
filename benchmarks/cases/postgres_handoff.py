"""From one holder's release to the next one's return on PostgreSQL, with 2, 100 and 1 000 waiters in one process.

The waiters are threads, so that one listening connection serves them all; the one who releases is another process.
Beside it: how long an empty round trip took at the same time, and what the server was asked for each hand-off.
"""

import threading
import time
from pathlib import Path

import psycopg

import fenceline
from benchmarks.measure import Result, summarise
from benchmarks.postgres import private_server

WAITERS = (2, 100, 1000)
MS_PER_NS = 1e-6
PUBLISHED_S = 11
"""An idle session of the server publishes its counts after ten seconds."""
_STATEMENTS = "SELECT sum(calls) FROM pg_stat_user_functions WHERE funcname IN ('acquire', 'release')"


def run(_folder: Path, scale: float) -> list[Result]:
    """Measure hand-offs down a queue."""
    with private_server() as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET track_functions = 'all'")
            admin.execute("SELECT pg_reload_conf()")
        results = [_trip(url, int(500 * scale) + 50)]
        for count in WAITERS:
            results += _queue(url, count)
        return results


def _trip(url: str, count: int) -> Result:
    with psycopg.connect(url, autocommit=True) as connection:
        times = []
        for _ in range(count):
            began = time.perf_counter_ns()
            connection.execute("SELECT 1", prepare=True).fetchone()
            times.append((time.perf_counter_ns() - began) * MS_PER_NS)
    return summarise("PostgreSQL: hand-off", "an empty round trip", "ms", times)


def _queue(url: str, count: int) -> list[Result]:
    with fenceline.connect(url) as source, psycopg.connect(url, autocommit=True) as admin:
        lock = source.lock(f"queue-{count}", ttl=600.0)
        returned: list[tuple[int, int]] = []

        def wait_and_pass_on() -> None:
            lease = lock.acquire()
            got = time.perf_counter_ns()
            assert lease is not None
            lease.release()
            returned.append((got, time.perf_counter_ns()))

        first = lock.acquire()
        assert first is not None
        threads = [threading.Thread(target=wait_and_pass_on) for _ in range(count)]
        for thread in threads:
            thread.start()
        while len(source.info(lock.name).waiters) < count:
            time.sleep(0.05)
        time.sleep(1.0)  # Let them fall asleep.
        before = _asked(admin)
        began = time.perf_counter_ns()
        first.release()
        for thread in threads:
            thread.join()
        returned.sort()
        ends = [began, *(released for _, released in returned)]
        gaps = [(got - end) * MS_PER_NS for (got, _), end in zip(returned, ends, strict=False)]
        statements = (_asked(admin) - before) / count
        name = f"{count} waiters"
        return [
            summarise("PostgreSQL: hand-off", name, "ms", gaps, target="3 round trips"),
            summarise("PostgreSQL: statements for each hand-off", name, "statements", [statements], target="flat"),
        ]


def _asked(admin: psycopg.Connection) -> int:
    time.sleep(PUBLISHED_S)
    row = admin.execute(_STATEMENTS).fetchone()
    return int(row[0]) if row and row[0] is not None else 0
