"""One process of a campaign: `python -m fencelock_lab.campaigns.worker`, with its orders on standard input.

Promise: it uses the public names only, as an honest program does: acquire, read, compute, write, release. It records
each operation before it begins and after it ends. It freezes and kills itself where the plan says so, since only the
process knows where it stands; who wakes it is the conductor, which is told on standard output. It ends when standard
input does.
"""

import json
import os
import select
import signal
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fencelock
from fencelock_lab.campaigns import clocks
from fencelock_lab.campaigns.history import (
    ACQUIRE,
    DELAY,
    FAIL,
    FREEZE,
    INFO,
    JUMP,
    KILL,
    NS_PER_S,
    OK,
    PARTITION,
    QUIET,
    READ,
    RELEASE,
    RESTORE,
    STRAY,
    WRITE,
)
from fencelock_lab.campaigns.plan import (
    ACQUIRED,
    AIMED_NAP_TTLS,
    BETWEEN,
    GUARD,
    LEAVING,
    NAP,
    NETWORK_FAULTS,
    SOURCE,
    WRITTEN,
    CampaignSettings,
    Fault,
    fault_of,
)
from fencelock_lab.campaigns.recorder import Recorder, boottime_ns
from fencelock_lab.campaigns.target import Enforced, Rewindable
from fencelock_lab.campaigns.targets import make_target
from fencelock_lab.proxy import Proxy, address_of, by_way_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencelock_lab.campaigns.target import TargetState

READY, FREEZING, NAPPING, WORKED, ENDED = "ready", "freezing", "napping", "worked", "ended"
"""What it says on standard output: that it begins; that it freezes now, for how many seconds at most; that it has read,
and takes its time before it writes; that all of a tenure's writes were accepted; that a tenure is over."""
_PR_SET_PDEATHSIG = 1
_WAIT_TTLS = 8
_REST_PARTS = 10
"""Into how many parts of a ttl a worker divides its rest after an acquire that failed, for example at a server that is
down."""


