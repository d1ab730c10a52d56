"""`fencelock marks`: show the marks and floors at a URL, with all that is kept of the resources, or move one.

Promise: without --lower and --raise-to nothing changes. A mark or a floor is moved with a reason, which the store keeps
in its audit.
"""

from typing import Any

import click

import fencelock
from fencelock._api.guard import inspect_resources
from fencelock.cli.errors import complain
from fencelock.cli.options import json_option, reason_option, resource_option
from fencelock.cli.output import emit, printable, table, token_text
from fencelock.protocol.guard_requests import Floor, Observation, ResourceReport, Right
from fencelock.stores.registry import guard_store, guard_url


@click.command()
@click.argument("url")
@resource_option("Only this resource.", is_required=False)
@click.option("--floor", "floor_of", metavar="SOURCE_ID", help="With --lower: the floor of this source.")
@click.option("--lower", "lower_to", metavar="N", type=int, help="Lower the mark to N, or the floor.  [needs --reason]")
@click.option(
    "--raise-to",
    "raise_to",
    metavar="SOURCE",
    help="Raise marks, and the floor, to SOURCE's last token.  [needs --reason]",
)
@click.option("--implausible", is_flag=True, help="Also to a token that no source can have issued by now.")
@reason_option(is_required=False)
@json_option
def marks(
    url: str,
    resource: str | None,
    floor_of: str | None,
    lower_to: int | None,
    raise_to: str | None,
    implausible: bool,
    reason: str | None,
    as_json: bool,
) -> None:
    """Show what resources at URL have promised; move a mark or floor.

    A mark is the highest token that a resource has seen: it refuses every lower one. A floor is the highest
    token of a source up to which marks were purged: it stands in for them. After a restore of
    URL from a backup, raise its marks before clients use it again, and the marks at every other URL of the
    same lock: a holder may have read data that the restore undid, and be about to write it elsewhere. SOURCE
    is the URL of the locks' source. Without --resource, --raise-to raises the mark of every resource at URL
    that gets its tokens from SOURCE, and SOURCE's floor, for resources that the backup lacks.
    Lower a mark or a floor only if it contains a token that no source has issued.

    \b
    Examples:
      fencelock marks sqlite:////srv/app.db
      fencelock marks sqlite:////srv/app.db --raise-to sqlite:////srv/locks.db \\
          --reason 'restored the backup of Monday'
      fencelock marks sqlite:////srv/app.db --resource reports --lower 41 \\
          --reason 'poisoned by a test'
    """
    _check_move(resource, floor_of, lower_to, raise_to, implausible, reason)
    seen = inspect_resources(url, resource)
    if lower_to is not None and floor_of is not None:
        _lower_floor(url, seen, Floor(floor_of, lower_to), str(reason))
    elif lower_to is not None and resource is not None:
        guard_of(url, seen, resource).lower(lower_to, reason=str(reason))
    if raise_to is not None:
        _raise_all(url, seen, resource, read_source(raise_to), str(reason), implausible=implausible)
    if resource is not None:
        check_has_mark(url, seen, resource)
    seen = inspect_resources(url, resource)
    floors = [{"source_id": floor.source_id, "token": token_text(floor.token)} for floor in seen.floors]
    emit({"resources": marks_as_json(seen), "floors": floors}, as_json, _marks_as_text(url, seen))


def _check_move(
    resource: str | None,
    floor_of: str | None,
    lower_to: int | None,
    raise_to: str | None,
    implausible: bool,
    reason: str | None,
) -> None:
    is_move = lower_to is not None or raise_to is not None
    if lower_to is not None and raise_to is not None:
        raise click.UsageError("write either --lower N or --raise-to SOURCE")
    if lower_to is not None and (resource is None) == (floor_of is None):
        raise click.UsageError("--lower moves one mark or one floor: name it with --resource R or --floor SOURCE_ID")
    if floor_of is not None and lower_to is None:
        raise click.UsageError("--floor goes with --lower; --raise-to raises the floor of its source")
    if is_move and not reason:
        raise click.UsageError("moving a mark by hand needs a reason, which is kept: add --reason TEXT")
    if implausible and raise_to is None:
        raise click.UsageError("--implausible goes with --raise-to")
    if reason and not is_move:
        raise click.UsageError("--reason goes with --lower or --raise-to")


def _lower_floor(url: str, seen: ResourceReport, floor: Floor, reason: str) -> None:
    before = _floor_in(seen, floor.source_id)
    if floor.token >= before:
        raise fencelock.GuardError(
            f"source {floor.source_id!r} has floor {before} at {guard_url(url)}: nothing to lower"
        )
    fencelock.set_floor(url, *floor, reason=reason, expected=before)


