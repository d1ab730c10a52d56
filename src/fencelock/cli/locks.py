"""`fencelock locks`, `show` and `purge`: what a source knows of its locks.

Promise: only `purge` changes something. The token shown is the last one issued, which may be spent already.
"""

from typing import Any

import click

import fencelock
from fencelock.cli.errors import NoSuchLockError
from fencelock.cli.options import json_option, source_option
from fencelock.cli.output import emit, printable, table, token_text


@click.command()
@source_option
@json_option
def locks(source: str | None, as_json: bool) -> None:
    """List the locks: last token, time left, waiters, holder.

    \b
    Example:
      fencelock locks --source sqlite:////var/lib/app/locks.db
    """
    with fencelock.connect(source) as connected:
        found = list(connected.locks())
    headings = ("LOCK", "TOKEN", "LEFT", "WAITERS", "HOLDER")
    emit([_described(info) for info in found], as_json, table(headings, map(_row, found)))


@click.command()
@click.argument("name")
@source_option
@json_option
def show(name: str, source: str | None, as_json: bool) -> None:
    """Show one lock: who holds it, for how long, and who waits.

    Exits with 1 if there is no such lock.

    \b
    Example:
      fencelock show nightly-report --json
    """
    with fencelock.connect(source) as connected:
        info = connected.info(name)
    check_known(info)
    emit(_described(info), as_json, _story(info))


@click.command()
@source_option
@json_option
def purge(source: str | None, as_json: bool) -> None:
    """Forget the locks that nobody holds or waits for.

    Their tokens stay spent: a lock that comes back goes on above them.
    """
    with fencelock.connect(source) as connected:
        count = connected.purge()
    emit({"purged": count}, as_json, f"{count} forgotten")


def check_known(info: fencelock.LockInfo) -> None:
    """Raise NoSuchLockError unless the source has ever heard of this lock, as far as it remembers."""
    if not info.is_known:
        raise NoSuchLockError(f"no such lock: {printable(info.name)} (`fencelock locks` lists those there are)")


def time_left(info: fencelock.LockInfo) -> str:
    """Return for how long a held lock is held yet; other programs' locks may have no lease that could tell."""
    return "unknown" if info.ttl is None else f"{info.remaining:.1f} s"


def _described(info: fencelock.LockInfo) -> dict[str, Any]:
    return {
        "lock": info.name,
        "token": token_text(info.token),
        "holder": info.holder,
        "remaining": None if info.is_held and info.ttl is None else info.remaining,
        "ttl": info.ttl,
        "waiters": list(info.waiters),
    }


def _row(info: fencelock.LockInfo) -> tuple[str, ...]:
    return (
        info.name,
        token_text(info.token) or "-",
        time_left(info) if info.is_held else "-",
        str(len(info.waiters)),
        info.holder or "-",
    )


def _story(info: fencelock.LockInfo) -> str:
    lines = [("lock", info.name), ("token", token_text(info.token) or "-")]
    if info.holder is not None:
        of_ttl = "" if info.ttl is None else f" of {info.ttl:g} s"
        lines += [("holder", info.holder), ("left", time_left(info) + of_ttl)]
    else:
        lines += [("holder", "nobody")]
    lines += [("waiter", waiter) for waiter in info.waiters]
    return "\n".join(f"{label:<8}{printable(value)}" for label, value in lines)


COMMANDS = [locks, show, purge]
