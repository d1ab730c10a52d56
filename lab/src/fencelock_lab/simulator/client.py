"""A simulated client: a process that takes the lock, keeps its lease, and increments the guarded resources.

Promise: the library's own `acquire`, `renewal` and `guarding` make every decision about locks and guards, driven one
request at a time. This module plays only their drivers and callers.
"""

from collections.abc import Generator
from typing import Any

from fencelock._flows import guarding, renewal
from fencelock._flows.acquire import Attempt, acquire
from fencelock._flows.tenure import Scope
from fencelock._keeper.record import RELEASED
from fencelock.errors import (
    FencelockError,
    OutcomeUnknownError,
    SealLostError,
    StaleTokenError,
    TokenCollisionError,
    WrongLockError,
)
from fencelock.protocol.guard_requests import Finish
from fencelock_lab.simulator.keeper import SimulatedKeeper, SimulatedLease
from fencelock_lab.simulator.kernel import US_PER_MS, SimulatedProcess, Sleep, Violation
from fencelock_lab.simulator.network import At, Job, Read, SimulatedNetwork, Write, perform
from fencelock_lab.simulator.oracle import ResourceOracle, SourceOracle
from fencelock_lab.simulator.resource import SimulatedResource, SimulatedSession

Body = Generator[Any, Any, Any]
LATE_WRITE_ODDS = 0.2


class TenureOverError(FencelockError):
    """The worker stops its work under this lease and acquires the lock again."""


