"""Commands that other installed packages add to `fencelock`, by entry points in the group `fencelock.commands`.

Promise: entry points are read only for the help and for a command that is not built in, so `run` starts fast. A
package cannot replace a built-in command. An entry point that cannot be loaded is one line in the help and one line
when it is called; it never breaks the help or shows a traceback.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from fencelock._install import install_lab

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "fencelock.commands"
LAB_COMMANDS = ("demo", "verify")
"""The commands of fencelock-lab: without it they are known by name only."""


class UnusableCommand(click.Command):
    """Stands for a command that cannot be loaded; calling it says why."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, short_help=f"Cannot be loaded: `fencelock {name}` says why.")
        self._problem = problem

    def make_context(self, *_: Any, **__: Any) -> click.Context:
        """Raise UsageError, before any argument is looked at."""
        raise click.UsageError(self._problem)


def names(built_in: Collection[str]) -> list[str]:
    """Return the names of the commands that installed packages add, sorted."""
    return sorted({point.name for point in _entry_points()} - {*built_in})


def load(name: str) -> click.Command | None:
    """Return the command that an installed package offers under this name; None if there is none."""
    points = [point for point in _entry_points() if point.name == name]
    if points:
        return _load(name, points)
    if name in LAB_COMMANDS:
        problem = f"`fencelock {name}` is in the package fencelock-lab, which is not installed: {install_lab()}"
        return UnusableCommand(name, problem)
    return None


def _entry_points() -> "list[EntryPoint]":
    # Imported here because it takes tens of milliseconds, and `fencelock run` does not need it.
    from importlib.metadata import entry_points

    # A package that is found twice on sys.path offers the same object twice.
    return list(dict.fromkeys(entry_points(group=GROUP)))


def _load(name: str, points: "list[EntryPoint]") -> click.Command:
    origins = sorted({point.value for point in points})
    if len(origins) > 1:
        return UnusableCommand(
            name, f"several packages offer `fencelock {name}` ({', '.join(origins)}): uninstall all but one"
        )
    try:
        command = points[0].load()
    except Exception as error:  # Importing another package's module may raise anything.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return UnusableCommand(
            name,
            f"`fencelock {name}` is offered by {origins[0]!r}, which cannot be loaded ({reason}): install what that "
            f"package needs, or uninstall it",
        )
    if not isinstance(command, click.Command):
        return UnusableCommand(
            name,
            f"`fencelock {name}` is offered by {origins[0]!r}, which is not a click command but "
            f"{type(command).__name__}: update or uninstall that package",
        )
    return command
