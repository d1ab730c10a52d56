"""The simulated world with PostgreSQL's own source: its functions on a real server, and its client code.

Promise: in the database, the statements of `stores/postgres/source/functions_*.sql` make every decision; in a process,
`PostgresSourceProtocol` and `SourceIdentity` make them, on virtual time. The server's clock is wrong by days. A crash
keeps the flushed commits and some of the unflushed ones: it loses the latest commits. A server comes back after a
crash, as a backup or standby, from a dump, or as a cold copy; only an operator can notice a cold copy.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, NamedTuple, cast

import psycopg

from fencelock._flows.retry import ask_source
from fencelock.errors import FencelockError, OutcomeUnknownError, SourceUnavailableError
from fencelock.model import SourceInfo
from fencelock.protocol import source_requests as ask
from fencelock.stores import source_clock as identity
from fencelock.stores.postgres.connection.errors import map_error
from fencelock.stores.postgres.source import store as source
from fencelock.stores.postgres.source.codec import SQL
from fencelock.stores.sql import source as sql_source
from fencelock_lab.simulator.kernel import CALENDAR_S, US_PER_MS, SimulatedKernel, SimulatedProcess, Violation
from fencelock_lab.simulator.oracle import Belief
from fencelock_lab.simulator.postgres_database import SimulatedDatabase
from fencelock_lab.simulator.postgres_network import PostgresClient, PostgresNetwork, StatementMessage, store_at
from fencelock_lab.simulator.postgres_oracle import ClocklessOracle, Memory, RecoveringOracle
from fencelock_lab.simulator.source import MAX_BACKUPS, SimulatedSource
from fencelock_lab.simulator.world import SimulatedWorld

BASE_US = 1_800_000_000_000_000
MAX_SKEW_US = 10 * 86_400_000_000
CRASH_ODDS = 0.3
"""The share of worlds whose server crashes repeatedly, in addition to those that draw this fault anyway."""
CLOCK_SET_ODDS = 0.15
CALENDAR_ODDS = 0.8
"""The share of worlds whose server's clock is set while it runs; and, of the others, the share with the right year."""
_NO_TOKEN = {"FL102", "FL103"}
"""Errors with which the functions themselves refuse to issue a token twice or above the bound."""
RECOVERIES = ("recovered", "recovered", "dump", "cold")
"""How a server comes back from a copy: as a backup or standby, from a dump, or as a stopped server's folder."""


@contextmanager
def virtual_time(now_us: Callable[[], int]) -> Iterator[None]:
    """Make PostgreSQL's client code read this clock inside the block."""
    modules = (identity, source, sql_source)
    before = [vars(module)["boottime_us"] for module in modules]
    try:
        for module in modules:
            vars(module)["boottime_us"] = now_us
        yield
    finally:
        for module, original in zip(modules, before, strict=True):
            vars(module)["boottime_us"] = original


class Saved(NamedTuple):
    """A state of the source, and an observer's knowledge of it."""

    state: str
    memory: Memory


