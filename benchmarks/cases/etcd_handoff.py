"""From one holder's release to the next one's return on etcd, with 2, 100 and 1 000 waiters in one process.

The waiters are threads on one session, told by watches of their predecessors' keys. Beside it: how long two bare
transactions took at the same time, and what the member was asked for each hand-off.
"""

import time
from pathlib import Path

import fenceline
from benchmarks.etcd import BareTransactions, private_member
from benchmarks.measure import Result, summarise
from benchmarks.queue import MS_PER_NS, hand_offs
from tests.etcd.fix_server import EtcdServer

WAITERS = (2, 100, 1000)


def run(_folder: Path, scale: float) -> list[Result]:
    """Measure hand-offs down a queue."""
    with private_member() as (server, url):
        results = [_trips(url, int(300 * scale) + 50)]
        for count in WAITERS:
            results += _queue(server, url, count)
        return results


def _trips(url: str, count: int) -> Result:
    floor = BareTransactions(url)
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        floor.cycle()
        times.append((time.perf_counter_ns() - began) * MS_PER_NS)
    return summarise("etcd: hand-off", "two bare transactions", "ms", times)


def _queue(server: EtcdServer, url: str, count: int) -> list[Result]:
    with fenceline.connect(url) as source:
        gaps, asked = hand_offs(source, count, lambda: sum(server.calls().values()))
        name = f"{count} waiters"
        return [
            summarise("etcd: hand-off", name, "ms", gaps, target="flat"),
            summarise("etcd: messages for each hand-off", name, "messages", [asked], target="flat"),
        ]
