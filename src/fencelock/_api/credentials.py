"""What a guard takes as evidence of a tenure: a lease of this process, or a sequencer of any process.

Promise: a lease is asked whether it is still valid, and counts the guarded transactions that its release must wait for;
the store alone judges a bare sequencer. One tenure has one memory in this process of what it has sealed (G9), which a
lease shares with its sequencers. The memory lasts as long as the lease. Without a lease it lasts until
MAX_REMEMBERED_TENURES other sequencers have been used since. A forked child goes on with a copy of it.
"""

import threading
from collections import OrderedDict
from inspect import iscoroutine
from types import TracebackType
from typing import Protocol
from weakref import WeakValueDictionary

from fencelock._flows.tenure import Tenure
from fencelock._platform import at_fork
from fencelock.errors import ConfigError, FencelockError, GuardError
from fencelock.model import BrokenLock, Sequencer

_ASKER = "_asker"
"""The attribute of a guard's error that says for whose lease it was raised: the lock and the token."""
MAX_REMEMBERED_TENURES = 1024
"""Bare sequencers whose seals a process remembers; the least recently used is forgotten first."""


class Credential(Protocol):
    """A tenure as a guard sees it: a lease, or what stands for a sequencer without one."""

    @property
    def sequencer(self) -> Sequencer:
        """The portable proof of the tenure."""

    @property
    def tenure(self) -> Tenure:
        """What this process remembers of the tenure: what it has sealed and read."""

    @property
    def claim(self) -> str:
        """The secret of the tenure's holder, with which it closes; GuardError where only a sequencer is known."""

    def remaining(self) -> float | None:
        """Return the seconds for which the lease may be relied on; None if that is unknown in this process."""

    def check_valid(self) -> None:
        """Raise the error that says why the lease may not be relied on."""

    def enter_guarded(self, block: object) -> None:
        """Count a guarded transaction that begins; raise if the lease is over."""

    def leave_guarded(self, block: object) -> None:
        """Count a guarded transaction out if it is counted; any thread or task may do so, and more than once."""


LeaseLike = Credential | Sequencer | BrokenLock
"""What the guards' methods take as `lease`."""


class SequencerCredential:
    """A sequencer without its lease: nothing but the mark can refuse it."""

    __slots__ = ("sequencer", "tenure")

    def __init__(self, sequencer: Sequencer, tenure: Tenure) -> None:
        self.sequencer = sequencer
        self.tenure = tenure

    @property
    def claim(self) -> str:
        """Raise GuardError: a sequencer shows a hash of the claim."""
        raise GuardError(
            f"a sequencer does not close the resources of lock {self.sequencer.lock!r} (token {self.sequencer.token}): "
            f"only the holder does, by guard.close(lease) in the process that acquired the lock"
        )

    def remaining(self) -> None:
        """Return None: only the process that has the lease knows."""

    def check_valid(self) -> None:
        """Do nothing: the mark decides."""

    def enter_guarded(self, block: object) -> None:
        """Do nothing: no release waits for the block."""

    def leave_guarded(self, block: object) -> None:
        """Do nothing: no release waits for the block."""


class TenureMemory:
    """The tenures in use, and those of bare sequencers, the most recently used last."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Sequencer, Tenure] = WeakValueDictionary()
        self._kept: OrderedDict[Sequencer, Tenure] = OrderedDict()
        self.renew_lock()

    def renew_lock(self) -> None:
        """Replace the lock: another thread may have held it when this process was forked."""
        self._lock = threading.Lock()

    def of(self, sequencer: Sequencer) -> Tenure:
        """Return the memory of the sequencer's tenure, which ends with the last reference to it."""
        with self._lock:
            # Under the lock: two memories of one tenure would let one guard seal what another has read.
            return self._known.setdefault(sequencer, Tenure())

    def kept(self, sequencer: Sequencer) -> Tenure:
        """Return the memory of the sequencer's tenure, and keep a reference to it."""
        tenure = self.of(sequencer)
        with self._lock:
            self._kept[sequencer] = tenure
            self._kept.move_to_end(sequencer)
            if len(self._kept) > MAX_REMEMBERED_TENURES:
                self._kept.popitem(last=False)
        return tenure


MEMORY = TenureMemory()
at_fork(after_in_child=MEMORY.renew_lock)


def credential_of(lease: object) -> Credential:
    """Return the credential of a lease or a sequencer; ConfigError if the argument is neither."""
    if hasattr(lease, "enter_guarded"):
        return lease  # type: ignore[return-value]
    sequencer = lease if isinstance(lease, Sequencer) else getattr(lease, "sequencer", None)
    if not isinstance(sequencer, Sequencer):
        raise ConfigError(
            f"a guard needs a lease, as lock.acquire() returns, or a Sequencer, as Sequencer.parse(text) returns, and "
            f"sequencer() in a handler; not {_told(lease)}"
        )
    return SequencerCredential(sequencer, MEMORY.kept(sequencer))


def _told(mistaken: object) -> str:
    """Return what this is, which is no credential, and the mistake that it comes from, if it is a usual one."""
    if mistaken is None:
        return "None, which acquire() returns when it has not obtained the lock: test for it before the block"
    if iscoroutine(mistaken):
        return f"a coroutine: await {mistaken.__qualname__}(…)"
    return type(mistaken).__name__


def note_asker(error: FencelockError, credential: Credential) -> None:
    """Note for whose lease an error is raised, unless that is noted already."""
    vars(error).setdefault(_ASKER, (credential.sequencer.lock, credential.sequencer.token))


class asking:  # noqa: N801 - read as a function, and no generator: it surrounds each step of each block
    """A block in which a guard works for a lease: its error notes that. The user's code is no part of it."""

    __slots__ = ("_credential",)

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, FencelockError):
            note_asker(error, self._credential)


def is_asked_by(error: FencelockError, credential: Credential) -> bool:
    """Return whether a guard has raised the error for this lease; an error of anything else has no note."""
    return bool(vars(error).get(_ASKER) == (credential.sequencer.lock, credential.sequencer.token))
