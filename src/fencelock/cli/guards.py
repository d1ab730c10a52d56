"""`fencelock protect`, `unprotect`, `rebind` and `marks`: set up and inspect the enforcement of a resource.

Promise: `marks` without --lower and --raise-to changes nothing. Each command that removes enforcement, or moves a mark
in a way that no lease can, needs a reason, which the store keeps in its audit.
"""

from collections.abc import Callable, Iterator
from typing import Any

import click

import fencelock
from fencelock._api.guard import inspect_resources
from fencelock._api.validation import check_roles
from fencelock.cli.options import json_option, reason_option, source_option
from fencelock.cli.output import emit, printable, table, token_text
from fencelock.model import check_lock_name, check_resource_name
from fencelock.protocol.guard_requests import ENFORCE, OBSERVE, Observation, ResourceReport
from fencelock.protocol.stores import PolicyGuardStore, PolicySourceStore
from fencelock.stores.registry import guard_store, guard_url, shown_url, source_store


def resource_option(help_text: str, *, is_required: bool = True) -> Callable[[Any], Any]:
    """Add `--resource R`."""
    return click.option("--resource", metavar="R", required=is_required, help=help_text)


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
@click.option("--roles", metavar="ROLE", multiple=True, help="A role that may write, as by `grant`; may be repeated.")
@click.option(
    "--print-policy",
    is_flag=True,
    help="Only print what lets the roles write there, at etcd and ZooKeeper; with --source, also what lets them lock.",
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

    From then on the tables accept writes only inside `with guard.transaction(lease)`, from any
    language or console. With --mode observe, the database only counts the writes that it would
    refuse; `fencelock marks URL` shows them. Going from observe to enforce needs --source, the
    source of the lock: the current holder of the lock must then acquire it again. Safe to repeat.

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
    if not tables:
        raise click.UsageError("name a table to protect: --table T")
    guard = fencelock.guard(url, resource=resource, lock=lock)
    if roles:
        # First: a store without rights refuses this, and then nothing is protected either.
        guard_store(url).install()
        guard.grant(*roles)
    guard.protect(*tables, mode=mode, source=_read_source_if_named(source))
    seen = inspect_resources(url, resource)
    lines = [f"resource {printable(resource)} belongs to lock {printable(lock)}"]
    lines += [f"table {printable(one.table)}: {_IN_FORCE[one.mode]}" for one in seen.protections]
    emit(_marks_as_json(seen), as_json, "\n".join(lines))


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
        _marks_as_json(seen),
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
    emit(_marks_as_json(inspect_resources(url, resource)), as_json, text)


@click.command()
@click.argument("url")
@resource_option("Only this resource.", is_required=False)
@click.option("--lower", "lower_to", metavar="N", type=int, help="Lower the mark to N.  [needs --reason]")
@click.option(
    "--raise-to", "raise_to", metavar="SOURCE", help="Raise the mark to SOURCE's last token.  [needs --reason]"
)
@click.option("--implausible", is_flag=True, help="Also to a token that no source can have issued by now.")
@reason_option(is_required=False)
@json_option
def marks(
    url: str,
    resource: str | None,
    lower_to: int | None,
    raise_to: str | None,
    implausible: bool,
    reason: str | None,
    as_json: bool,
) -> None:
    """Show what the resources at URL have promised, or move a mark.

    A mark is the highest token that a resource has seen: it refuses every lower one. After a restore of
    URL from a backup, raise its marks before clients use it again, and the marks at every other URL of the
    same lock: a holder may have read data that the restore undid, and be about to write it elsewhere. SOURCE
    is the URL of the locks' source. Without --resource, --raise-to raises the mark of every resource at URL.
    Lower a mark only if it contains a token that no source has issued.

    \b
    Examples:
      fencelock marks sqlite:////srv/app.db
      fencelock marks sqlite:////srv/app.db --raise-to sqlite:////srv/locks.db \\
          --reason 'restored the backup of Monday'
      fencelock marks sqlite:////srv/app.db --resource reports --lower 41 \\
          --reason 'poisoned by a test'
    """
    _check_move(resource, lower_to, raise_to, implausible, reason)
    seen = inspect_resources(url, resource)
    if lower_to is not None and resource is not None:
        guard_of(url, seen, resource).lower(lower_to, reason=str(reason))
    if raise_to is not None:
        info = read_source(raise_to)
        for name in _all_resources(url, seen, resource):
            guard_of(url, seen, name).raise_to(info, reason=str(reason), implausible=implausible)
    if resource is not None:
        _check_known(url, seen, resource)
    seen = inspect_resources(url, resource)
    emit(_marks_as_json(seen), as_json, _marks_as_text(url, seen))


def _check_move(
    resource: str | None, lower_to: int | None, raise_to: str | None, implausible: bool, reason: str | None
) -> None:
    is_move = lower_to is not None or raise_to is not None
    if lower_to is not None and raise_to is not None:
        raise click.UsageError("write either --lower N or --raise-to SOURCE")
    if lower_to is not None and resource is None:
        raise click.UsageError("--lower moves one mark: name it with --resource R")
    if is_move and not reason:
        raise click.UsageError("moving a mark by hand needs a reason, which is kept: add --reason TEXT")
    if implausible and raise_to is None:
        raise click.UsageError("--implausible goes with --raise-to")
    if reason and not is_move:
        raise click.UsageError("--reason goes with --lower or --raise-to")


def _check_known(url: str, seen: ResourceReport, resource: str) -> None:
    if not seen.marks:
        raise fencelock.GuardError(
            f"{guard_url(url)} knows no resource {resource!r}: `fencelock marks` lists the existing ones, and "
            f"`fencelock protect` creates one"
        )


def _all_resources(url: str, seen: ResourceReport, resource: str | None) -> list[str]:
    if resource is not None:
        return [resource]
    if not seen.marks:
        raise fencelock.GuardError(f"{guard_url(url)} knows no resource: there is no mark to raise")
    return [mark.resource for mark in seen.marks]


def guard_of(url: str, seen: ResourceReport, resource: str, lock: str | None = None) -> fencelock.Guard:
    """Return a guard of the resource, for this lock or the one that it is bound to."""
    _check_known(url, seen, resource)
    bound = next(mark.lock for mark in seen.marks if mark.resource == resource)
    return fencelock.guard(url, resource=resource, lock=bound if lock is None else lock)


def read_source(source: str | None) -> fencelock.SourceInfo:
    """Return the identity and counter of the source at this URL."""
    with fencelock.connect(source) as connected:
        return connected.describe()


def _read_source_if_named(source: str | None) -> fencelock.SourceInfo | None:
    return None if source is None else read_source(source)


def _marks_as_json(seen: ResourceReport) -> list[dict[str, Any]]:
    return [
        {
            "resource": mark.resource,
            "lock": mark.lock,
            "token": token_text(mark.token or None),
            "source_id": mark.source_id,
            "history_id": mark.history_id,
            "closed": mark.is_closed,
            "held": mark.digest is not None,
            "tables": [{"table": one.table, "mode": one.mode} for one in _for_resource(seen.protections, mark)],
            "observed": [_observation_as_json(one) for one in _for_resource(seen.observations, mark)],
        }
        for mark in seen.marks
    ]


def _for_resource(found: tuple[Any, ...], mark: fencelock.Mark) -> list[Any]:
    return [one for one in found if one.resource == mark.resource]


def _observation_as_json(one: Observation) -> dict[str, Any]:
    return {
        "table": one.table or None,
        "kind": one.kind,
        "times": one.times,
        "first_at": one.first_at,
        "last_at": one.last_at,
        "role": one.role,
        "application": one.application,
        "address": one.address,
    }


def _marks_as_text(url: str, seen: ResourceReport) -> str:
    if not seen.marks:
        return f"{guard_url(url)} holds no marks: `fencelock protect`, or the first seal, creates one"
    rows = [
        (mark.resource, str(mark.token or "-"), _owner(mark), mark.lock, _tables(seen, mark)) for mark in seen.marks
    ]
    text = table(("RESOURCE", "MARK", "OF", "LOCK", "TABLES"), rows)
    if not seen.observations:
        return text
    heads: tuple[str, ...] = ("RESOURCE", "TABLE", "KIND", "TIMES", "LAST", "BY")
    width = len(heads) if any(map(_written_by, seen.observations)) else len(heads) - 1
    counted = [
        (one.resource, one.table or "(a lease)", one.kind, str(one.times), one.last_at, _written_by(one))[:width]
        for one in seen.observations
    ]
    return f"{text}\n\nLet through while observing:\n" + table(heads[:width], counted)


def _written_by(one: Observation) -> str:
    """Return the role, application and address of the writer, as far as the store knows them."""
    return ", ".join(filter(None, (one.role, one.application, one.address)))


def _owner(mark: fencelock.Mark) -> str:
    if mark.token == 0:
        return "nobody yet"
    if mark.digest is None:
        return "an operator"
    return "a lease, closed" if mark.is_closed else "a lease"


def _tables(seen: ResourceReport, mark: fencelock.Mark) -> str:
    return ", ".join(f"{one.table} ({one.mode})" for one in _for_resource(seen.protections, mark)) or "none"


COMMANDS = [protect, unprotect, rebind, marks]
