"""`fencelock doctor`: what in a set-up would break the promise, and what cannot be seen from here.

Promise: changes nothing. Exits with 1 if it found something. What source and guards can each tell of themselves
comes from their stores; here only the two are compared.
"""

from collections.abc import Iterator
from dataclasses import asdict

import click

import fencelock
from fencelock._api.guard import inspect_resources
from fencelock.cli.errors import NEGATIVE_RESULT
from fencelock.cli.options import guard_option, json_option, source_option
from fencelock.cli.output import emit, printable
from fencelock.stores.registry import guard_store, guard_url

VERIFY_NAMES = "fencelock-verify-"
"""With this the names of resources begin that a campaign of `fencelock verify` makes."""
SOURCE_WENT_BACK = "source-went-back"
GUARD_REFUSED = "guard-refused"
UNSEEN = (
    "a backup that was copied over a file in place while it held the same tokens or more",
    "a server's data folder that was copied while the server was stopped, and is older or runs twice now",
    "a MySQL source that was restored, or failed over to a server that had lost writes",
    "a table written by code that never opened this guard's file, or a copy of it",
    "a key of etcd, or a node of ZooKeeper, written without the guard by a user who may write there",
    "a resource that is not behind any of the --guard URLs given",
)


@click.command()
@source_option
@guard_option("Examine the resources of this URL too, and compare them with the source.")
@json_option
def doctor(source: str | None, guards: tuple[str, ...], as_json: bool) -> int:
    """Name what in a set-up would break the promise, and a remedy.

    Exits with 1 if it found something. It also says what it cannot see.

    \b
    Example:
      fencelock doctor --guard sqlite:////srv/app.db
    """
    stores = {url: guard_store(url) for url in guards}
    with fencelock.connect(source) as connected:
        findings = list(connected.examine())
        is_open = not findings or all(finding.code != "source-refused" for finding in findings)
        for url, store in stores.items():
            found = store.examine()
            if is_open and all(one.code != GUARD_REFUSED for one in found):
                found += _disagreements(url, connected.describe())
            findings += [one for one in found if not _is_left_by_verify(one)]
    data = {"findings": [asdict(finding) for finding in findings], "unseen": list(UNSEEN)}
    emit(data, as_json, _story(findings))
    return NEGATIVE_RESULT if findings else 0


def _is_left_by_verify(finding: fencelock.Finding) -> bool:
    """Tell whether it is about a mark that `fencelock verify` could not take away: nothing is behind it, and it says
    nothing but that a source has gone back.
    """
    is_of_verify = finding.resource is not None and finding.resource.startswith(VERIFY_NAMES)
    return is_of_verify and finding.code != SOURCE_WENT_BACK


def _disagreements(url: str, source: fencelock.SourceInfo) -> Iterator[fencelock.Finding]:
    """Yield where a resource knows of tokens that its source does not, or of another source."""
    shown = guard_url(url)
    try:
        marks = inspect_resources(url).marks
    except fencelock.FencelockError as error:
        message = f"the marks at {shown} cannot be compared with the source: {error}"
        yield fencelock.Finding(GUARD_REFUSED, message, "run `fencelock doctor` as somebody who may look at them")
        return
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
                "the source lost its history: run `fencelock epoch --raise --reason …` before anybody uses it",
                mark.resource,
            )


def _story(findings: list[fencelock.Finding]) -> str:
    lines = []
    for finding in findings:
        lines += [f"{finding.code}: {printable(finding.message)}", f"  remedy: {printable(finding.remedy)}"]
    lines.append(f"{len(findings) or 'nothing'} found")
    lines += ["What cannot be seen from here:", *(f"  {thing}" for thing in UNSEEN)]
    return "\n".join(lines)


COMMANDS = [doctor]
