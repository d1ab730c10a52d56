"""Deleting the objects of a resource that no manifest can name any more. Pure.

An object that the manifest does not name was uploaded by a block that has ended, or never will, or by one that is about
to end. All objects are listed first, and the manifest is read after that. If its mark is above an object's token, the
writer of that object had read an older manifest, and can replace none from then on: the object never counts.

Promise: what the manifest names stays, and so does what a running block has uploaded. A replaced object stays for the
time that the caller leaves to readers, if the manifest still remembers it. Never: a mark changed.
"""

from collections.abc import Iterable

from fencelock.errors import GuardError
from fencelock.stores.aws.clients import Calls
from fencelock.stores.optimistic.stored_values import decode_mark, is_older, to_json
from fencelock.stores.s3.connection.calls import delete_object, list_objects
from fencelock.stores.s3.guard.codec import S3GuardCodec
from fencelock.stores.s3.guard.manifest import Manifest, token_of


def collect(codec: S3GuardCodec, url: str, resource: str, older_than_ms: int) -> Calls[int]:
    """Delete what never counts, and what was replaced so long ago; return how many objects there were."""
    folder = codec.layout.folder(resource)
    names = yield from list_objects(codec.bucket, folder)
    # After the list: an operator who lowers the mark in between would let an upload count that is then deleted.
    loaded = yield from codec.load(resource)
    manifest: Manifest = loaded.manifest
    if manifest.mark is None:
        raise GuardError(
            f"{url}: resource {resource!r} has no mark, so nobody can tell which of its objects count, and none was "
            f"deleted. Correct its name, or run `fencelock protect`, which creates the mark"
        )
    token = decode_mark(url, resource, to_json(manifest.mark)).mark.token
    expired = {where for where, since in manifest.retired.items() if is_older(since, older_than_ms)}
    gone = list(_collectable(manifest, (name[len(folder) :] for name in names), token, expired))
    for where in gone:
        yield from delete_object(codec.bucket, folder + where)
    if expired:
        yield from codec.change(resource, lambda now: _without(now, expired))
    return len(gone)


def _collectable(manifest: Manifest, found: Iterable[str], token: int, expired: set[str]) -> Iterable[str]:
    named = set(manifest.objects.values())
    for where in found:
        written_under = token_of(where)
        if where in named or written_under is None:
            continue
        if where in expired or (written_under < token and where not in manifest.retired):
            yield where


def _without(manifest: Manifest, expired: set[str]) -> Manifest | None:
    kept = {where: since for where, since in manifest.retired.items() if where not in expired}
    return manifest.next(retired=kept) if len(kept) < len(manifest.retired) else None
