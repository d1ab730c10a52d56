"""`fencelock install` and `uninstall`: the two halves of fencelock's schema, the source of tokens and the guard.

Promise: both are safe to repeat, and reach every half before they change any. `uninstall` removes nothing while a lock
is held or waited for, or a table is protected, unless --force is given, and looks at everything that it is to remove
before it removes anything.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import click

import fencelock
from fencelock._api.guard import inspect_resources
from fencelock._api.lock_options import resolve_url
from fencelock.cli.errors import InUseError
from fencelock.cli.options import json_option, source_option
from fencelock.cli.output import emit, printable
from fencelock.protocol.stores import GuardStore, RemovableStore, SourceStore, SQLGuardStore
from fencelock.stores.registry import guard_store, shown_url, source_store

guards_option = click.option(
    "--guard", "guards", metavar="URL", multiple=True, help="Where the guard's half is; may be repeated."
)


SHOWN_NAMES = 3
NOTHING_THERE = "nothing of fencelock's was there"
SOURCE, GUARD = "source of tokens", "guard"


class Half(NamedTuple):
    """One half of the schema: what it is, its URL as the user wrote it, and its store."""

    what: str
    url: str
    store: SourceStore | GuardStore

    @property
    def shown(self) -> str:
        """The URL without a password."""
        return printable(shown_url(self.store.url))


def _halves(source: str | None, guards: tuple[str, ...]) -> list[Half]:
    """Return the halves that the options mean: the guard's is in the database of --source if no --guard is given,
    --guard alone means no source, and without options no guard is made beside the default source.
    """
    named = [Half(GUARD, url, guard_store(url)) for url in guards]
    if guards and source is None:
        return named
    url = resolve_url(source)
    half = Half(SOURCE, url, source_store(url))
    return [half] if source is None else [half, *(named or _guard_beside(url))]


def _guard_beside(url: str) -> Iterator[Half]:
    """Yield the guard's half in a source's own database, if that is one that can protect tables."""
    try:
        store = guard_store(url)
    except fencelock.UnknownSchemeError:
        return
    if isinstance(store, SQLGuardStore):
        yield Half(GUARD, url, store)


def _print(halves: list[Half], changed: list[Half], as_json: bool, state: str) -> None:
    sources = [half.shown for half in changed if half.what == SOURCE]
    data = {
        "source": sources[0] if sources else None,
        "guards": [half.shown for half in changed if half.what == GUARD],
    }
    lines = [f"{half.what} at {half.shown}: {state if half in changed else NOTHING_THERE}" for half in halves]
    emit(data, as_json, "\n".join(lines))


@click.command()
@source_option
@guards_option
@json_option
def install(source: str | None, guards: tuple[str, ...], as_json: bool) -> None:
    """Create fencelock's schema: the source of tokens, and the guard.

    The source's half is made at --source, and the guard's half in the same database, or at each --guard
    URL. With --guard alone, only the guard's half is made; with neither, only the source's, at the default
    source. SQLite creates its own at first use, a guard's in a file that exists; on a server only this
    command and `fencelock protect` do. Safe to repeat, also concurrently.

    \b
    Examples:
      fencelock install --source postgresql://db/app
      fencelock install --source postgresql://db/locks --guard postgresql://db/app
    """
    halves = _halves(source, guards)
    _check_reached(halves)
    for half in halves:
        half.store.install()
    _print(halves, halves, as_json, "ready")


def _check_reached(halves: list[Half]) -> None:
    """Raise the error of a half that cannot be reached, or is another version's, before any half is made."""
    sources = {half.url for half in halves if half.what == SOURCE}
    for half in halves:
        if half.what == GUARD and half.url in sources:
            continue  # Its file may be made with the source's half.
        if isinstance(half.store, RemovableStore):
            half.store.is_installed()
        with suppress(fencelock.SchemaError):  # It is to be made.
            if half.what == GUARD:
                inspect_resources(half.url)
            elif not isinstance(half.store, RemovableStore):
                with fencelock.connect(half.url) as connected:
                    connected.describe()


@click.command()
@source_option
@guards_option
@click.option("--force", is_flag=True, help="Also while locks are held, or tables are protected.")
@json_option
def uninstall(source: str | None, guards: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Remove everything that fencelock made in a database.

    Takes the same options as `install`, and removes what that makes: tables, functions, triggers, with all
    marks, tokens and keys. Refused while a lock is held or a table is protected: run `fencelock
    unprotect` first, or give --force, after which nothing refuses a stale writer. Stop every program that
    uses the locks before. A SQLite file itself stays.

    \b
    Example:
      fencelock uninstall --source postgresql://db/app
    """
    if source is None and not guards:
        raise click.UsageError("say what to uninstall: --source URL, --guard URL, or both")
    halves = _halves(source, guards)
    # Each is asked, also under --force: another version's schema is not touched.
    installed = [half for half in halves if _removable(half).is_installed()]
    if not force:
        for half in installed:
            _check_unused(half)
    for half in halves:
        _removable(half).check_removal()
    removed = [half for half in halves if _removable(half).uninstall()]
    _print(halves, removed, as_json, "removed")


def _removable(half: Half) -> RemovableStore:
    store: object = half.store
    if not isinstance(store, RemovableStore):
        raise fencelock.UnsupportedError(
            f"{half.shown} is not emptied by this command: delete fencelock's keys, nodes, items or files there with "
            f"the store's own client, as docs/how-to/upgrade-and-remove.md shows"
        )
    return store


def _check_unused(half: Half) -> None:
    """Raise InUseError if a lock is held or waited for, or a table is protected."""
    if half.what == GUARD:
        used = [one.table for one in inspect_resources(half.url).protections]
        problem, remedy = "tables are protected", "run `fencelock unprotect` for their resources"
    else:
        with fencelock.connect(half.url) as connected:
            used = [info.name for info in connected.locks() if info.is_held or info.waiters]
        problem, remedy = "locks are held or waited for", "stop their holders"
    if used:
        more = f" and {len(used) - SHOWN_NAMES} more" if len(used) > SHOWN_NAMES else ""
        names = ", ".join(map(printable, used[:SHOWN_NAMES]))
        raise InUseError(f"{half.shown}: {problem} ({names}{more}): {remedy}, or give --force. Nothing was removed")


COMMANDS = [install, uninstall]
