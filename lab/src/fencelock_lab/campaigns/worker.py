"""One process of a campaign: `python -m fencelock_lab.campaigns.worker`, with its orders on standard input.

Promise: it ends when standard input ends, and dies with the conductor. One thread is usual; several share one source
and one network. Where the settings ask for it, its clocks are wrong: the one of its leases has a rate of its own, and
the wall clock jumps.
"""

import json
import os
import select
import signal
import threading
from dataclasses import asdict, replace
from pathlib import Path

import fencelock
from fencelock.testing import skew_clock
from fencelock_lab.campaigns import clocks
from fencelock_lab.campaigns.competitor import ENDED, Competitor, say
from fencelock_lab.campaigns.faults import NAP
from fencelock_lab.campaigns.history import QUIET
from fencelock_lab.campaigns.settings import GUARD, NETWORK_FAULTS, SOURCE, CampaignSettings
from fencelock_lab.proxy import Proxy, addresses_of, through

READY = "ready"
"""What it says on standard output when it begins."""
_PR_SET_PDEATHSIG = 1


class Orders:
    """What the conductor wants: `nap` before the next write; `quiet`, no more faults; end of input, the end."""

    def __init__(self) -> None:
        self.is_wanted = True
        self.is_quiet = False
        self._is_to_nap = False
        self._mutex = threading.Lock()

    def read(self) -> None:
        """Take up what has come. One thread reads at a time; the others go on with what is known."""
        if not self._mutex.acquire(blocking=False):
            return
        try:
            while self.is_wanted and select.select([0], [], [], 0)[0]:
                words = os.read(0, 4096).decode().split()
                self.is_wanted = bool(words)
                self.is_quiet |= QUIET in words
                self._is_to_nap = (self._is_to_nap or NAP in words) and not self.is_quiet
        finally:
            self._mutex.release()

    def take_nap(self) -> bool:
        """Return whether a nap is ordered; the order is spent then."""
        self.read()
        is_to_nap, self._is_to_nap = self._is_to_nap, False
        return is_to_nap


class Worker:
    """The threads of one process, and what they share."""

    def __init__(self, settings: CampaignSettings, worker: int, life: int, folder: Path) -> None:
        self._orders = Orders()
        self._networks: dict[str, list[Proxy]] = {}
        process = f"{worker}.{life}"
        settings = self._behind_proxies(settings)
        source = fencelock.connect(settings.source)
        self._competitors = [
            Competitor(
                settings,
                number,
                life,
                f"{process}/{at}" if at else process,
                folder,
                source=source,
                networks=self._networks,
                orders=self._orders,
            )
            for at, number in enumerate(settings.competitors(worker))
        ]

    def _behind_proxies(self, settings: CampaignSettings) -> CampaignSettings:
        """Put a proxy of this worker's own before each server, if the settings have a fault for the network."""
        if not set(settings.faults) & set(NETWORK_FAULTS):
            return settings
        source = settings.source and self._by_proxy(SOURCE, settings.source)
        return replace(settings, source=source, guard=self._by_proxy(GUARD, settings.guard))

    def _by_proxy(self, side: str, url: str) -> str:
        addresses = addresses_of(url)
        if not addresses:
            return url
        self._networks[side] = [Proxy(port, host).start() for host, port in addresses]
        return through(url, [proxy.port for proxy in self._networks[side]])

    def run(self) -> None:
        """Work until standard input ends."""
        say(READY)
        first, *others = self._competitors
        threads = [threading.Thread(target=self._repeat, args=(one,)) for one in others]
        for thread in threads:
            thread.start()
        self._repeat(first)
        for thread in threads:
            thread.join()

    def _repeat(self, competitor: Competitor) -> None:
        """Hold the lock again and again. A thread that fails ends the process: the conductor has to know."""
        try:
            while self._orders.is_wanted:
                competitor.hold()
                say(f"{ENDED} {competitor.number}")
                self._orders.read()
        except BaseException:
            self._orders.is_wanted = False
            competitor.fail()
            raise


def orders_for(settings: CampaignSettings, worker: int, life: int, folder: Path) -> str:
    """Return the line that tells a worker which one it is; it may hold passwords."""
    return json.dumps({"settings": asdict(settings), "worker": worker, "life": life, "folder": str(folder)})


def die_with_the_conductor() -> None:
    """Have the kernel kill this process when its parent dies, frozen or not: no other would wake it (prctl(2))."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Read the orders, and work."""
    die_with_the_conductor()
    clocks.prepare()
    orders = json.loads(os.fdopen(0, "rb", buffering=0, closefd=False).readline())
    settings = CampaignSettings.from_json(orders["settings"])
    if (rate := settings.rate(orders["worker"])) != 1.0:
        skew_clock(rate)
    Worker(settings, orders["worker"], orders["life"], Path(orders["folder"])).run()


if __name__ == "__main__":
    main()
