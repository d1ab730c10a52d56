"""One simulated world: a seed draws it, faults strike it, and then it comes to rest.

Promise: after the faults every process is killed and the network works again. One ttl later a new client takes the
lock at once and increments every resource: no abandoned lease or waiter is left, and every acknowledged increment is
present. The seed also draws which faults it may use, so that common faults do not hide rare ones.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from fencelock._flows import admin, renewal
from fencelock._flows.tenure import Scope
from fencelock.errors import FencelockError
from fencelock.model import Sequencer, one_way
from fencelock_lab.simulator.client import SimulatedClient, over
from fencelock_lab.simulator.kernel import US_PER_MS, Computer, Line, SimulatedKernel, SimulatedProcess, Violation
from fencelock_lab.simulator.network import Odds, SimulatedNetwork
from fencelock_lab.simulator.oracle import ResourceOracle, SourceOracle
from fencelock_lab.simulator.resource import SimulatedResource, SimulatedSession
from fencelock_lab.simulator.source import SimulatedSource

LOCK = "lock"
TORMENT_TTLS = 5
REST_TTLS = 4
IDLE_LIMIT_MS = 1500
WATCH_MS = 200
TOPOLOGIES: tuple[tuple[tuple[str, ...], ...], ...] = ((("r",),), (("r", "s"),), (("r",), ("s",)), (("r",), ("s",)))
"""The resources in each store: one, two in one transaction, or two that are written one after the other."""
TTLS_MS = (300, 600, 1000)


class SimulationOutcome(NamedTuple):
    """The result of one seed."""

    seed: int
    violation: str | None
    steps: int
    tokens: int
    increments: int
    lines: tuple[Line, ...]


class SimulatedWorld:
    """Clients, one source, one or two guarded stores, and the faults that strike them."""

    source_type = SimulatedSource

    def __init__(self, seed: int, *, is_tracing: bool = False) -> None:
        self.kernel = kernel = SimulatedKernel(seed, is_tracing=is_tracing)
        self.ttl_ms = kernel.random.choice(TTLS_MS)
        self.clients: list[SimulatedClient] = []
        self.computer = Computer(kernel)
        oracle = SourceOracle(lambda: [lease for client in self.clients for lease in client.beliefs()])
        self.source = self.source_type(kernel, oracle, block_tokens=kernel.random.choice((2, 5, 1000)))
        self.network = SimulatedNetwork(kernel, self.source)
        topology = kernel.random.choice(TOPOLOGIES)
        self.resource_oracle = ResourceOracle(resource for resources in topology for resource in resources)
        self.stores = tuple(
            SimulatedResource(kernel, self.resource_oracle, f"store{number}", resources, LOCK)
            for number, resources in enumerate(topology)
        )
        self.is_at_rest = False
        self._names = 0

    def run(self) -> None:
        """Inject faults, bring the world to rest, and check the final state; raise the first Violation."""
        for _ in range(self.kernel.between(2, 4)):
            self.add_client()
        self._draw_faults()
        self._watch_idleness()
        self._go_on_for(TORMENT_TTLS * self.ttl_ms)
        self._come_to_rest()
        self._check_rest()

    def add_client(self) -> SimulatedClient:
        """Start another client process."""
        self._names += 1
        process = SimulatedProcess(self.computer, f"p{self._names}")
        client = SimulatedClient(process, self.network, self.stores, LOCK, self.ttl_ms)
        self.clients = [old for old in self.clients if not old.process.is_dead] + [client]
        client.start()
        return client

    # --- faults -------------------------------------------------------------------------------------------------------
    def _draw_faults(self) -> None:
        draw, kernel = self.kernel.random, self.kernel
        odds = self.network.odds
        for name in ("request_lost", "reply_lost", "doubled", "connection_broken", "notification_lost"):
            setattr(odds, name, draw.choice((0.0, 0.0, 0.03, 0.2)))
        odds.late = draw.choice((0.0, 0.05, 0.3))
        odds.latest_ms = draw.choice((50, 300, self.ttl_ms, 3 * self.ttl_ms))
        self.computer.freeze_odds = draw.choice((0.0, 0.003, 0.02))
        self.computer.crash_odds = draw.choice((0.0, 0.0, 0.001))
        self.computer.longest_freeze_ms = draw.choice((100, self.ttl_ms, 3 * self.ttl_ms))
        for faults, odds_of_each in (
            (self._faults_of_clients(), draw.choice((0.2, 0.7))),
            (self._faults_of_stores(), draw.choice((0.0, 0.2, 0.5))),
        ):
            for fault in faults:
                if kernel.chance(odds_of_each):
                    self._plan(fault, draw.choice((self.ttl_ms, 3 * self.ttl_ms)))

    def _faults_of_clients(self) -> tuple[Callable[[], None], ...]:
        return (self._freeze_somebody, self._kill_somebody, self._cut_network)

    def _faults_of_stores(self) -> tuple[Callable[[], None], ...]:
        return (
            self._restart_source,
            self._back_up_source,
            self._restore_source,
            self._fail_over,
            self._raise_epoch,
            self._break_lock,
            self._restore_store,
            self._restart_store,
            self._write_unfenced,
        )

    def _plan(self, fault: Callable[[], None], about_every_ms: int) -> None:
        def strike() -> None:
            if not self.is_at_rest:
                fault()
                self._plan(fault, about_every_ms)

        self.kernel.after(self.kernel.between(1, 2 * about_every_ms) * US_PER_MS, strike)

    def _freeze_somebody(self) -> None:
        self.kernel.random.choice(self.clients).process.freeze(self.kernel.between(1, 3 * self.ttl_ms))

    def _kill_somebody(self) -> None:
        self.kernel.random.choice(self.clients).process.kill()
        self.add_client()

    def _cut_network(self) -> None:
        process = self.kernel.random.choice(self.clients).process
        self.network.cut(process, self.kernel.between(1, 2 * self.ttl_ms))

    def _restart_source(self) -> None:
        if not self.source.is_down:
            self.source.stop()
            self.kernel.after(self.kernel.between(1, self.ttl_ms) * US_PER_MS, self.source.start)

    def _back_up_source(self) -> None:
        if not self.source.is_down:
            self.source.back_up()

    def _fail_over(self) -> None:
        """Fail over to a replica that lacks the last grants, while their holders still rely on them."""
        self._back_up_source()
        self.kernel.after(self.kernel.between(1, self.ttl_ms) * US_PER_MS, self._restore_source)

    def _restore_source(self) -> None:
        if not self.source.is_down and not self.is_at_rest:
            self.source.restore(is_noticed=self.kernel.chance(0.5))

    def _raise_epoch(self) -> None:
        if not self.source.is_down:
            self.source.raise_epoch()

    def _restore_store(self) -> None:
        store = self.kernel.random.choice(self.stores)
        if self.kernel.chance(0.5):
            store.back_up()
        else:
            store.restore()

    def _restart_store(self) -> None:
        self.kernel.random.choice(self.stores).throw_out()

    def _write_unfenced(self) -> None:
        """Write without a guard; the store must refuse the write or be busy."""
        store = self.kernel.random.choice(self.stores)
        session = SimulatedSession(store)
        try:
            session.put_alone(store.resources[0], "value", ("unfenced",))
        except FencelockError:
            return

    def _break_lock(self) -> None:
        """Mint a token and raise the marks to it, as `fencelock break --guard URL` does."""
        operator = SimulatedProcess(self.computer, "operator")
        claim = f"break-{self.kernel.steps}"

        def body() -> Any:
            try:
                broken = yield from renewal.break_lock(LOCK, claim, "operator", "it hangs")
                sequencer = Sequencer(broken.source_id, broken.history_id, LOCK, broken.token, one_way(claim))
                for store in self.stores:
                    scope = Scope(f"memory://{store.name}", store.resources, LOCK)
                    yield from over(SimulatedSession(store), admin.outrank(scope, sequencer, "operator", "it hangs"))
                    for resource in store.resources:
                        self.resource_oracle.outranked(resource, broken.token)
            except FencelockError as error:
                self.kernel.trace("operator", "gives up: {}", error)

        operator.start(body(), self.network.answer)

    def _watch_idleness(self) -> None:
        """End transactions that stay idle, as a guarded transaction asks its server to (G3)."""
        for store in self.stores:
            if store.writer is not None and self.kernel.now_us - store.last_heard_us > IDLE_LIMIT_MS * US_PER_MS:
                store.throw_out()
        self.kernel.after(WATCH_MS * US_PER_MS, self._watch_idleness)

    # --- rest ---------------------------------------------------------------------------------------------------------
    def _come_to_rest(self) -> None:
        """End the faults: kill every process, let messages in flight arrive, and let every lease expire."""
        kernel = self.kernel
        kernel.trace("world", "comes to rest")
        self.network.odds = Odds()
        self.computer.freeze_odds = self.computer.crash_odds = 0.0
        self.is_at_rest = True
        for client in self.clients:
            client.process.kill()
        self._go_on_for(REST_TTLS * self.ttl_ms + IDLE_LIMIT_MS)
        if self.source.oracle.is_tainted:
            self.source.raise_epoch()
        self._go_on_for(self.ttl_ms + 1)

    def _go_on_for(self, duration_ms: int) -> None:
        self.kernel.run(self.kernel.now_us + duration_ms * US_PER_MS)

    def _check_rest(self) -> None:
        before = self.resource_oracle.confirmations
        last = self.add_client()
        last.habits.may_wait = False
        last.habits.longest_pause_ms = 1
        for _ in range(REST_TTLS):
            if self.resource_oracle.confirmations == before:
                self._go_on_for(self.ttl_ms)
        last.process.kill()
        if not last.leases:
            raise Violation("H2, H5: an abandoned lease or waiter outlived its ttl: nobody can take the lock")
        if self.resource_oracle.confirmations == before:
            raise Violation("G1: a fresh holder, alone in the world, cannot write")
        for store in self.stores:
            for resource, value in store.values().items():
                self.resource_oracle.check_acknowledged(resource, value)


MakeWorld = Callable[..., SimulatedWorld]
"""Makes a world from a seed and `is_tracing`."""


def simulate(seed: int, *, is_tracing: bool = False, world_type: MakeWorld = SimulatedWorld) -> SimulationOutcome:
    """Run one seed; equal seeds give equal outcomes on every machine."""
    world = world_type(seed, is_tracing=is_tracing)
    violation = None
    try:
        world.run()
    except Violation as error:
        violation = str(error)
        world.kernel.trace("oracle", "{}", violation)
    except Exception as error:
        error.add_note(f"in the simulated world of seed {seed}, after {world.kernel.steps} steps")
        raise
    tokens, increments = world.source.oracle.grants, world.resource_oracle.confirmations
    return SimulationOutcome(seed, violation, world.kernel.steps, tokens, increments, tuple(world.kernel.lines))
