"""From one holder's release to the next one's return on ZooKeeper, with 2, 100 and 1 000 waiters in one process.

The waiters are threads on one session, told by watches of their predecessors' nodes. Beside it: how long two trips took
at the same time, and what the server was asked for each hand-off.
"""

import threading
import time
from pathlib import Path

import fenceline
from benchmarks.measure import Result, summarise
from benchmarks.zookeeper import HandWrittenLock, private_server
from tests.zookeeper.fix_server import ZooKeeperServer

WAITERS = (2, 100, 1000)
MS_PER_NS = 1e-6


def run(_folder: Path, scale: float) -> list[Result]:
    """Measure hand-offs down a queue."""
    with private_server() as (server, url):
        results = [_trips(server, int(300 * scale) + 50)]
        for count in WAITERS:
            results += _queue(server, url, count)
        return results


def _trips(server: ZooKeeperServer, count: int) -> Result:
    floor = HandWrittenLock(server)
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        floor.two_writes()
        times.append((time.perf_counter_ns() - began) * MS_PER_NS)
    floor.close()
    return summarise("ZooKeeper: hand-off", "create and delete by hand", "ms", times)


def _queue(server: ZooKeeperServer, url: str, count: int) -> list[Result]:
    with fenceline.connect(url) as source:
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
        before = int(server.report()["Received"])
        began = time.perf_counter_ns()
        first.release()
        for thread in threads:
            thread.join()
        requests = (int(server.report()["Received"]) - before) / count
        returned.sort()
        ends = [began, *(released for _, released in returned)]
        gaps = [(got - end) * MS_PER_NS for (got, _), end in zip(returned, ends, strict=False)]
        name = f"{count} waiters"
        return [
            summarise("ZooKeeper: hand-off", name, "ms", gaps, target="flat"),
            summarise("ZooKeeper: requests for each hand-off", name, "requests", [requests], target="flat"),
        ]
