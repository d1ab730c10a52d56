"""`fencelock rights`, `grant`, `revoke` and `unpoison`: which roles may write to a resource; curing a poisoned mark.

Promise: each change is kept in the store's audit. `unpoison` takes the rights and ends the sessions of the roles that
it is given before it moves a mark, so that a forger who goes on changes nothing.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fencelock._api.guard import inspect_resources, operate_on
from fencelock._api.validation import check_roles
from fencelock._flows import rights as flows
from fencelock.cli.errors import complain
from fencelock.cli.marks import guard_of, read_source
from fencelock.cli.options import json_option, reason_option, resource_option, source_option
from fencelock.cli.output import emit, printable, table
from fencelock.model import check_reason, check_resource_name, default_holder
from fencelock.stores.errors import keeps_no_rights
from fencelock.stores.registry import EXTRAS, guard_url

if TYPE_CHECKING:
    from fencelock.protocol.guard_requests import Right

_NEEDED_BESIDES = {
    "mysql": "EXECUTE on the routines fencelock_…",
    "postgres": "USAGE on the schema fencelock, by GRANT USAGE ON SCHEMA fencelock TO …",
}
_PATTERN_HELP = "The resource, or a prefix that ends in `*` for all that begin with it."


def role_option(*, is_required: bool, help_text: str) -> Callable[[Any], Any]:
    """Add `--role ROLE`, which may be repeated, passed as `roles`."""
    return click.option("--role", "roles", metavar="ROLE", multiple=True, required=is_required, help=help_text)


@click.command()
@click.argument("url")
@resource_option("Only the rights that cover this resource.", is_required=False)
@json_option
def rights(url: str, resource: str | None, as_json: bool) -> None:
    """List which roles have a right to which resources at URL.

    \b
    Example:
      fencelock rights postgresql://db/app --resource reports
    """
    _print_rights(url, as_json, resource)


@click.command()
@click.argument("url")
@resource_option(_PATTERN_HELP)
@role_option(is_required=True, help_text="A role of the database; may be repeated.")
@json_option
def grant(url: str, resource: str, roles: tuple[str, ...], as_json: bool) -> None:
    """Let roles of the database at URL seal and present a resource.

    A new install lets nobody but its owner seal a resource or present a token. Give the role of each
    application the resources that it writes, and no others: a role that may seal a resource can also keep its
    rightful holder out. Safe to repeat. The role also needs rights of the database, which this command does
    not grant: on the tables, on PostgreSQL USAGE on the schema (GRANT USAGE ON SCHEMA fencelock TO app), and on
    MySQL EXECUTE on the routines.

    \b
    Examples:
      fencelock grant postgresql://db/app --resource reports --role app
      fencelock grant postgresql://db/app --resource 'order:*' --role shop
    """
    operate_on(url, flows.grant((check_resource_name(resource),), check_roles(roles), default_holder()))
    _print_rights(url, as_json)


@click.command()
@click.argument("url")
@resource_option(_PATTERN_HELP)
@role_option(is_required=True, help_text="The role; may be repeated.")
@reason_option(is_required=True)
@json_option
def revoke(url: str, resource: str, roles: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Take the right to a resource from roles.

    Takes every right that covers the resource, so also one on a prefix of its name. A session of the
    role is refused at its next seal or guarded block.

    \b
    Example:
      fencelock revoke postgresql://db/app --resource reports --role app --reason 'moved'
    """
    names = (check_resource_name(resource),)
    for role in check_roles(roles):
        if not operate_on(url, flows.revoke(names, role, default_holder(), check_reason(reason))):
            complain(_had_no_right(role, resource))
    _print_rights(url, as_json)


@click.command()
@click.argument("url")
@resource_option("The resource whose mark was poisoned.")
@click.option("--lock", metavar="L", help="The lock that it belongs to.  [default: the one that it is bound to now]")
@role_option(is_required=False, help_text="A role that the forger used; may be repeated.")
@source_option
@reason_option(is_required=True)
@json_option
def unpoison(
    url: str, resource: str, lock: str | None, roles: tuple[str, ...], source: str | None, reason: str, as_json: bool
) -> None:
    """Undo what a forger did to a mark, and stop the forger.

    A mark is poisoned when somebody sealed the resource with a token that its source never issued: every
    rightful holder is refused. This takes the rights of each --role, ends its sessions, sets the mark to the
    source's last token at most, and binds it again to the lock and the source. The holder of the lock has to
    acquire it again. Grant the right again when the role's password has been changed.

    \b
    Example:
      fencelock unpoison postgresql://db/app --resource reports --role app \\
          --source postgresql://db/locks --reason 'app was broken into'
    """
    guard = guard_of(url, inspect_resources(url, resource), resource, lock)
    cured = guard.unpoison(*roles, source=read_source(source), reason=reason)
    mark, left = guard.mark(), inspect_resources(url, resource).rights
    data = {
        "resource": resource,
        "lock": mark.lock,
        "token": str(mark.token),
        "rights_taken": [right._asdict() for right in cured.rights],
        "rights_left": [right._asdict() for right in left],
        "sessions_ended": cured.sessions,
        "was": [{"lock": before.lock, "token": str(before.token)} for before in cured.marks],
    }
    lines = [f"took from {printable(right.role)}: {printable(right.resource)}" for right in cured.rights]
    lines += [_had_no_right(role, resource) for role in sorted(set(roles)) if not _lost_a_right(role, cured.rights)]
    lines += [f"still has a right: {printable(right.role)}, to {printable(right.resource)}" for right in left]
    lines += [f"ended sessions: {cured.sessions}"] if roles else []
    lines += [f"the mark was {before.token}, of lock {printable(before.lock)}" for before in cured.marks]
    lines.append(f"the mark of {printable(resource)} is {mark.token}, of lock {printable(mark.lock)}")
    if not roles:
        lines.append("No --role was given: the forger can poison the mark again.")
    emit(data, as_json, "\n".join(lines))


def needed_besides(url: str) -> str:
    """Return the rights of the database at URL that a role needs besides fencelock's."""
    own = _NEEDED_BESIDES.get(EXTRAS.get(url.partition("://")[0].lower(), ""))
    return f"{own}, and rights on the tables" if own else "rights on the tables"


def _lost_a_right(role: str, taken: "tuple[Right, ...]") -> bool:
    """Return whether a right of the role was taken, at MySQL also one from certain hosts."""
    return any(right.role == role or right.role.startswith(f"{role}@") for right in taken)


def _had_no_right(role: str, resource: str) -> str:
    return (
        f"{printable(role)} had no right of its own to {printable(resource)}: check the name. It may still write as a "
        f"member of a role that has one, or as the owner"
    )


def _print_rights(url: str, as_json: bool, resource: str | None = None) -> None:
    seen = inspect_resources(url, resource)
    if not seen.keeps_rights:
        raise keeps_no_rights(guard_url(url))
    found = seen.rights
    text = table(("RESOURCE", "ROLE"), found) if found else "no role but the owner has a right here"
    emit([right._asdict() for right in found], as_json, text)


COMMANDS = [rights, grant, revoke, unpoison]
