"""What a guard takes as proof: a lease of this process, or a sequencer of anybody's.

Promise: a lease is asked whether it is still valid, and counts the guarded transactions that it must wait for; a bare
sequencer is judged by the mark alone. One tenure has one memory in this process of what it has sealed (G9), which a
lease shares with its sequencers. It lasts as long as the lease, and for a sequencer without one as long as
MAX_REMEMBERED_TENURES others do not push it out. A forked child goes on with a copy of that memory.
"""

import os
import threading
from collections import OrderedDict
from typing import Protocol
from weakref import WeakValueDictionary

from fencelock._flows.tenure import Tenure
from fencelock.errors import ConfigError
from fencelock.model import Sequencer

MAX_REMEMBERED_TENURES = 1024
"""Bare sequencers whose seals a process remembers; the least recently used is forgotten first."""


class Credential(Protocol):
    """What a guard needs of a lease."""

    @property
    def sequencer(self) -> Sequencer:
        """The portable proof."""

    @property
    def tenure(self) -> Tenure:
        """What this tenure has sealed and read."""

    def remaining(self) -> float | None:
        """Return the seconds for which the lease may be relied on; None if nobody here knows."""

    def check_valid(self) -> None:
        """Raise the error that says why the lease may not be relied on."""

    def enter_guarded(self, block: object) -> None:
        """Count a guarded transaction that begins; raise if the lease is over."""

    def leave_guarded(self, block: object) -> None:
        """Count it out, if it is counted; any thread or task may say so."""


class SequencerCredential:
    """A bare sequencer: no lease of this process stands behind it, so nothing but the mark can refuse it."""

    __slots__ = ("sequencer", "tenure")

    def __init__(self, sequencer: Sequencer, tenure: Tenure) -> None:
        self.sequencer = sequencer
        self.tenure = tenure

    def remaining(self) -> None:
        """Nothing is known here."""

    def check_valid(self) -> None:
        """Nothing is known here: the mark decides."""

    def enter_guarded(self, block: object) -> None:
        """Nobody waits for it."""

    def leave_guarded(self, block: object) -> None:
        """Nobody waits for it."""


class TenureMemory:
    """All tenures that somebody uses, and those of bare sequencers, the most recently used last."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Sequencer, Tenure] = WeakValueDictionary()
        self._kept: OrderedDict[Sequencer, Tenure] = OrderedDict()
        self.renew_lock()

    def renew_lock(self) -> None:
        """Make the lock anew: another thread may have held it when this process was forked."""
        self._lock = threading.Lock()

    def of(self, sequencer: Sequencer) -> Tenure:
        """Return what is remembered of the sequencer's tenure, for as long as somebody keeps it."""
        with self._lock:
            return self._known.setdefault(sequencer, Tenure())

    def kept(self, sequencer: Sequencer) -> Tenure:
        """Return the same, and keep it."""
        tenure = self.of(sequencer)
        with self._lock:
            self._kept[sequencer] = tenure
            self._kept.move_to_end(sequencer)
            if len(self._kept) > MAX_REMEMBERED_TENURES:
                self._kept.popitem(last=False)
        return tenure


MEMORY = TenureMemory()
os.register_at_fork(after_in_child=MEMORY.renew_lock)


def credential_of(lease: object) -> Credential:
    """Return what stands for the tenure; ConfigError if the argument is no lease and no sequencer."""
    if hasattr(lease, "enter_guarded"):
        return lease  # type: ignore[return-value]
    sequencer = lease if isinstance(lease, Sequencer) else getattr(lease, "sequencer", None)
    if not isinstance(sequencer, Sequencer):
        raise ConfigError(
            f"a guard needs a lease, as lock.acquire() returns, or a Sequencer; not {type(lease).__name__}"
        )
    return SequencerCredential(sequencer, MEMORY.kept(sequencer))
