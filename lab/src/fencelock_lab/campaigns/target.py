"""What a campaign writes to: for each resource some counters and a list of writes, protected by the user's guard.

Promise: a write records what it was computed from, so that the list alone shows whether it was computed from everything
below it. What is made carries the run's own name, and `remove` removes it. Marks and audit entries stay, since no guard
deletes those.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import fencelock
from fencelock_lab.campaigns.settings import CampaignSettings

ROWS = 4
"""Counters among which the writes take turns: a mark on each row, instead of the resource, must not be enough."""


class TargetState(NamedTuple):
    """What a read saw: how many writes the list has, and each counter."""

    position: int
    counters: dict[int, int]

    @property
    def row(self) -> int:
        """The counter whose turn the next write is."""
        return self.position % ROWS + 1

    def after_write(self) -> "TargetState":
        """Return what the resource holds after one write."""
        return TargetState(self.position + 1, self.counters | {self.row: self.counters[self.row] + 1})


Proof = fencelock.Lease | fencelock.Sequencer
"""What a process presents: its lease, or that one's sequencer alone."""
Row = tuple[str, int, int]
"""A write in the final list: its name, its position, and its token."""
_LINE = re.compile(r"(\S+) ([0-9]+) ([1-9][0-9]*)")


def stale_error(token: int, mark: int, resource: str) -> fencelock.StaleTokenError:
    """Return the error of a guard that is no guard of fencelock's, and refuses a token."""
    message = f"resource {resource!r} refuses token {token}: its mark is {mark}"
    return fencelock.StaleTokenError(message, token=token, mark=mark, resource=resource)


@runtime_checkable
class Rewindable(Protocol):
    """A target whose resources can go back in time: it holds no other data."""

    def snapshot(self, resource: str) -> Any:
        """Return all that a resource holds, its mark included."""

    def rewind(self, resource: str, snapshot: Any) -> int:
        """Put a resource back to what it held, and return how many writes that were."""


@runtime_checkable
class Enforced(Protocol):
    """A target whose store itself refuses a write without a token."""

    def write_unfenced(self, resource: str) -> None:
        """Write without a token, as code without a guard does; UnfencedWriteError if the store refuses it."""


class Misuse(Protocol):
    """A wrong way to use a guard: what a negative control has in the place of `guard.transaction`."""

    def transaction(self, proof: Proof, resource: str, *, is_writing: bool) -> AbstractContextManager[Any]:
        """Return a block of the guard for a read or a write of the resource."""