class PostgresBehindANetwork(SimulatedSource):
    """The simulated source, with PostgreSQL instead of the reference model."""

    oracle: RecoveringOracle

    def __init__(
        self, database: SimulatedDatabase, kernel: SimulatedKernel, beliefs: Callable[[], Iterable[Belief]]
    ) -> None:
        self.database = database
        self.kernel = kernel
        self.is_clock_set = kernel.chance(CLOCK_SET_ODDS)
        self.oracle = (ClocklessOracle if self.is_clock_set else RecoveringOracle)(beliefs)
        self.server = 1
        """The number of the answering server; it changes at each recovery."""
        self.is_down = False
        self.is_pooled = kernel.chance(0.2)
        self._flush_odds = kernel.random.choice((0.0, 0.1, 0.5))
        self._offset_us = BASE_US + kernel.between(-MAX_SKEW_US, MAX_SKEW_US)
        self._has_calendar = not self.is_clock_set and kernel.chance(CALENDAR_ODDS)
        database.begin_world(self._now_us, CALENDAR_S if self._has_calendar else 0)
        self._newest_epoch = 1
        self._copies: list[Saved] = []
        self._has_settled_in = False
        self.may_crash = False
        self._flushed = self._saved()

    @property
    def _now_us(self) -> int:
        return self.kernel.now_us + self._offset_us

    def set_clock(self, by_us: int) -> None:
        """Set the server's clock forward or back, as an operator does."""
        self.kernel.trace("source", "has its clock set by {} us", by_us)
        self._offset_us += by_us

    # --- requests -----------------------------------------------------------------------------------------------------
    def execute(self, message: StatementMessage) -> Any:
        """Answer a statement with its rows, or with a FencelockError."""
        if message.server not in {None, self.server}:
            return OutcomeUnknownError("the connection to the old server broke")
        if self.is_down:
            return SourceUnavailableError("the server is down")
        if message.statement == SQL.settle_in and self._has_settled_in:
            return []  # The simulation has only one session.
        self._has_settled_in = self._has_settled_in or message.statement == SQL.settle_in
        try:
            outcome = self.database.run(self._now_us, message.statement, message.parameters)
        except psycopg.Error as error:
            return self._map_error(error)
        if message.is_answer:
            reply = message.decode(outcome.rows)
            self.kernel.trace("source", "{} -> {}", message.request, reply)
            # Deadlines are in microseconds here: with rounded times a lease would end too early for the oracle.
            self.oracle.saw(message.request, reply, cast("int", Decimal(self.kernel.now_us).scaleb(-3)))
        if outcome.is_flushed or (outcome.has_changed and self.kernel.chance(self._flush_odds)):
            self.flush()
        return outcome.rows

    def _map_error(self, error: psycopg.Error) -> FencelockError:
        if error.sqlstate in _NO_TOKEN and not self.oracle.is_tainted:
            raise Violation(f"T1: the functions themselves refused a token: {error}") from error
        known = map_error(error, self.database.info)
        if known is None or error.sqlstate not in _NO_TOKEN:
            raise error
        return known

    def perform(self, request: Any) -> Any:
        """Answer an operator's request at the server itself, through a client without earlier knowledge."""
        operations = PostgresClient(store_at(self.database.url), self).answer(request)
        try:
            message = next(operations)
            while True:
                answer = self.execute(message)
                message = operations.throw(answer) if isinstance(answer, FencelockError) else operations.send(answer)
        except StopIteration as done:
            return done.value

    # --- crashes and restores -----------------------------------------------------------------------------------------
    def flush(self) -> None:
        """Make the present state survive a crash, if this world can have one."""
        if self.may_crash:
            self._flushed = self._saved()

    def _saved(self) -> Saved:
        return Saved(self.database.save(), self.oracle.memory())

    def stop(self) -> None:
        """Crash, and lose the unflushed commits."""
        self.kernel.trace("source", "crashes, and loses what it had not flushed")
        self.is_down = True
        self._come_back(self._flushed, "recovered")

    def start(self) -> None:
        """Accept connections again. Leases with surviving rows continue; the next grant begins a history."""
        self.is_down = False
        self.kernel.trace("source", "has recovered")

    def back_up(self) -> None:
        """Keep a copy of the present state; a backup or a standby has only the flushed commits."""
        if not self.oracle.is_tainted:
            self._flushed = self._saved()
            self._copies = [*self._copies[-MAX_BACKUPS + 1 :], self._flushed]
            self.kernel.trace("source", "is copied")

    def restore(self, *, is_noticed: bool) -> None:
        """Go back to a copy. Only for a cold copy must an operator notice and raise the epoch."""
        if not self._copies:
            return
        # The counter alone does not tell which tokens were issued after the copy was made.
        how = self.kernel.random.choice(RECOVERIES if self._has_calendar else ("cold",))
        copy = self.kernel.random.choice(self._copies)
        self.kernel.trace("source", "goes back to a copy: {}", how)
        self._come_back(copy, how)
        if how == "cold":
            self.oracle.regressed()
            if is_noticed:
                self.raise_epoch()

    def _come_back(self, saved: Saved, how: str) -> None:
        self._newest_epoch = max(self._newest_epoch, self._info.epoch)
        self.server += 1
        self.database.load(saved.state, how)
        self.oracle.recovered(saved.memory)
        self.flush()

    def raise_epoch(self) -> None:
        """Raise the epoch until it is above every earlier one."""
        info = self._info
        self._newest_epoch = max(self._newest_epoch, info.epoch) + 1
        while info.epoch < self._newest_epoch:
            info = self.perform(ask.RaiseEpoch(info.history_id, "an operator"))
        self.oracle.everything_ended()
        self.oracle.is_tainted = False
        self.flush()

    @property
    def _info(self) -> SourceInfo:
        [row] = self.database.run(
            self._now_us, "SELECT source_id, epoch, history_id, 0, 0 FROM fencelock.source", ()
        ).rows
        return SourceInfo(*row)


class PostgresWorld(SimulatedWorld):
    """A world with PostgreSQL's source in its own database."""

    network: PostgresNetwork
    source: PostgresBehindANetwork

    def __init__(self, seed: int, *, database: SimulatedDatabase, is_tracing: bool = False) -> None:
        super().__init__(seed, is_tracing=is_tracing)
        self.source = PostgresBehindANetwork(
            database, self.kernel, lambda: [lease for client in self.clients for lease in client.beliefs()]
        )
        self.network = PostgresNetwork(self.kernel, self.source)

    def run(self) -> None:
        """Run the world on virtual time."""
        with virtual_time(lambda: self.kernel.now_us):
            super().run()

    def _plan(self, fault: Callable[[], None], about_every_ms: int) -> None:
        self.source.may_crash = self.source.may_crash or fault == self._restart_source
        super()._plan(fault, about_every_ms)

    def _faults_of_stores(self) -> tuple[Callable[[], None], ...]:
        """Draw crashes or clock changes, not both: telling lost claims from later ones needs a steady clock (H4)."""
        faults = (*super()._faults_of_stores(), self._purge)
        if self.source.is_clock_set:
            return tuple(fault for fault in faults if fault not in self._losses)
        return faults

    @property
    def _losses(self) -> tuple[Callable[[], None], ...]:
        return self._restart_source, self._restore_source, self._fail_over

    def _draw_faults(self) -> None:
        super()._draw_faults()
        if self.source.is_clock_set:
            self._plan(self._set_clock, self.ttl_ms)
        elif self.kernel.chance(CRASH_ODDS):
            self._plan(self._restart_source, self.ttl_ms)

    def _set_clock(self) -> None:
        furthest_us = self.kernel.random.choice((self.ttl_ms * US_PER_MS, 4 * self.ttl_ms * US_PER_MS, MAX_SKEW_US))
        self.source.set_clock(self.kernel.between(-furthest_us, furthest_us))

    def _purge(self) -> None:
        """Purge the source, as `fencelock purge` does."""

        def body() -> Any:
            try:
                yield from ask_source(ask.Purge())
            except FencelockError as error:
                self.kernel.trace("operator", "gives up: {}", error)

        SimulatedProcess(self.computer, "operator").start(body(), self.network.answer)
