"""Resources behind what a user has written, a guard or a service: each one is a text, to which every write adds a line.

Promise: nothing is asked of the guard but what `TextGuard` says. Each text is emptied at the beginning and at the end,
by the holder of its lock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Protocol, runtime_checkable

import fencelock
from fencelock_lab.campaigns.settings import OWN_GUARD, CampaignSettings
from fencelock_lab.campaigns.target import Proof, Row, Target, TargetState, rows_of


@runtime_checkable
class TextGuard(Protocol):
    """What `fencelock verify --guard python:MODULE:NAME` attacks: storage of your own that checks fencing tokens.

    `NAME` is called without arguments in each process, possibly several times. A proof has a `token`, and the blocks of
    `fencelock.guard` take it as it is.
    """

    def read(self, proof: Proof, resource: str) -> str:
        """Return the resource's text, which is empty at first; StaleTokenError if a newer holder is known.

        From now on the resource must refuse every lower token.
        """

    def write(self, proof: Proof, resource: str, text: str) -> None:
        """Replace the resource's text; StaleTokenError if a newer holder is known, and the text is as before.

        If any other error is raised, the text may have been replaced or not.
        """


class TextTarget(Target):
    """The resource of one lock, as a text with a line for each write."""

    def __init__(self, settings: CampaignSettings, number: int, guard: TextGuard) -> None:
        super().__init__(settings, number)
        self._guard = guard
        self._texts: dict[str, str] = {}

    @property
    def shown_url(self) -> str:
        """The guard's name, or the service's URL."""
        return self.url

    def read(self, proof: Proof, resource: str) -> TargetState:
        """Return how many lines the text has. The text is kept until it is written."""
        self._texts[resource] = self._guard.read(proof, resource)
        return TargetState(len(self._texts[resource].splitlines()), {})

    @contextmanager
    def writing(self, proof: Proof, resource: str, seen: TargetState, name: str, token: int) -> Iterator[None]:
        """Write the text that was read with one more line; the block runs before that."""
        text = self._next_text(resource, seen, name, token)
        yield
        self._guard.write(proof, resource, text)

    def _next_text(self, resource: str, seen: TargetState, name: str, token: int) -> str:
        return f"{self._texts[resource]}{name} {seen.position + 1} {token}\n"

    def final(self, resource: str) -> tuple[list[Row], int]:
        """Return the lines, as the next holder of the lock reads them, and their number."""
        with self.holding() as lease:
            rows = rows_of(self._guard.read(lease, resource))
        return rows, len(rows)

    # --- making and removing ------------------------------------------------------------------------------------------
    def made_for(self, resource: str) -> list[str]:
        """Return the resource's name: its text is what is made."""
        return [resource]

    def check_unused(self, resource: str) -> None:
        """Whoever runs two campaigns on one source and one guard has both fail."""

    def make(self, resource: str) -> None:
        """Empty the text."""
        with self.holding() as lease:
            self._guard.write(lease, resource, "")

    def take_away(self, resource: str) -> None:
        """Empty the text."""
        self.make(resource)

    def is_there(self, resource: str) -> bool:
        """Return whether the text has a line."""
        return bool(self.final(resource)[0])


def load_guard(name: str) -> TextGuard:
    """Return the guard of this name, `python:MODULE:NAME`; ConfigError if it cannot be had."""
    module, _, factory = name.removeprefix(OWN_GUARD).partition(":")
    try:
        guard = getattr(import_module(module), factory)()
    except Exception as error:  # Whatever a user's module raises.
        message = (
            f"--guard {name}: {type(error).__name__}: {error}. Name a class or function of a module that every process "
            f"can import, whichever folder it runs in: install it, or set PYTHONPATH"
        )
        raise fencelock.ConfigError(message) from error
    if not isinstance(guard, TextGuard):
        raise fencelock.ConfigError(f"--guard {name}: {type(guard).__name__} lacks `read` or `write`")
    return guard