class Target(ABC):
    """The resources of one lock, as the workers of a campaign use them. Making one opens nothing."""

    def __init__(self, settings: CampaignSettings, number: int) -> None:
        self.url = settings.guard
        self.lock = settings.lock(number)
        self.resources = settings.resources(number)
        self._settings = settings
        self._made: list[str] = []

    @contextmanager
    def holding(self) -> Iterator[fencelock.Lease]:
        """Hold the lock, as long as a slow machine may need."""
        settings = self._settings
        with (
            fencelock.connect(settings.source) as source,
            source.lock(self.lock, ttl=settings.trial_ttl, timeout=settings.patience) as lease,
        ):
            yield lease

    @property
    @abstractmethod
    def shown_url(self) -> str:
        """The guard's URL as it may be shown."""

    @abstractmethod
    def read(self, proof: Proof, resource: str) -> TargetState:
        """Return what the resource holds, as the holder of the lock sees it."""

    @abstractmethod
    def writing(
        self, proof: Proof, resource: str, seen: TargetState, name: str, token: int
    ) -> AbstractContextManager[None]:
        """Write what was computed from `seen`; the block runs between the write and the commit."""

    def create(self) -> None:
        """Make what the resources hold, and have the guard protect it."""
        for resource in self.resources:
            self.check_unused(resource)
            self._made.append(resource)
            try:
                self.make(resource)
            except fencelock.FencelockError:
                raise
            except Exception as error:  # The client's error, for example that the right to make a table is missing.
                made = ", ".join(self.made_for(resource))
                message = f"{self.shown_url}: {made} could not be made: {type(error).__name__}: {error}"
                raise fencelock.GuardError(message) from error

    def remove(self) -> list[str]:
        """Remove what was made, and return what could not be removed, with the reason."""
        left = []
        while self._made:
            resource = self._made.pop()
            try:
                self.take_away(resource)
            except Exception as error:
                if self._may_be_there(resource):
                    left.append(f"{', '.join(self.made_for(resource))}: {type(error).__name__}: {error}")
        return left

    def _may_be_there(self, resource: str) -> bool:
        """Return whether something of the resource may be there; True if that cannot be read."""
        try:
            return self.is_there(resource)
        except Exception:
            return True

    # --- how the store holds them -------------------------------------------------------------------------------------
    @abstractmethod
    def made_for(self, resource: str) -> list[str]:
        """Return the names of what is made for a resource, as the store's own tools show them."""

    @abstractmethod
    def check_unused(self, resource: str) -> None:
        """Raise GuardError if another run is using the resource, or was killed while it did."""

    @abstractmethod
    def make(self, resource: str) -> None:
        """Make what the resource holds, all counters 0 and the list empty, and have the guard protect it."""

    @abstractmethod
    def take_away(self, resource: str) -> None:
        """Undo `make`, however far it got."""

    @abstractmethod
    def is_there(self, resource: str) -> bool:
        """Return whether something of what `make` makes is there."""

    @abstractmethod
    def final(self, resource: str) -> tuple[list[Row], int]:
        """Return the writes in the order of their commits, and the sum of the counters."""


class GuardTarget(Target):
    """Resources behind a guard of the library, which the campaign itself reads and writes through its transactions."""

    def __init__(self, settings: CampaignSettings, number: int) -> None:
        super().__init__(settings, number)
        self.guard = settings.guard_of(number)
        self.misuse: Misuse | None = None
        self._stems = settings.stems(number)

    @property
    def shown_url(self) -> str:
        """The guard's URL as it may be shown."""
        return self.guard.url

    def guard_of_one(self, resource: str) -> fencelock.Guard:
        """Return a guard of one resource of the lock, for what an operator does."""
        return fencelock.guard(self.url, resource=resource, lock=self.lock)

    def transaction(self, proof: Proof, resource: str, *, is_writing: bool) -> AbstractContextManager[Any]:
        """Return the guard's block, which commits at its end if the proof is the newest holder's."""
        if self.misuse is not None:
            return self.misuse.transaction(proof, resource, is_writing=is_writing)
        return self.guard.transaction(proof)

    def read(self, proof: Proof, resource: str) -> TargetState:
        """Return what the resource holds, as the holder of the lock sees it."""
        with self.transaction(proof, resource, is_writing=False) as connection:
            return self.look(connection, resource)

    @contextmanager
    def writing(self, proof: Proof, resource: str, seen: TargetState, name: str, token: int) -> Iterator[None]:
        """Write what was computed from `seen`; the block runs between the write and the commit."""
        with self.transaction(proof, resource, is_writing=True) as connection:
            self.write(connection, resource, seen, name, token)
            yield

    @abstractmethod
    def look(self, connection: Any, resource: str) -> TargetState:
        """Read the resource."""

    @abstractmethod
    def write(self, connection: Any, resource: str, seen: TargetState, name: str, token: int) -> None:
        """Set the counter whose turn it is, and append to the list, whatever is there by now."""


def rows_of(text: str) -> list[Row]:
    """Return the lines of a text. A line that no process can have written, a part of one, is a write of its own."""
    rows: list[Row] = []
    for number, line in enumerate(text.splitlines(), 1):
        whole = _LINE.fullmatch(line)
        newest = rows[-1][2] if rows else 1
        rows.append((whole[1], int(whole[2]), int(whole[3])) if whole else (line, number, newest))
    return rows
