"""The simulated source: a reference model behind a network, with a disk that keeps only flushed state.

Promise: the source flushes only `ReserveBlock` and `RaiseEpoch`, the minimum that T1 demands; an unclean stop loses
everything after the last flush. The source shows each reply to the oracle in the step that decides it.
"""

from typing import Any

from fencelock.errors import FencelockError, SourceUnavailableError
from fencelock.model import MEMORY_SOURCE_PREFIX
from fencelock.protocol import source_requests as ask
from fencelock.stores.memory.reference_model import ReferenceModel
from fencelock_lab.simulator.kernel import SimulatedKernel
from fencelock_lab.simulator.oracle import SourceOracle

MAX_BACKUPS = 4


class SimulatedSource:
    """One source, its disk and its backups."""

    ledger_type = ReferenceModel

    def __init__(self, kernel: SimulatedKernel, oracle: SourceOracle, block_tokens: int) -> None:
        self.kernel = kernel
        self.oracle = oracle
        self.ledger = self.ledger_type(MEMORY_SOURCE_PREFIX + "s", "h-1", block_tokens=block_tokens)
        self.is_down = False
        self._durable = self.ledger.copy()
        self._backups: list[ReferenceModel] = []
        self._newest_epoch = self.ledger.epoch

    def perform(self, request: Any) -> ask.SourceReply | FencelockError:
        """Answer a request with a reply or a FencelockError."""
        if self.is_down:
            return SourceUnavailableError("the source is down")
        try:
            reply = self.ledger.answer(request, self.kernel.now_us)
        except FencelockError as error:
            return error
        self.kernel.trace("source", "{} -> {}", request, reply)
        if self.has_flushed(request):
            self.flush()
        self.oracle.saw(request, reply, self.kernel.now_ms)
        return reply

    def has_flushed(self, request: Any) -> bool:
        """Return whether everything up to this request is on the disk."""
        return type(request) in {ask.ReserveBlock, ask.RaiseEpoch}

    def flush(self) -> None:
        """Make the present state survive an unclean stop."""
        self._durable = self.ledger.copy()

    def head(self, lock: str) -> str | None:
        """Return the digest of the claim at the head of the queue, which a release notifies."""
        return self.ledger.head(lock, self.kernel.now_ms)

    def stop(self) -> None:
        """Stop uncleanly, and lose the unflushed state."""
        self.kernel.trace("source", "stops, and loses what it had not flushed")
        self.is_down = True
        self.ledger = self._durable.copy()

    def start(self) -> None:
        """Start after an unclean stop: tokens continue above the bound, and no lock is held."""
        self.ledger.start_again(self.kernel.now_us, "the source was started again")
        self.flush()
        self.is_down = False
        self.oracle.everything_ended()
        self.kernel.trace("source", "starts; tokens go on above {}", self.ledger.counter)

    def back_up(self) -> None:
        """Keep a copy of the present state."""
        self._backups = [*self._backups[-MAX_BACKUPS + 1 :], self.ledger.copy()]
        self.kernel.trace("source", "is backed up at token {}", self.ledger.counter)

    def restore(self, *, is_noticed: bool) -> None:
        """Go back to a backup; an operator who notices raises the epoch."""
        if not self._backups:
            return
        self.ledger = self.kernel.random.choice(self._backups).copy()
        self.kernel.trace("source", "is restored to token {}, epoch {}", self.ledger.counter, self.ledger.epoch)
        self.oracle.regressed()
        if is_noticed:
            self.raise_epoch()
        self.flush()

    def raise_epoch(self) -> None:
        """Raise the epoch until it is above every earlier one."""
        wanted = self._newest_epoch + 1
        while self.ledger.epoch < wanted:
            self.perform(ask.RaiseEpoch(self.ledger.history_id, "an operator"))
        self._newest_epoch = wanted
        self.oracle.everything_ended()
        self.oracle.is_tainted = False
