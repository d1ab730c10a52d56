"""What competes for a lock in a campaign: acquires, reads, computes, writes and releases, again and again.

Promise: it uses the public names only, as an honest program does, and records each operation before it begins and after
it ends. It freezes and kills its process where the plan says so, since only the process knows where it stands; the
conductor, which reads its standard output, wakes it.
"""

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import fencelock
from fencelock_lab.campaigns import clocks
from fencelock_lab.campaigns.faults import (
    ACQUIRED,
    AIMED_NAP_TTLS,
    BETWEEN,
    EARLY_RELEASE,
    FORGET,
    LEAVING,
    NAP,
    READING,
    WRITTEN,
    Fault,
    fault_of,
    nap_point,
)
from fencelock_lab.campaigns.history import (
    ACQUIRE,
    CUT,
    DELAY,
    FAIL,
    FREEZE,
    INFO,
    JUMP,
    KILL,
    LOSE,
    LOST,
    NS_PER_S,
    OK,
    PARTITION,
    READ,
    RELEASE,
    RESTORE,
    STRAY,
    WRITE,
)
from fencelock_lab.campaigns.recorder import Recorder, boottime_ns
from fencelock_lab.campaigns.settings import UNTOLD, CampaignSettings
from fencelock_lab.campaigns.target import Enforced, Rewindable
from fencelock_lab.campaigns.targets import make_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fencelock_lab.campaigns.target import TargetState
    from fencelock_lab.proxy import Proxy

FREEZING, NAPPING, WORKED, ENDED = "freezing", "napping", "worked", "ended"
"""What it says on standard output: that it freezes now, for how many seconds at most; that it has read, and takes its
time before it writes; that all of a tenure's writes were accepted; that a tenure is over."""
_WAIT_TTLS = 8
_IMPATIENT_TTLS = (0.0, 0.2)
"""The timeouts of threads that share a source, beside the usual one: some do not wait, or give up soon."""
_LONGER_TTL = 4 / 3
"""What every second of several threads asks for, in ttls, so that one source keeps leases of two lengths."""
_TTL_DECIMALS = 3
"""Every source grants leases in steps of a millisecond."""
_REST_PARTS = 10
"""Into how many parts of a ttl a competitor divides its rest after an acquire that failed, for example at a server that
is down."""


_LOSS_PATIENCE_S = 10.0
"""How long a competitor whose lease is over waits until it is told so: longer than the checker allows."""


class CompetitorOrders(Protocol):
    """What the process is told while it runs."""

    is_quiet: bool

    def take_nap(self) -> bool:
        """Return whether a nap is ordered."""


