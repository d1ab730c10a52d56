"""Threads on few locks while the network is cut, frozen and loses messages at random: nothing is left, nobody meets."""

import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

import fencelock
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.helpers import DEADLINE_S, wait_until
from tests.zookeeper.proxy import ZooKeeperProxy

STORM_S = 8.0
LOCKS = ("one", "two")
TTLS = (1.5, 2.0)
"""Two sessions for each source."""
WORKERS = 6


class Log:
    """What the workers lived through."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.inside: dict[str, list[fencelock.Lease]] = {name: [] for name in LOCKS}
        self.tokens: dict[str, list[int]] = {name: [] for name in LOCKS}
        self.met: list[tuple[int, int]] = []

    def enter(self, lease: fencelock.Lease) -> None:
        """Note a grant, and whoever still believes in an earlier one."""
        with self.mutex:
            others = [other for other in self.inside[lease.lock] if other.is_valid]
            self.met += [(other.token, lease.token) for other in others if lease.is_valid]
            self.inside[lease.lock] = [*others, lease]
            self.tokens[lease.lock].append(lease.token)

    def leave(self, lease: fencelock.Lease) -> None:
        with self.mutex:
            self.inside[lease.lock] = [other for other in self.inside[lease.lock] if other is not lease]


def work(source: fencelock.Source, seed: int, until_s: float, log: Log) -> None:
    """Acquire, waiting or not, and release, forget or give up."""
    drawn = random.Random(seed)
    while time.monotonic() < until_s:
        lock = source.lock(drawn.choice(LOCKS), ttl=drawn.choice(TTLS), timeout=drawn.choice([0.0, 0.3, 2.0]))
        try:
            with lock as lease:
                log.enter(lease)
                time.sleep(drawn.random() / 50)
                log.leave(lease)
        except fencelock.FencelockError:
            pass
        if drawn.random() < 0.1 and (forgotten := _attempt(lock)) is not None:
            log.enter(forgotten)
            log.leave(forgotten)


def _attempt(lock: fencelock.Lock) -> fencelock.Lease | None:
    try:
        return lock.acquire(blocking=False)
    except fencelock.FencelockError:
        return None


def storm(proxy: ZooKeeperProxy, seed: int, until_s: float) -> None:
    drawn = random.Random(seed)
    while time.monotonic() < until_s:
        time.sleep(drawn.random() / 3)
        what = drawn.choice(["cut", "cut", "lose", "lose", "freeze", "long freeze"])
        if what == "cut":
            proxy.cut()
        elif what == "lose":
            proxy.lose(drawn.choice(["request", "reply"]), drawn.randrange(1, 8))
        else:
            proxy.freeze()
            time.sleep(drawn.random() if what == "freeze" else max(TTLS) + 0.5)
            proxy.thaw()
    proxy.lose("nothing", 0)


@pytest.fixture
def sources(zookeeper_url: str, zookeeper_proxy: ZooKeeperProxy) -> Iterator[list[fencelock.Source]]:
    made = [fencelock.connect(zookeeper_proxy.url(zookeeper_url)) for _ in range(2)]
    yield made
    for source in made:
        source.close()


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_whatever_the_network_does_one_holds_and_tokens_rise(
    sources: list[fencelock.Source], zookeeper: ZooKeeperServer, zookeeper_proxy: ZooKeeperProxy, seed: int
) -> None:
    log, until_s = Log(), time.monotonic() + STORM_S
    threads = [
        threading.Thread(target=work, args=(sources[number % 2], seed + number, until_s, log), daemon=True)
        for number in range(WORKERS)
    ]
    for thread in threads:
        thread.start()
    storm(zookeeper_proxy, seed, until_s)
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert not log.met, f"seed {seed}: two believed at once, with these tokens"
    for name, tokens in log.tokens.items():
        assert len(tokens) > 5
        assert all(low < high for low, high in pairwise(tokens)), f"seed {seed}: {name}: {tokens}"
    client = zookeeper.client()
    layout = sources[0]._store.layout  # type: ignore[attr-defined]
    wait_until(lambda: not any(client.get_children(layout.lock(name)) for name in LOCKS))
    client.stop()
    client.close()