class CampaignWorker:
    """Takes the lock, works on its resources, and gives it back, again and again."""

    def __init__(self, settings: CampaignSettings, worker: int, life: int, folder: Path) -> None:
        self.settings = settings
        self.worker = worker
        self.process = f"{worker}.{life}"
        self._tenure = life * 1_000_000  # Each life has draws of its own.
        self._fault = Fault()
        self._is_wanted = True
        self._is_quiet = False
        self._is_to_nap = False
        number = settings.lock_of_worker(worker)
        self._networks: dict[str, Proxy] = {}
        settings = self._behind_proxies(settings)
        self._is_reentrant = settings.is_reentrant(number)
        self._recorder = Recorder(folder / f"{self.process}.jsonl", self.process)
        self._place = make_target(settings, number)
        self._source = fencelock.connect(settings.source)
        make_lock = self._source.rlock if self._is_reentrant else self._source.lock
        timeout = _WAIT_TTLS * settings.ttl + 1
        self._lock = make_lock(settings.lock(number), ttl=settings.ttl, timeout=timeout, holder=self.process)
        self._writes = 0

    def _behind_proxies(self, settings: CampaignSettings) -> CampaignSettings:
        """Put a proxy of this worker's own before each server, if the plan has anything for the network."""
        if not set(settings.faults) & set(NETWORK_FAULTS):
            return settings
        source = settings.source and self._by_proxy(SOURCE, settings.source)
        return replace(settings, source=source, guard=self._by_proxy(GUARD, settings.guard))

    def _by_proxy(self, side: str, url: str) -> str:
        address = address_of(url)
        if address is None:
            return url
        self._networks[side] = Proxy(*address)
        return by_way_of(self._networks[side], url)

    def run(self) -> None:
        """Work until standard input ends."""
        say(READY)
        while self._is_wanted:
            self._tenure += 1
            self._fault = Fault() if self._is_quiet else fault_of(self.settings, self.worker, self._tenure)
            self._hold()
            say(ENDED)
            self._hear_orders()

    def _hear_orders(self) -> None:
        """Look whether there is an order: `nap` before the next write, `quiet` ends the faults, the end of the input
        everything.
        """
        while self._is_wanted and select.select([0], [], [], 0)[0]:
            orders = os.read(0, 4096).decode().split()
            self._is_wanted = bool(orders)
            self._is_quiet |= QUIET in orders
            self._is_to_nap = (self._is_to_nap or NAP in orders) and not self._is_quiet

    def _hold(self) -> None:
        """Do everything that is done in one tenure."""
        lease = self._acquire()
        if lease is None:
            time.sleep(self.settings.ttl / _REST_PARTS)
            return
        try:
            proof = lease.sequencer if self._fault.is_bearer else lease
            self._stand(ACQUIRED)
            if self._is_reentrant:
                self._acquire()
            self._work(proof, lease.token)
            self._stand(LEAVING)
            say(WORKED)
        except RefusedWrite:
            pass
        finally:
            while self._lock.current is not None:  # A re-entrant lock is left as often as it was entered.
                self._release(lease.token)

    def _work(self, proof: Any, token: int) -> None:
        place = self._place
        before = {}
        if self._fault.kind == RESTORE and isinstance(place, Rewindable):
            before = {resource: place.snapshot(resource) for resource in place.resources}
        seen = {resource: self._read(resource, proof, token) for resource in place.resources}
        self._stand(BETWEEN)
        for resource in place.resources:
            self._write(resource, proof, token, seen[resource])
        for resource, snapshot in before.items():
            self._restore(resource, snapshot)
            # What this tenure has read and written is void now: the guard must know.
            self._write(resource, proof, token, seen[resource].after_write())

    def _restore(self, resource: str, snapshot: Any) -> None:
        """Put a resource back to what it held when this tenure began."""
        place = self._place
        assert isinstance(place, Rewindable)
        position = place.rewind(resource, snapshot)
        self._recorder.note(RESTORE, victim=self.process, resource=resource, position=position)

    # --- the operations -----------------------------------------------------------------------------------------------
    def _acquire(self) -> fencelock.Lease | None:
        name = self._lock.name
        self._recorder.invoke(ACQUIRE, lock=name)
        lease = None
        with self._told(ACQUIRE, lock=name) as facts:
            lease = self._lock.acquire()
            if lease is None:
                raise RefusedWrite
            facts.update({"token": str(lease.token)} | until_of(lease))
        return lease

    def _release(self, token: int) -> None:
        facts = {"lock": self._lock.name, "token": str(token)}
        self._recorder.invoke(RELEASE, **facts)
        with self._told(RELEASE, **facts):
            self._lock.release()

    def _read(self, resource: str, proof: Any, token: int) -> "TargetState":
        facts = {"resource": resource, "token": str(token)}
        self._recorder.invoke(READ, **facts)
        with self._told(READ, **facts) as more:
            seen = self._place.read(proof, resource)
            more.update({"position": seen.position} | until_of(proof))
        return seen

    def _write(self, resource: str, proof: Any, token: int, seen: "TargetState") -> None:
        self._writes += 1
        name = f"{self.process}-{self._writes}"
        facts = {"resource": resource, "token": str(token), "write": name}
        self._recorder.invoke(WRITE, **facts, position=seen.position + 1)
        with self._told(WRITE, **facts), self._place.writing(proof, resource, seen, name, token):
            self._stand(WRITTEN)

    def _stray(self, resource: str) -> None:
        """Write without a token, and expect to be refused."""
        place = self._place
        assert isinstance(place, Enforced)
        self._recorder.invoke(STRAY, resource=resource)
        with self._told(STRAY, resource=resource):
            place.write_unfenced(resource)

    @contextmanager
    def _told(self, kind: str, **facts: Any) -> "Iterator[dict[str, Any]]":
        """Record how an operation ended; the block may add to what is recorded."""
        try:
            yield facts
        except RefusedWrite:
            self._recorder.write(FAIL, kind, **facts, error="not obtained")
        except fencelock.FencelockError as error:
            facts |= {"error": type(error).__name__}
            if isinstance(error, fencelock.StaleTokenError):
                facts |= {"mark": str(error.mark)}
            self._recorder.write(FAIL if error.definite else INFO, kind, **facts)
            if kind in {READ, WRITE}:
                raise RefusedWrite from error
        except Exception as error:
            # What a client raises inside the block may come from the commit, too: only a guard's word is definite.
            self._recorder.write(INFO, kind, **facts, error=type(error).__name__)
            if kind in {READ, WRITE}:
                raise RefusedWrite from error
        else:
            self._recorder.write(OK, kind, **facts)

    # --- the faults ---------------------------------------------------------------------------------------------------
    def _stand(self, point: str) -> None:
        """Be at a point of the tenure, where the plan may have something for this process."""
        fault = self._fault
        if fault.kind in {None, RESTORE} or fault.point != point:
            if point == BETWEEN:
                self._nap_if_told()
            return
        self._fault = Fault()  # With two resources a process stands at some points twice.
        if fault.kind == NAP:
            self._nap(fault.seconds)
        elif fault.kind == FREEZE:
            say(f"{FREEZING} {fault.seconds}")
            self._recorder.note(FREEZE, victim=self.process, point=point)
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.kind == KILL:
            self._recorder.note(KILL, victim=self.process, point=point)
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == JUMP:
            clocks.jump(fault.seconds)
            self._recorder.note(JUMP, victim=self.process, point=point, seconds=fault.seconds)
        elif fault.kind == STRAY:
            self._stray(self._place.resources[0])
        elif fault.side in self._networks:
            self._recorder.note(fault.kind, victim=self.process, point=point, side=fault.side, seconds=fault.seconds)
            self._disturb(self._networks[fault.side], fault)

    def _nap_if_told(self) -> None:
        """Take its time while an earlier holder is frozen: it is woken into this very moment."""
        self._hear_orders()
        if self._is_to_nap:
            self._is_to_nap = False
            self._nap(AIMED_NAP_TTLS * self.settings.ttl)

    @staticmethod
    def _nap(seconds: float) -> None:
        say(NAPPING)
        time.sleep(seconds)

    @staticmethod
    def _disturb(network: Proxy, fault: Fault) -> None:
        if fault.kind == PARTITION:
            network.partition(fault.seconds)
        elif fault.kind == DELAY:
            network.delay(fault.seconds)
        else:
            network.drop()


