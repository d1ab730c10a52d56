"""What breaks the guarantees of a guard at S3, for `fencelock doctor`.

Promise: no manifest and no value is changed: what has to be tried is tried under names of its own, and deleted again if
that is permitted.
"""

import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fencelock.errors import FencelockError, SourceError
from fencelock.model import Finding
from fencelock.stores.aws.clients import Calls
from fencelock.stores.errors import refused_finding
from fencelock.stores.s3.connection.calls import delete_object, has_expiry, list_folders, write_blindly
from fencelock.stores.s3.guard.manifest import S3Layout
from fencelock.stores.s3.probe import examine_races, new_probe, prove

Run = Callable[[Calls[Any]], Any]


def examine(url: str, bucket: str, layout: S3Layout, run: Run) -> list[Finding]:
    """Return what is wrong with the set-up; an error hides nothing that was found before it."""
    found: list[Finding] = []
    try:
        run(prove(url, bucket, new_probe(layout.prefix)))
        run(list_folders(bucket, layout.prefix))
        found += examine_races(url, run, bucket, layout.prefix)
        if run(has_expiry(bucket, layout.prefix)):
            found.append(_expires_finding(url))
        if not _has_policy(bucket, layout, run):
            found.append(_open_to_all_finding(url))
    except FencelockError as error:
        found.append(refused_finding("guard-refused", error))
    return found


def _has_policy(bucket: str, layout: S3Layout, run: Run) -> bool:
    """Return whether nobody can replace a manifest without a condition."""
    name = layout.manifest_probe
    if not run(write_blindly(bucket, name)):
        return True
    with suppress(SourceError):  # A role may be forbidden to delete.
        run(delete_object(bucket, name))
    return False


def _expires_finding(url: str) -> Finding:
    return Finding(
        "objects-expire",
        f"{url}: a lifecycle rule of the bucket deletes objects there by their age, manifests and what they name alike",
        "limit the rule to other prefixes, or to noncurrent versions; fencelock.s3.collect deletes what is not needed",
    )


def _open_to_all_finding(url: str) -> Finding:
    return Finding(
        "open-to-all",
        f"{url}: whoever may write objects there may replace a manifest without a condition, with or without a token: "
        f"by itself S3 refuses nobody",
        f"put the policy on the bucket that `fencelock protect {shlex.quote(url)} --resource R --lock L --roles ROLE "
        f"--print-policy` prints",
    )
