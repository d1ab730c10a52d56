"""`fencelock locks` and `show`: the locks of a source, once, or (`--watch`) as they change.

Promise: nothing is changed. The token shown is the last one issued, whose lease may be over.
"""

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import click

import fencelock
from fencelock.cli.errors import NoSuchLockError
from fencelock.cli.options import json_option, lock_argument, source_option
from fencelock.cli.output import emit, printable, table, token_text

WATCH_EVERY_S = 1.0
Locks = Mapping[str, fencelock.LockInfo]


@click.command()
@source_option
@click.option("--watch", "is_watched", is_flag=True, help="Show changes until Ctrl-C: a line each, if piped or JSON.")
@json_option
def locks(source: str | None, is_watched: bool, as_json: bool) -> None:
    """List the locks: last token, time left, waiters, holder.

    \b
    Examples:
      fencelock locks --source sqlite:////var/lib/app/locks.db
      fencelock locks --watch
      fencelock locks --watch --json >> locks.log
    """
    with fencelock.connect(source) as connected:
        if is_watched:
            _watch(connected, as_json)
        found = list(connected.locks())
    emit([_lock_as_json(info) for info in found], as_json, _table(found))


def _watch(source: fencelock.Source, as_json: bool) -> NoReturn:
    """Look once a second: redraw a terminal, or print a line for each lock that another holder or waiter has."""
    is_redrawn = sys.stdout.isatty() and not as_json
    before: dict[str, fencelock.LockInfo] = {}
    while True:
        now = {info.name: info for info in source.locks()}
        if is_redrawn:
            click.clear()
            click.echo(_table(now.values()))
        else:
            for info in changes(before, now):
                emit(_lock_as_json(info), as_json, _lock_as_line(info))
        before = now
        time.sleep(WATCH_EVERY_S)


def changes(
    before: Mapping[str, fencelock.LockInfo], now: Mapping[str, fencelock.LockInfo]
) -> list[fencelock.LockInfo]:
    """Return the locks that have another token, holder or waiter than before; a deleted one has none of them."""
    gone = [fencelock.LockInfo(name, None, None, 0.0, None, ()) for name in before.keys() - now.keys()]
    return [*(info for name, info in now.items() if _state(info) != _state(before.get(name))), *gone]


def _state(info: fencelock.LockInfo | None) -> object:
    return info and (info.token, info.holder, info.waiters)


def _lock_as_line(info: fencelock.LockInfo) -> str:
    held = "free" if info.holder is None else f"held by {printable(info.holder)}, left {time_left(info)}"
    token = token_text(info.token) or "-"
    return f"{time.strftime('%H:%M:%S')}  {printable(info.name)}  token {token}  {held}  waiters {len(info.waiters)}"


def _table(found: Iterable[fencelock.LockInfo]) -> str:
    return table(("LOCK", "TOKEN", "LEFT", "WAITERS", "HOLDER"), map(_row, found))


@click.command()
@lock_argument
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
