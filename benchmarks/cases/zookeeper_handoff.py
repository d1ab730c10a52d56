"""From one holder's release to the next one's return on ZooKeeper, with 2, 100 and 1 000 waiters in one process.

The waiters are threads on one session, told by watches of their predecessors' nodes. Beside it: how long two trips took
at the same time, and what the server was asked for each hand-off.
"""

import time
from pathlib import Path

import fenceline
from benchmarks.measure import Result, summarise
from benchmarks.queue import MS_PER_NS, hand_offs
from benchmarks.zookeeper import HandWrittenLock, private_server
from tests.zookeeper.fix_server import ZooKeeperServer

WAITERS = (2, 100, 1000)


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
        gaps, asked = hand_offs(source, count, lambda: int(server.report()["Received"]))
        name = f"{count} waiters"
        return [
            summarise("ZooKeeper: hand-off", name, "ms", gaps, target="flat"),
            summarise("ZooKeeper: requests for each hand-off", name, "requests", [asked], target="flat"),
        ]