class RefusedWrite(Exception):  # noqa: N818 - it ends a tenure, and nothing is wrong
    """The tenure is over: an operation of it was refused, or nobody knows what became of it."""


def until_of(proof: Any) -> dict[str, int]:
    """Return the time until which a lease may be relied on; nothing if it is over, or if it is a bare sequencer."""
    if isinstance(proof, fencelock.Sequencer):
        return {}
    # The clock is read first: a process that is frozen in between claims less, never more.
    now_ns = boottime_ns()
    remaining = proof.remaining()
    return {"until": now_ns + int(remaining * NS_PER_S)} if remaining > 0 else {}


def orders_for(settings: CampaignSettings, worker: int, life: int, folder: Path) -> str:
    """Return the line that says to a worker who it is; it may hold passwords."""
    return json.dumps({"settings": asdict(settings), "worker": worker, "life": life, "folder": str(folder)})


def say(words: str) -> None:
    """Tell the conductor."""
    os.write(1, f"{words}\n".encode())


def die_with_the_conductor() -> None:
    """Have the kernel kill this process when its parent dies, frozen or not: nobody else would wake it (prctl(2))."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Read the orders, and work."""
    die_with_the_conductor()
    clocks.prepare()
    orders = json.loads(os.fdopen(0, "rb", buffering=0, closefd=False).readline())
    settings = CampaignSettings.from_json(orders["settings"])
    CampaignWorker(settings, orders["worker"], orders["life"], Path(orders["folder"])).run()


if __name__ == "__main__":
    main()
