"""`fencelock locks` and `show`: the locks of a source.

Promise: nothing is changed. The token shown is the last one issued, whose lease may be over.
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
    emit([_lock_as_json(info) for info in found], as_json, table(headings, map(_row, found)))


@click.command()
@click.argument("name")
@source_option
@json_option
def show(name: str, source: str | None, as_json: bool) -> None:
    """Show one lock: its holder, the time left, and the waiters.

    Exits with 1 if there is no such lock.

    \b
    Example:
      fencelock show nightly-report --json
    """
    with fencelock.connect(source) as connected:
        info = connected.info(name)
    check_known(info)
    emit(_lock_as_json(info), as_json, _lock_as_text(info))


def check_known(info: fencelock.LockInfo) -> None:
    """Raise NoSuchLockError unless the source has a record of this lock."""
    if not info.is_known:
        raise NoSuchLockError(f"no such lock: {printable(info.name)} (`fencelock locks` lists the existing ones)")


def time_left(info: fencelock.LockInfo) -> str:
    """Return the time left of a held lock as text; it is unknown for other programs' locks without a lease."""
    return "unknown" if info.ttl is None else f"{info.remaining:.1f} s"


def _lock_as_json(info: fencelock.LockInfo) -> dict[str, Any]:
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


def _lock_as_text(info: fencelock.LockInfo) -> str:
    lines = [("lock", info.name), ("token", token_text(info.token) or "-")]
    if info.holder is not None:
        of_ttl = "" if info.ttl is None else f" of {info.ttl:g} s"
        lines += [("holder", info.holder), ("left", time_left(info) + of_ttl)]
    else:
        lines += [("holder", "nobody")]
    lines += [("waiter", waiter) for waiter in info.waiters]
    return "\n".join(f"{label:<8}{printable(value)}" for label, value in lines)


COMMANDS = [locks, show]
