"""`fencelock doctor`: what in a setup breaks its guarantees, and what this command cannot see.

Promise: no lock, mark or value is changed; what a store has to try out, it tries under names of its own, and deletes it
if it may. An error hides nothing that was found elsewhere. Exits with 1 if something was found. The findings about the
source and about each guard come from their stores; this module only compares the two.
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict

import click

import fencelock
from fencelock._api.guard import inspect_resources
from fencelock._api.lock_options import is_named
from fencelock.cli.errors import NEGATIVE_RESULT
from fencelock.cli.options import guard_option, json_option, source_option, source_url
from fencelock.cli.output import emit, printable, showing_work
from fencelock.protocol.guard_requests import Floor
from fencelock.protocol.stores import GuardStore
from fencelock.stores.errors import refused_finding
from fencelock.stores.registry import EXTRAS, guard_store, guard_url, shown_url

VERIFY_NAMES = "fencelock-verify-"
"""The prefix of the resources that a campaign of `fencelock verify` creates."""
NO_SOURCE = "no-source"
SOURCE_REFUSED = "source-refused"
UNREAD = {NO_SOURCE, SOURCE_REFUSED}
"""Findings about a source that says nothing of its tokens."""
SOURCE_WENT_BACK = "source-went-back"
GUARD_REFUSED = "guard-refused"
_FORGER = "who made a sequencer of this source: any program that may write there could, signature or not"
_RESTORED = "a source that was restored, or whose servers' data were copied, or that runs twice now"
UNSEEN_OF_SOURCE = {
    "dynamodb": (
        "a table whose items were written back from a copy, with the counter below a token that was issued",
        _FORGER,
    ),
    "etcd": (_RESTORED, _FORGER),
    "mysql": (_RESTORED, "a source that failed over to a server that had lost writes"),
    "postgres": (
        "a source whose server's folder was copied while the server was stopped, and is older or runs twice now",
        "a source after `pg_resetwal`, or on a virtual machine that was resumed from a snapshot with its memory",
    ),
    "s3": ("a source whose objects were restored, or copied and used a second time", _FORGER),
    "sqlite": (
        "a backup that was copied over the source's file in place while it held the same tokens or more",
        _FORGER,
    ),
    "zookeeper": (_RESTORED, _FORGER),
}
UNSEEN_OF_GUARD = {
    "sqlite": ("a copy of the guard's file, and what is written to it",),
}
UNSEEN_OF_ALL_GUARDS = "marks that were restored with their data, and are older than the last holder"
UNSEEN_SOURCE = "the source of the locks, which --source names: the marks were compared with none"
UNSEEN_ELSEWHERE = "a resource that is not behind any of the --guard URLs given"


@click.command()
@source_option
@guard_option("Examine the resources of this URL too, and compare them with the source.")
@json_option
def doctor(source: str | None, guards: tuple[str, ...], as_json: bool) -> int:
    """Check a setup for anything that breaks its guarantees.

    Prints each finding with a remedy, and what it cannot see. Exits with 1 if it found something.

    \b
    Example:
      fencelock doctor --source sqlite:////srv/locks.db --guard sqlite:////srv/app.db
    """
    stores = {url: guard_store(url) for url in guards}
    with fencelock.connect(source_url(source)) as connected, showing_work("examining"):
        findings = _examine_source(connected)
        can_be_read = UNREAD.isdisjoint(finding.code for finding in findings)
        # Nobody has spoken of the default source, which does not exist either.
        is_meant = not stores or is_named(source) or all(one.code != NO_SOURCE for one in findings)
        if not is_meant:
            findings.clear()
        for url, store in stores.items():
            found = _examine_guard(store, url, connected if can_be_read else None)
            findings += [one for one in found if not _is_left_by_verify(one)]
    unseen = blind_spots(connected.url if is_meant else None, list(stores.values()))
    data = {"findings": [asdict(finding) for finding in findings], "unseen": unseen}
    emit(data, as_json, _findings_as_text(findings, unseen))
    return NEGATIVE_RESULT if findings else 0


def _examine_source(source: fencelock.Source) -> list[fencelock.Finding]:
    try:
        return list(source.examine())
    except fencelock.FencelockError as error:
        return [refused_finding(SOURCE_REFUSED, error)]


def _examine_guard(store: GuardStore, url: str, source: fencelock.Source | None) -> list[fencelock.Finding]:
    """Return the findings of a guard's store, and those of comparing it with a source that can be read."""
    found: list[fencelock.Finding] = []
    try:
        found += store.examine()
        if all(one.code != GUARD_REFUSED for one in found):
            found += _without_marks(store, url)
        if source is not None and all(one.code != GUARD_REFUSED for one in found):
            found += _compare(url, source.describe())
            found += _unsigned(url, source)
    except fencelock.FencelockError as error:
        found.append(refused_finding(GUARD_REFUSED, error))
    return found


def _is_left_by_verify(finding: fencelock.Finding) -> bool:
    """Return whether a finding is about a mark that `fencelock verify` left behind.

    Such a mark protects nothing; it only matters if it shows that a source went back.
    """
    is_of_verify = finding.resource is not None and finding.resource.startswith(VERIFY_NAMES)
    return is_of_verify and finding.code != SOURCE_WENT_BACK