class Habits:
    """The behaviour of one client, drawn once when it starts."""

    def __init__(self, kernel: Any, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.may_wait = kernel.chance(0.6)
        self.timeout_ms = kernel.random.choice((None, None, ttl_ms // 2, 3 * ttl_ms))
        self.longest_pause_ms = kernel.random.choice((ttl_ms // 20, ttl_ms // 2, 2 * ttl_ms, 2 * ttl_ms))
        self.rounds = kernel.between(1, 3)
        self.writes_in_one_message = kernel.chance(0.3)
        self.close_odds = kernel.random.choice((0.0, 0.5, 1.0))
        self.forget_odds = kernel.random.choice((0.0, 0.0, 0.2))


class SimulatedClient:
    """One process with a keeper and a worker."""

    def __init__(
        self,
        process: SimulatedProcess,
        network: SimulatedNetwork,
        stores: tuple[SimulatedResource, ...],
        lock: str,
        ttl_ms: int,
    ) -> None:
        self.process = process
        self.kernel = process.kernel
        self.leases: list[SimulatedLease] = []
        self.habits = Habits(self.kernel, ttl_ms)
        self._network = network
        self._lock = lock
        self._stores = stores
        self._scopes = [Scope(f"memory://{store.name}", store.resources, lock) for store in stores]
        self._keeper = SimulatedKeeper(process, network.notify, network.source.oracle.relied_on)
        self._number = 0

    def start(self) -> None:
        """Start the keeper and the worker."""
        self.process.start(self._keeper.run(), self._network.answer)
        self.process.start(self._work(), self._network.answer)

    @property
    def _places_oracle(self) -> ResourceOracle:
        return self._stores[0].oracle

    @property
    def _source_oracle(self) -> SourceOracle:
        return self._network.source.oracle

    def beliefs(self) -> list[SimulatedLease]:
        """Return the leases that this process may rely on; a dead process has none."""
        return [] if self.process.is_dead else self.leases

    # --- the worker ---------------------------------------------------------------------------------------------------
    def _work(self) -> Body:
        while True:
            yield from self._pause()
            lease = yield from self._take()
            if lease is None:
                continue
            try:
                for _ in range(self.habits.rounds):
                    yield from self._increment(lease)
                    yield from self._pause()
            except FencelockError as error:
                self._judge(error, lease)
            if self.kernel.chance(self.habits.close_odds):
                yield from self._close(lease)
            if not self.kernel.chance(self.habits.forget_odds):
                yield from self._release(lease)
            else:
                # The worker drops its last reference to the lease, so the lease is abandoned (H2).
                lease.leave_held(RELEASED)
                self._keeper.abandon(lease)
            if self.kernel.chance(LATE_WRITE_ODDS) and not lease.has_unknown_write:
                yield from self._write_late(lease)

    def _pause(self) -> Body:
        yield Sleep(self.kernel.between(1, self.habits.longest_pause_ms) * US_PER_MS)

    def _take(self) -> Generator[Any, Any, SimulatedLease | None]:
        attempt = Attempt(self._lock, self.process.name, self.habits.ttl_ms)
        try:
            grant = yield from acquire(attempt, may_wait=self.habits.may_wait, timeout_ms=self.habits.timeout_ms)
        except FencelockError:
            self._keeper.abandon(attempt)
            return None
        if grant is None:
            assert attempt.claim is not None, "it asked for the lock"
            self._source_oracle.gave_up(attempt.claim)
            return None
        lease = SimulatedLease(attempt, grant, self)
        self.kernel.trace(self.process.name, "holds {!r} with token {}", lease.lock, lease.token)
        self.leases.append(lease)
        self._keeper.add(lease, self.kernel.now_ms)
        return lease

    def _check_valid(self, lease: SimulatedLease) -> None:
        if not lease.is_believed(self.kernel.now_ms):
            raise TenureOverError("the lease is over")

    def _increment(self, lease: SimulatedLease) -> Body:
        """Read all resources, think, and write each of them; fencing protects the time in between."""
        values: dict[str, tuple[Any, ...]] = {}
        self._check_valid(lease)
        yield from self._seal_all(lease)
        for store, scope in zip(self._stores, self._scopes, strict=True):
            yield from self._transaction(lease, store, scope, read_into=values)
        yield from self._pause()
        self._number += 1
        write = (lease.claim, self._number)
        for store, scope in zip(self._stores, self._scopes, strict=True):
            self._check_valid(lease)
            new = {resource: (*values[resource], write) for resource in store.resources}
            if self.habits.writes_in_one_message:
                yield from self._send_write(lease, store, scope, new)
            else:
                yield from self._transaction(lease, store, scope, to_write=new)
            for resource in store.resources:
                self._places_oracle.confirmed(resource, write)

    def _seal_all(self, lease: SimulatedLease) -> Body:
        """Seal all resources before the first read (G2); with one store the first transaction seals them."""
        if len(self._stores) > 1:
            for store, scope in zip(self._stores, self._scopes, strict=True):
                yield from over(self._session(store), guarding.seal(scope, lease.sequencer, lease.tenure))

    def _transaction(
        self,
        lease: SimulatedLease,
        store: SimulatedResource,
        scope: Scope,
        *,
        read_into: dict[str, Any] | None = None,
        to_write: dict[str, Any] | None = None,
    ) -> Body:
        session = self._session(store)
        try:
            opened = yield from over(session, guarding.open_transaction(scope, lease.sequencer, lease.tenure))
            for resource in store.resources:
                if read_into is not None:
                    read_into[resource] = yield At(session, Read(resource))
            for resource, value in (to_write or {}).items():
                yield At(session, Write(resource, value))
            yield At(session, Finish(opened.presented))
        except FencelockError:
            session.rollback()
            raise

    def _send_write(self, lease: SimulatedLease, store: SimulatedResource, scope: Scope, new: dict[str, Any]) -> Body:
        """Write with one message, which may arrive long after its sender has given up with an unknown outcome."""
        yield Job(lambda: run_at_once(self._session(store), self._body_of_write(lease, scope, new)))

    def _body_of_write(self, lease: SimulatedLease, scope: Scope, new: dict[str, Any]) -> Body:
        opened = yield from guarding.open_transaction(scope, lease.sequencer, lease.tenure)
        for resource, value in new.items():
            yield Write(resource, value)
        yield Finish(opened.presented)

    def _session(self, store: SimulatedResource) -> SimulatedSession:
        session = SimulatedSession(store)
        # The server learns of the death a little later, so a commit in flight may arrive first.
        self.process.at_death.append(lambda: self.kernel.after(self.kernel.between(1, 500_000), session.rollback))
        return session

    def _close(self, lease: SimulatedLease) -> Body:
        for store, scope in zip(self._stores, self._scopes, strict=True):
            try:
                yield from over(self._session(store), guarding.close(scope, lease.sequencer, lease.claim, lease.tenure))
                for resource in store.resources:
                    self._places_oracle.left(lease.sequencer.digest, resource)
            except FencelockError as error:
                self._judge(error, lease)

    def _release(self, lease: SimulatedLease) -> Body:
        lease.leave_held(RELEASED)
        try:
            yield from renewal.release(lease.lock, lease.claim)
        except FencelockError:
            self._keeper.abandon(lease)

    def _write_late(self, lease: SimulatedLease) -> Body:
        """Write with the sequencer as a forgotten thread would; the oracle checks that a late write has no effect."""
        store, scope = self._stores[0], self._scopes[0]
        values: dict[str, Any] = {}
        try:
            yield from self._seal_all(lease)
            yield from self._transaction(lease, store, scope, read_into=values)
            self._number += 1
            write = (lease.claim, self._number)
            new = {resource: (*value, write) for resource, value in values.items()}
            yield from self._transaction(lease, store, scope, to_write=new)
        except FencelockError as error:
            self._judge(error, lease)

    def _judge(self, error: FencelockError, lease: SimulatedLease) -> None:
        """Raise Violation if a guard refused an operation that it must admit."""
        self.kernel.trace(self.process.name, "stops: {}: {}", type(error).__name__, error)
        match error:
            case OutcomeUnknownError():
                # A write still in flight could overtake a later write with the same token.
                lease.has_unknown_write = True
            case TokenCollisionError() if lease.claim not in self._source_oracle.doubtful:
                raise Violation(f"T1: two claims present token {lease.token}: {error}") from error
            case WrongLockError():
                raise Violation(f"G5: the only lock's lease is refused as another's: {error}") from error
            case SealLostError():
                resources = (resource for store in self._stores for resource in store.resources)
                if not any(self._places_oracle.is_lost(lease.sequencer.digest, resource) for resource in resources):
                    raise Violation(f"G9: no seal of {lease.claim} was lost: {error}") from error
            case StaleTokenError():
                is_own = self._places_oracle.is_own(error.resource, lease.sequencer.digest)
                if is_own and error.mark == error.token:
                    raise Violation(f"G1: a holder's own token is refused: {error}") from error
            case _:
                pass


def over(session: SimulatedSession, flow: Body) -> Body:
    """Run a guard's flow on a session, as `_drivers/guard.py` does: an exception leaves no transaction open."""
    step: Any = flow.send
    value: Any = None
    try:
        while True:
            request = step(value)
            try:
                value = yield At(session, request)
                step = flow.send
            except FencelockError as error:
                value = error
                step = flow.throw
    except StopIteration as done:
        return done.value
    except FencelockError:
        session.rollback()
        raise


def run_at_once(session: SimulatedSession, flow: Body) -> Any:
    """Run a guard's flow in one step, as a server does with a conditional write; return its error as a reply."""
    step: Any = flow.send
    value: Any = None
    try:
        while True:
            value = perform(session, step(value))
            step = flow.throw if isinstance(value, FencelockError) else flow.send
    except StopIteration as done:
        return done.value
    except FencelockError as error:
        session.rollback()
        return error
