"""`fencelock protect`, `unprotect` and `rebind`: set up the enforcement of a resource.

Promise: each command that removes enforcement, or binds a resource to another lock, needs a reason, which the store
keeps in its audit.
"""

from collections.abc import Callable, Iterator
from typing import Any

import click

import fencelock
from fencelock._api.guard import inspect_resources
from fencelock._api.preparing import prepare
from fencelock._api.validation import check_roles
from fencelock.cli.marks import guard_of, marks_as_json, read_source, rights_to
from fencelock.cli.options import json_option, reason_option, resource_option, source_option
from fencelock.cli.output import emit, printable, showing_work
from fencelock.cli.rights import needed_besides
from fencelock.model import check_lock_name, check_resource_name
from fencelock.protocol.guard_requests import ENFORCE, OBSERVE
from fencelock.protocol.stores import PolicyGuardStore, PolicySourceStore
from fencelock.stores.registry import guard_store, shown_url, source_store


def table_option(*, is_required: bool, help_text: str) -> Callable[[Any], Any]:
    """Add `--table T`, which may be repeated, passed as `tables`."""
    return click.option("--table", "tables", metavar="T", multiple=True, required=is_required, help=help_text)


@click.command()
@click.argument("url")
@resource_option("The resource: the tables that one mark protects together.")
@click.option("--lock", metavar="L", required=True, help="The lock whose holder may write to it.")
@table_option(is_required=False, help_text="A table to protect; may be repeated.")
@click.option(
    "--mode",
    type=click.Choice([ENFORCE, OBSERVE]),
    default=ENFORCE,
    show_default=True,
    help="Refuse writes, or count them.",
)
@click.option("--source", metavar="URL", help="The lock's source: needed to go from observe to enforce.")
@click.option("--roles", metavar="ROLE", multiple=True, help="A role to give a right, as by `grant`; may be repeated.")
@click.option(
    "--print-policy",
    is_flag=True,
    help="Only print what lets the roles write there, outside SQL; with --source, also what lets them lock.",
)
@json_option
def protect(  # noqa: PLR0913, PLR0917 - each is an option of its own
    url: str,
    resource: str,
    lock: str,
    tables: tuple[str, ...],
    mode: str,
    source: str | None,
    roles: tuple[str, ...],
    print_policy: bool,
    as_json: bool,
) -> None:
    """Make the database at URL refuse writes without a token.

    From then on each write to the tables must present the newest token that was sealed at the
    resource, as `with guard.transaction(lease)` does, from any language or console. With --mode
    observe, the database only counts the writes that it would refuse; `fencelock marks URL` shows
    them. Going from observe to enforce needs --source, the source of the lock: the current holder
    of the lock must then acquire it again. Safe to repeat.

    A store without triggers has no tables to protect. Where no lease may create the mark of a resource,
    this command creates it, without --table. If the mark was lost, name --source: the new mark refuses
    every token that was issued until then.

    \b
    Examples:
      fencelock protect sqlite:////srv/app.db --resource reports \\
          --lock nightly --table reports --table lines --mode observe
      fencelock protect sqlite:////srv/app.db --resource reports \\
          --lock nightly --table reports --source sqlite:////srv/locks.db
      fencelock protect etcd://etcd1/app --resource reports --lock nightly \\
          --roles app --print-policy
    """
    if print_policy:
        scripts = list(_policies(url, resource, lock, source, roles))
        emit(scripts, as_json, "\n".join(scripts))
        return
    store = guard_store(url)
    if not tables and store.capabilities.enforced_by == "store":
        raise click.UsageError("name a table to protect: --table T")
    guard = fencelock.guard(url, resource=resource, lock=lock)
    if roles:
        # First: a store without rights refuses this, and then nothing is protected either.
        prepare(store, tables)
        guard.grant(*roles)
    of_tables = f"protecting {len(tables)} tables: each is read once, and waits for open writers"
    with showing_work(of_tables if tables else "creating the mark"):
        guard.protect(*tables, mode=mode, source=_read_source_if_named(source))
    seen = inspect_resources(url, resource)
    lines = [f"resource {printable(resource)} belongs to lock {printable(lock)}"]
    lines += [f"its mark is {mark.token}: it takes higher tokens" for mark in seen.marks if not tables]
    lines += [f"table {printable(one.table)}: {_IN_FORCE[one.mode]}" for one in seen.protections]
    granted = rights_to(resource, seen)
    lines += [f"role {printable(right.role)}: may seal, present and close it" for right in granted]
    lines += [f"Not granted by fencelock: {needed_besides(url)}"] if granted else []
    emit(marks_as_json(seen), as_json, "\n".join(lines))