def _without_marks(store: GuardStore, url: str) -> Iterator[fencelock.Finding]:
    """Yield a finding for a place without any mark, which a mistyped URL names: a database looks for its schema itself.

    Where marks were purged, their floors are left.
    """
    if store.capabilities.enforced_by == "store":
        return
    with suppress(fencelock.FencelockError):  # `_compare` tells it.
        seen = inspect_resources(url)
        if not seen.marks and not seen.floors:
            shown = guard_url(url)
            makes = f"run `fencelock protect {shlex.quote(shown)} --resource R --lock L`"
            yield fencelock.Finding(
                "no-marks",
                f"{shown} holds no marks: nothing there is guarded yet",
                "correct the URL; if it is right, "
                + ("the first seal of a resource makes its mark" if store.capabilities.first_seal_creates else makes),
            )


def _compare(url: str, source: fencelock.SourceInfo) -> Iterator[fencelock.Finding]:
    """Yield the findings about the marks and the floor at a guard, and one if they cannot be read."""
    shown = guard_url(url)
    try:
        seen = inspect_resources(url)
    except fencelock.FencelockError as error:
        message = f"the marks at {shown} cannot be compared with the source: {error}"
        yield fencelock.Finding(GUARD_REFUSED, message, "run `fencelock doctor` as a user who may read them")
        return
    yield from _compare_floors(shown, seen.floors, source)
    yield from _compare_marks(shown, seen.marks, source)


def _compare_floors(shown: str, floors: Iterable[Floor], source: fencelock.SourceInfo) -> Iterator[fencelock.Finding]:
    """Yield a finding for a floor that is above its source's last token."""
    for floor in floors:
        if floor.source_id == source.source_id and floor.token > source.last_token:
            yield fencelock.Finding(
                "floor-above-source",
                f"at {shown} the floor of purged marks is {floor.token}, and the source has only issued tokens up to "
                f"{source.last_token}: every resource without a mark refuses it",
                "if the source lost its history, run `fencelock epoch --raise --reason …`; if the floor was set too "
                f"high, `fencelock marks {shown} --floor {floor.source_id} --lower {source.last_token} --reason …`",
            )


def _compare_marks(
    shown: str, marks: Iterable[fencelock.Mark], source: fencelock.SourceInfo
) -> Iterator[fencelock.Finding]:
    """Yield a finding for each mark that is above its source's last token, or belongs to another source."""
    for mark in marks:
        where = f"resource {mark.resource!r} at {shown}"
        if mark.source_id is None:
            continue
        if mark.source_id != source.source_id:
            yield fencelock.Finding(
                "other-source",
                f"{where} is bound to the source {mark.source_id}, and this one is {source.source_id}",
                "name the right source with --source, or move the resource with `fencelock rebind`",
                mark.resource,
            )
        elif mark.token > source.last_token:
            yield fencelock.Finding(
                SOURCE_WENT_BACK,
                f"{where} has the mark {mark.token}, and the source has only issued tokens up to {source.last_token}",
                "if the source lost its history, run `fencelock epoch --raise --reason …` before anybody uses it; if "
                "somebody sealed a token that it never issued, run `fencelock unpoison`",
                mark.resource,
            )


def _unsigned(url: str, source: fencelock.Source) -> Iterator[fencelock.Finding]:
    """Yield a finding for each resource that requires signatures of a source where they prove nothing."""
    try:
        source.keys()
    except fencelock.UnsupportedError as error:
        reason = str(error)
    except fencelock.FencelockError:
        return  # It has keys, which only its owner may read.
    else:
        return
    with suppress(fencelock.FencelockError):  # `_compare` has told it.
        for resource in inspect_resources(url).signed:
            yield fencelock.Finding(
                "signature-proves-nothing",
                f"resource {resource!r} at {guard_url(url)} requires signatures, so no lease of this source seals it: "
                f"{reason}",
                "keep the locks in PostgreSQL or MySQL, or run `fencelock keys require URL --resource R --off`",
                resource,
            )


def blind_spots(source: str | None, guards: Sequence[GuardStore]) -> list[str]:
    """Return what no check sees of these stores; None for a source that was not named."""
    of_guards = dict.fromkeys(spot for store in guards for spot in _unseen_of(store))
    of_all = [UNSEEN_OF_ALL_GUARDS] if guards else []
    of_source = (UNSEEN_SOURCE,) if source is None else UNSEEN_OF_SOURCE.get(_system(source), ())
    return [*of_source, *of_guards, *of_all, UNSEEN_ELSEWHERE]


def _unseen_of(store: GuardStore) -> Iterator[str]:
    yield from UNSEEN_OF_GUARD.get(_system(store.url), ())
    can, where = store.capabilities, shown_url(store.url)
    if can.enforced_by == "policy":
        yield f"what is written at {where} without the guard, by a user whom its access control lets write there"
    if can.enforced_by == "nobody":
        yield f"what is written at {where} without the guard, by anybody who reaches it"
    if not can.seal_is_durable:
        yield f"a seal that {where} acknowledged and lost: its own holder is told, and a later one is not"


def _system(url: str) -> str:
    scheme = url.partition("://")[0].lower()
    extra = EXTRAS.get(scheme, scheme)
    return scheme if extra == "aws" else extra


def _findings_as_text(findings: list[fencelock.Finding], unseen: list[str]) -> str:
    lines = []
    for finding in findings:
        lines += [f"{finding.code}: {printable(finding.message)}", f"  remedy: {printable(finding.remedy)}"]
    lines.append(f"{len(findings) or 'nothing'} found")
    lines += ["What this command cannot see:", *(f"  {thing}" for thing in unseen)]
    return "\n".join(lines)


COMMANDS = [doctor]