def _raise_all(
    url: str,
    seen: ResourceReport,
    resource: str | None,
    source: fencelock.SourceInfo,
    reason: str,
    *,
    implausible: bool,
) -> None:
    """Raise the mark of the resource; or the floor, for the resources whose mark was not restored, and every mark of
    the source.
    """
    # Where no floor is kept, no seal creates a mark either.
    keeps_floors = guard_store(url).capabilities.spans_resources
    floor = _floor_in(seen, source.source_id)
    if resource is None and keeps_floors and floor < source.last_token:
        fencelock.set_floor(url, source.source_id, source.last_token, reason=reason, expected=floor)
    foreign = [mark for mark in seen.marks if mark.source_id not in (None, source.source_id)]
    own = [mark.resource for mark in seen.marks if mark not in foreign] if resource is None else [resource]
    # If there is no mark of this source, the first one's error says so.
    for name in own or [mark.resource for mark in foreign]:
        guard_of(url, seen, name).raise_to(source, reason=reason, implausible=implausible)
    if resource is None and foreign:
        named = ", ".join(f"{printable(mark.resource)} (source {mark.source_id})" for mark in foreign)
        complain(f"not raised, for their tokens come from other sources: {named}. Run this for their SOURCE as well")


def _floor_in(seen: ResourceReport, source_id: str) -> int:
    return dict(seen.floors).get(source_id, 0)


def check_has_mark(url: str, seen: ResourceReport, resource: str) -> None:
    """Raise GuardError unless there is a mark of the resource."""
    if not seen.marks:
        raise fencelock.GuardError(
            f"{guard_url(url)} knows no resource {resource!r}: `fencelock marks` lists the existing ones, and "
            f"`fencelock protect` creates one"
        )


def guard_of(url: str, seen: ResourceReport, resource: str, lock: str | None = None) -> fencelock.Guard:
    """Return a guard of the resource, for this lock or the one that it is bound to."""
    check_has_mark(url, seen, resource)
    bound = next(mark.lock for mark in seen.marks if mark.resource == resource)
    return fencelock.guard(url, resource=resource, lock=bound if lock is None else lock)


def read_source(source: str | None) -> fencelock.SourceInfo:
    """Return the identity and counter of the source at this URL."""
    with fencelock.connect(source) as connected:
        return connected.describe()


def marks_as_json(seen: ResourceReport) -> list[dict[str, Any]]:
    """Return what `--json` prints of the resources at a URL."""
    return [
        {
            "resource": mark.resource,
            "lock": mark.lock,
            "token": token_text(mark.token or None),
            "source_id": mark.source_id,
            "history_id": mark.history_id,
            "closed": mark.is_closed,
            "set_by": _set_by(mark),
            "tables": [{"table": one.table, "mode": one.mode} for one in _for_resource(seen.protections, mark)],
            "observed": [_observation_as_json(one) for one in _for_resource(seen.observations, mark)],
            "rights": [right._asdict() for right in rights_to(mark.resource, seen)] if seen.keeps_rights else None,
            "signatures_required": mark.resource in seen.signed,
        }
        for mark in seen.marks
    ]


def rights_to(resource: str, seen: ResourceReport) -> list[Right]:
    """Return the rights that cover a resource."""
    return [right for right in seen.rights if right.covers(resource)]


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
    text = _resources_as_text(url, seen)
    if not seen.floors:
        return text
    rows = [(floor.source_id, str(floor.token)) for floor in seen.floors]
    return f"{text}\n\nA resource without a mark takes only tokens above the floor:\n" + table(
        ("SOURCE", "FLOOR"), rows
    )


def _resources_as_text(url: str, seen: ResourceReport) -> str:
    if not seen.marks:
        seal = ", or the first seal," if guard_store(url).capabilities.first_seal_creates else ""
        return f"{guard_url(url)} holds no marks: `fencelock protect`{seal} creates one"
    rows = [
        (mark.resource, str(mark.token or "-"), _owner(mark), mark.lock, _tables(seen, mark)) for mark in seen.marks
    ]
    text = table(("RESOURCE", "MARK", "OF", "LOCK", "TABLES"), rows)
    if seen.signed:
        text += f"\n\nSealed by signed sequencers only: {', '.join(map(printable, seen.signed))}"
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
    words = {None: "nobody yet", "operator": "an operator", "lease": "a lease, closed" if mark.is_closed else "a lease"}
    return words[_set_by(mark)]


def _set_by(mark: fencelock.Mark) -> str | None:
    """Return who set the mark: a lease, by sealing the resource, or an operator; None before the first seal."""
    if mark.token == 0:
        return None
    return "operator" if mark.digest is None else "lease"


def _tables(seen: ResourceReport, mark: fencelock.Mark) -> str:
    return ", ".join(f"{one.table} ({one.mode})" for one in _for_resource(seen.protections, mark)) or "none"


COMMANDS = [marks]