def _policies(url: str, resource: str, lock: str, source: str | None, roles: tuple[str, ...]) -> Iterator[str]:
    """Yield the scripts that limit these roles to the resource, and to the locks of the source if one is named."""
    if not roles:
        raise click.UsageError("name the roles that may write: --roles ROLE")
    guard = guard_store(url)
    if not isinstance(guard, PolicyGuardStore):
        raise _no_policy(url)
    yield guard.policy(check_resource_name(resource), check_lock_name(lock), *check_roles(roles))
    if source is not None:
        locks = source_store(source)
        if not isinstance(locks, PolicySourceStore):
            raise _no_policy(source)
        yield locks.policy(*roles)


def _no_policy(url: str) -> fencelock.UnsupportedError:
    return fencelock.UnsupportedError(
        f"{shown_url(url)} has no policy to print: `fencelock grant` gives rights at PostgreSQL and MySQL, and the "
        f"permissions of its file limit who writes to SQLite"
    )


_IN_FORCE = {
    ENFORCE: "refuses writes that present no token",
    OBSERVE: "counts writes that present no token, and lets them through",
}


@click.command()
@click.argument("url")
@resource_option("The resource that the tables belong to.")
@table_option(is_required=False, help_text="A table; may be repeated.  [default: all tables of the resource]")
@reason_option(is_required=True)
@json_option
def unprotect(url: str, resource: str, tables: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Allow every client to write to the tables again.

    The mark stays, so that the resource can be protected again later.

    \b
    Example:
      fencelock unprotect sqlite:////srv/app.db --resource reports \\
          --table lines --reason 'moved to another database'
    """
    before = inspect_resources(url, resource)
    guard_of(url, before, resource).unprotect(*tables, reason=reason)
    seen = inspect_resources(url, resource)
    left = {one.table for one in seen.protections}
    lines = [
        f"table {printable(one.table)}: accepts writes from every client"
        for one in before.protections
        if one.table not in left
    ]
    emit(
        marks_as_json(seen),
        as_json,
        "\n".join(lines) or f"resource {printable(resource)} protects the same tables as before",
    )


@click.command()
@click.argument("url")
@resource_option("The resource to move.")
@click.option("--lock", metavar="L", required=True, help="The lock that the resource will belong to.")
@source_option
@reason_option(is_required=True)
@json_option
def rebind(url: str, resource: str, lock: str, source: str | None, reason: str, as_json: bool) -> None:
    """Move a resource to another lock, or to another source.

    Tokens of two sources cannot be compared, so the new source's counter must not be below the
    resource's mark: if it is, run `fencelock epoch --raise` on the new source first. Leases of the old
    lock can no longer write to the resource.

    \b
    Example:
      fencelock rebind sqlite:////srv/app.db --resource reports \\
          --lock nightly --source sqlite:////srv/new.db --reason 'new locks'
    """
    before = inspect_resources(url, resource)
    guard = guard_of(url, before, resource)
    guard.rebind(lock, source=read_source(source), reason=reason)
    text = f"resource {printable(resource)} belongs to lock {printable(lock)}, with tokens above {guard.mark().token}"
    emit(marks_as_json(inspect_resources(url, resource)), as_json, text)


def _read_source_if_named(source: str | None) -> fencelock.SourceInfo | None:
    return None if source is None else read_source(source)


COMMANDS = [protect, unprotect, rebind]