class Competitor:
    """Takes one lock, works on its resources, and gives it back, in one thread of a worker."""

    def __init__(
        self,
        settings: CampaignSettings,
        number: int,
        life: int,
        process: str,
        folder: Path,
        *,
        source: fencelock.Source,
        networks: "Mapping[str, Sequence[Proxy]]",
        orders: CompetitorOrders,
    ) -> None:
        self.number = number
        self._settings = settings
        self._process = process
        self._source = source
        self._networks = networks
        self._orders = orders
        self._tenure = life * 1_000_000  # Each life has draws of its own.
        self._fault = Fault()
        self._lock_number = settings.lock_of_worker(number)
        self._is_reentrant = settings.is_reentrant(self._lock_number)
        self._rate = settings.rate(number % settings.workers)
        self._recorder = Recorder(folder / f"{process.replace('/', '-')}.jsonl", process)
        # A recording of its own: the callback thread writes it.
        self._losses = Recorder(folder / f"{process.replace('/', '-')}-losses.jsonl", process)
        self._target = make_target(settings, self._lock_number)
        self._writes = 0
        self._is_told = threading.Event()
        self._lock = self._make_lock()

    def _make_lock(self) -> fencelock.Lock | fencelock.RLock:
        settings = self._settings
        ttl, timeout = settings.ttl, _WAIT_TTLS * settings.ttl + 1
        if settings.threads > 1:
            timeouts = (*(part * ttl for part in _IMPATIENT_TTLS), timeout)
            timeout = timeouts[self._tenure % len(timeouts)]
            ttl *= _LONGER_TTL if self.number // settings.workers % 2 else 1.0
        make_lock = self._source.rlock if self._is_reentrant else self._source.lock
        name = settings.lock(self._lock_number)
        ttl = round(ttl, _TTL_DECIMALS)
        on_lost = None if settings.control == UNTOLD else self._note_loss
        return make_lock(name, ttl=ttl, timeout=timeout, holder=self._process, on_lost=on_lost)

    def _note_loss(self, reason: str) -> None:
        """Record that this process is told of its loss; the callback thread calls it."""
        self._losses.note(LOST, victim=self._process, lock=self._settings.lock(self._lock_number), reason=reason)
        self._is_told.set()

    def hold(self) -> None:
        """Do everything that is done in one tenure."""
        self._tenure += 1
        self._is_told.clear()
        self._fault = Fault() if self._orders.is_quiet else fault_of(self._settings, self.number, self._tenure)
        if self._settings.threads > 1:
            self._lock = self._make_lock()
        lease = self._acquire()
        if lease is None:
            time.sleep(self._settings.ttl / _REST_PARTS)
            return
        if self._fault.kind == FORGET:
            self._forget(lease.token)
            return
        try:
            self._work_under(lease)
            say(f"{WORKED} {self.number}")
        except RefusedWrite:
            pass
        finally:
            if self._lock.current is not None and not lease.is_valid:
                self._is_told.wait(_LOSS_PATIENCE_S)
            while self._lock.current is not None:  # A re-entrant lock is left as often as it was entered.
                self._release(lease.token)

    def fail(self) -> None:
        """Write what went wrong to standard error: it is no part of a campaign."""
        traceback.print_exc(file=sys.stderr)

    def _work_under(self, lease: fencelock.Lease) -> None:
        proof = lease.sequencer if self._fault.is_bearer else lease
        self._stand(ACQUIRED)
        if self._fault.kind == EARLY_RELEASE:
            self._release(lease.token)
        elif self._is_reentrant:
            self._acquire()
        self._work(proof, lease.token)
        self._stand(LEAVING)

    def _work(self, proof: Any, token: int) -> None:
        target = self._target
        before = {}
        if self._fault.kind == RESTORE and isinstance(target, Rewindable):
            before = {resource: target.snapshot(resource) for resource in target.resources}
        seen = {}
        for resource in target.resources:
            seen[resource] = self._read(resource, proof, token)
            if len(seen) == 1:
                self._stand(READING)
        self._stand(BETWEEN)
        # The last one is written first: a stale holder meets the resource that a newer one reads, and seals, last.
        for resource in reversed(target.resources):
            self._write(resource, proof, token, seen[resource])
        for resource, snapshot in before.items():
            self._restore(resource, snapshot)
            # What this tenure has read and written is void now: the guard must know.
            self._write(resource, proof, token, seen[resource].after_write())

    def _restore(self, resource: str, snapshot: Any) -> None:
        """Put a resource back to what it held when this tenure began."""
        target = self._target
        assert isinstance(target, Rewindable)
        position = target.rewind(resource, snapshot)
        self._recorder.note(RESTORE, victim=self._process, resource=resource, position=position)

    # --- the operations -----------------------------------------------------------------------------------------------
    def _acquire(self) -> fencelock.Lease | None:
        name = self._lock.name
        self._recorder.invoke(ACQUIRE, lock=name)
        lease = None
        with self._recorded(ACQUIRE, lock=name) as facts:
            lease = self._lock.acquire()
            if lease is None:
                raise RefusedWrite
            facts.update({"token": str(lease.token)} | self._until(lease))
        return lease

    def _release(self, token: int) -> None:
        facts = {"lock": self._lock.name, "token": str(token)}
        self._recorder.invoke(RELEASE, **facts)
        with self._recorded(RELEASE, **facts):
            self._lock.release()

    def _forget(self, token: int) -> None:
        """Drop the lease and its handle: the library has to give the lock back. Nobody is told when."""
        facts = {"lock": self._lock.name, "token": str(token)}
        self._recorder.invoke(RELEASE, **facts)
        self._lock = self._make_lock()
        self._recorder.write(INFO, RELEASE, **facts, error="forgotten")

    def _read(self, resource: str, proof: Any, token: int) -> "TargetState":
        facts = {"resource": resource, "token": str(token)}
        self._recorder.invoke(READ, **facts)
        with self._recorded(READ, **facts) as more:
            seen = self._target.read(proof, resource)
            more.update({"position": seen.position} | self._until(proof))
        return seen

    def _write(self, resource: str, proof: Any, token: int, seen: "TargetState") -> None:
        self._writes += 1
        name = f"{self._process}-{self._writes}"
        facts = {"resource": resource, "token": str(token), "write": name}
        self._recorder.invoke(WRITE, **facts, position=seen.position + 1)
        with self._recorded(WRITE, **facts) as more:
            with self._target.writing(proof, resource, seen, name, token):
                self._stand(WRITTEN)
            more.update(self._until(proof))

    def _stray(self, resource: str) -> None:
        """Write without a token, and expect to be refused."""
        target = self._target
        assert isinstance(target, Enforced)
        self._recorder.invoke(STRAY, resource=resource)
        with self._recorded(STRAY, resource=resource):
            target.write_unfenced(resource)

    @contextmanager
    def _recorded(self, kind: str, **facts: Any) -> "Iterator[dict[str, Any]]":
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
            # An error of the client may come from the commit, too: only the guard's errors can be definite.
            self._recorder.write(INFO, kind, **facts, error=type(error).__name__)
            if kind in {READ, WRITE}:
                raise RefusedWrite from error
        else:
            self._recorder.write(OK, kind, **facts)

    def _until(self, proof: Any) -> dict[str, int]:
        """Return the true time until which a lease may be relied on; nothing if it is over, or for a bare sequencer."""
        if isinstance(proof, fencelock.Sequencer):
            return {}
        # The clock is read first: a process that is frozen in between claims less, never more.
        now_ns = boottime_ns()
        remaining = proof.remaining() / self._rate
        return {"until": now_ns + int(remaining * NS_PER_S)} if remaining > 0 else {}

    # --- the faults ---------------------------------------------------------------------------------------------------
    def _stand(self, point: str) -> None:
        """Stand at a point of the tenure, where the plan may have a fault for this process."""
        fault = self._fault
        if fault.kind in {None, RESTORE, EARLY_RELEASE, FORGET} or fault.point != point:
            if point == nap_point(self._tenure) and self._orders.take_nap():
                self._nap(AIMED_NAP_TTLS * self._settings.ttl)
            return
        self._fault = Fault()  # With two resources a process stands at some points twice.
        if fault.kind == NAP:
            self._nap(fault.seconds)
        elif fault.kind == FREEZE:
            say(f"{FREEZING} {fault.seconds}")
            self._recorder.note(FREEZE, victim=self._process, point=point)
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.kind == KILL:
            self._recorder.note(KILL, victim=self._process, point=point)
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == JUMP:
            clocks.jump(fault.seconds)
            self._recorder.note(JUMP, victim=self._process, point=point, seconds=fault.seconds)
        elif fault.kind == STRAY:
            self._stray(self._target.resources[0])
        elif fault.side in self._networks:
            self._disturb(point, fault)

    def _disturb(self, point: str, fault: Fault) -> None:
        """Disturb the ways to one side: to all of its servers, or to one."""
        assert fault.kind is not None
        ways = self._networks[fault.side]
        facts = {"side": fault.side, "seconds": fault.seconds}
        if fault.server is not None and len(ways) > 1:
            number = fault.server % len(ways)
            ways, facts = ways[number : number + 1], facts | {"server": number}
        self._recorder.note(fault.kind, victim=self._process, point=point, **facts)
        for way in ways:
            if fault.kind == PARTITION:
                way.partition(fault.seconds)
            elif fault.kind == DELAY:
                way.delay(fault.seconds)
            elif fault.kind == CUT:
                way.cut()
            else:
                way.drop_next("requests" if fault.kind == LOSE else "replies")

    @staticmethod
    def _nap(seconds: float) -> None:
        """Take its time: an earlier holder that is frozen is woken into this very moment."""
        say(NAPPING)
        time.sleep(seconds)


class RefusedWrite(Exception):  # noqa: N818 - it ends a tenure, and nothing is wrong
    """The tenure is over: an operation of it was refused, or its outcome is unknown."""


def say(words: str) -> None:
    """Tell the conductor."""
    os.write(1, f"{words}\n".encode())
