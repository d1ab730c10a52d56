"""The operations of a guard at S3: pure. All that one step changes is in one manifest, `manifest.py`.

Each `Call` is one request. Promise: a manifest is replaced only if it is still the one that was read. If it is not
known whether that happened, the manifest is read: it has the id of the one that was sent, or those of all that came in
its place. If nothing has changed, the same bytes are sent again on the same condition.
Never: a decision about a token; a write told as refused that may still become true.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fencelock.clock import boottime_ms
from fencelock.errors import OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.protocol import guard_requests as ask
from fencelock.stores.aws.errors import doubt_of
from fencelock.stores.encoding import decode_object
from fencelock.stores.optimistic.effects import Operations, decode_effect, is_purged
from fencelock.stores.optimistic.guard_codec import OptimisticGuardCodec
from fencelock.stores.optimistic.stored_values import FLOORS, PendingChanges, StoredValue, encode_entry, to_json
from fencelock.stores.s3.connection.calls import Body, has_object, list_folders, list_objects, read_object, write_object
from fencelock.stores.s3.guard.block import S3WriteBuffer
from fencelock.stores.s3.guard.manifest import AUDIT, LoadedManifest, Manifest, S3Layout, decode_manifest, token_of
from fencelock.stores.together import all_of

MAX_SENDS = 3
"""How often one request is sent whose answer is lost."""
MAX_REPEATED = 16
"""How often a block is applied to a newer manifest: each one means that another block of the same lease succeeded."""
FRESH_MS = 5_000
"""How old the manifest of a block may be at its end, suspend included; an older one is read again, because a manifest
knows the ids of its latest predecessors only.
"""
MakeWork = Callable[[str, LoadedManifest, int], S3WriteBuffer]


class S3GuardCodec(OptimisticGuardCodec):
    """The operations of one connection, over a client that other connections share."""

    def __init__(self, url: str, bucket: str, layout: S3Layout, make_work: MakeWork) -> None:
        super().__init__(url)
        self.bucket = bucket
        self.layout = layout
        self._make_work = make_work
        self._loaded: dict[str, LoadedManifest] = {}
        """The manifests as they were last read, or written."""

    # --- marks --------------------------------------------------------------------------------------------------------
    def load(self, resource: str) -> Operations:
        """Read a resource's manifest."""
        found = yield from read_object(self.bucket, self.layout.manifest(resource))
        if found is None:
            return LoadedManifest(Manifest(), None)
        return LoadedManifest(decode_manifest(self._url, resource, found.body), found.etag)

    def _read(self, resources: Iterable[str]) -> Operations:
        values = {}
        for name in resources:
            if name == FLOORS:
                values[name] = StoredValue(None, 0)
                continue
            self._loaded[name] = yield from self.load(name)
            values[name] = self._loaded[name].manifest.stored_mark
        return values

    def _read_all(self) -> Operations:
        return (yield from self._read([FLOORS, *(yield from self._resources())]))

    def _resources(self) -> Operations:
        """Return the resources that have a folder."""
        folders = yield from list_folders(self.bucket, self.layout.prefix)
        return self.layout.resources(folders)

    def _find_traces(self, resource: str) -> Operations:
        """Return whether there is a manifest, an audit entry, or an object that only a holder can have uploaded.

        Each `protect` writes an entry before the manifest, so one that was cut off in between counts as well.
        """
        if (yield from self.load(resource)).etag is not None:
            return True
        folder = self.layout.folder(resource)
        names = yield from list_objects(self.bucket, folder)
        return any(name.startswith(folder + AUDIT) or token_of(name) is not None for name in names)

    def _find_conflict(self) -> Operations:
        """Return None: a source has objects of other names, also inside of a resource."""
        yield from ()

    def _write(self, changes: PendingChanges) -> Operations:
        (resource,) = {*changes.writes, *(entry.resource for entry in changes.entries)}
        base = self._loaded[resource]
        mark = base.manifest.mark
        if value := changes.writes.get(resource):
            mark = decode_object(value)
        head = base.manifest.audit_head
        for entry in changes.entries:
            members = decode_object(encode_entry(entry)) | {"previous": head}
            head = self.layout.new_entry()
            # Before the manifest that names it: no manifest ever names an entry that is not there.
            yield from self._upload(self.layout.folder(resource) + head, to_json(members))
        after = base.manifest.next(mark=mark, audit_head=head)
        newer = yield from self._swap(resource, base, after)
        if newer is not None:
            raise ask.ConflictError(f"the manifest of resource {resource!r} has changed")
        return {resource: after.stored_mark} if self._loaded[resource].manifest is after else None

    # --- blocks -------------------------------------------------------------------------------------------------------
    def _open_work(self, request: ask.Open, seen: Mapping[str, StoredValue]) -> Operations:
        (resource,) = seen
        yield from ()
        return self._make_work(resource, self._loaded[resource], request.sequencer.token)

    def _write_work(self, work: S3WriteBuffer) -> Operations:
        if work.is_empty:
            return
        uploads = work.uploads()
        names = {key: name for key, (name, _) in uploads.items()}
        base = work.base
        after = work.applied_to(base.manifest, names)
        folder = self.layout.folder(work.resource)
        # Before the manifest that names them: what no manifest names counts for nobody, and does no harm.
        yield from all_of([self._upload(folder + name, body) for name, body in uploads.values()])
        # A manifest knows its latest predecessors only: an older base might not show what becomes of a lost reply.
        if boottime_ms() > work.opened_ms + FRESH_MS:
            base = yield from self.load(work.resource)
            after = work.reapplied_to(base.manifest, names)
        for _ in range(MAX_REPEATED):
            newer = yield from self._swap(work.resource, base, after)
            if newer is None:
                return
            base, after = newer, work.reapplied_to(newer.manifest, names)
        raise ask.ConflictError("other blocks of the lease write there all the time")

    # --- effects ------------------------------------------------------------------------------------------------------
    def _effect_ids(self) -> Operations:
        yield from self._read_all()
        return [(name, key) for name, loaded in sorted(self._loaded.items()) for key in loaded.manifest.effects]

    def _read_effect_value(self, resource: str, key: str) -> Operations:
        loaded = self.work.base if self.work is not None else (yield from self.load(resource))
        return loaded.manifest.effect(key)

    def _rely_on_effect(self, resource: str, key: str, stored: StoredValue) -> None:
        self.work.rely_on_effect(key, stored)

    def _keep_effect(self, resource: str, key: str, value: bytes | None, before: StoredValue) -> Operations:
        self.work.keep_effect(key, None if value is None else decode_object(value))
        yield from ()

    def _purge_resource(self, resource: str, keys: Sequence[str], older_than_ms: int) -> Operations:
        """Delete them all in one change, by the mark of the manifest that it replaces."""
        purged: set[str] = set()

        def without(manifest: Manifest) -> Manifest | None:
            nonlocal purged
            purged = set(self._purged_effects(resource, manifest, older_than_ms))
            kept = {key: members for key, members in manifest.effects.items() if key not in purged}
            return manifest.next(effects=kept) if purged else None

        return len(purged) if (yield from self.change(resource, without)) else 0

    def _purged_effects(self, resource: str, manifest: Manifest, older_than_ms: int) -> Iterator[str]:
        mark = self._marks({resource: manifest.stored_mark}).get(resource)
        token = 0 if mark is None else mark.token
        for key, members in manifest.effects.items():
            if is_purged(decode_effect(self._url, key, to_json(members)), token, older_than_ms):
                yield key

    # --- requests -----------------------------------------------------------------------------------------------------
    def change(self, resource: str, apply: Callable[[Manifest], Manifest | None]) -> Operations:
        """Replace a manifest by what `apply` makes of it, and return whether; None: it stays as it is."""
        base = yield from self.load(resource)
        for _ in range(MAX_REPEATED):
            after = apply(base.manifest)
            if after is None:
                return False
            base = yield from self._swap(resource, base, after)
            if base is None:
                return True
        raise SourceUnavailableError(
            f"{self._url}: the manifest of resource {resource!r} has changed {MAX_REPEATED} times in a row. Nothing "
            f"was written: try again"
        )

    def _swap(self, resource: str, base: LoadedManifest, after: Manifest) -> Operations:
        """Replace a manifest if it is still the one that was read. Return None, or else the one that is there now,
        which the replacement can never replace any more.
        """
        body, is_lost, is_refused = after.encode(), False, False
        for _ in range(MAX_SENDS):
            try:
                etag = yield from write_object(self.bucket, self.layout.manifest(resource), body, base.etag)
                if etag is not None:
                    self._loaded[resource] = LoadedManifest(after, etag)
                    return None
                # Perhaps because another copy of this very request is under way, and is done a moment later.
                is_refused = True
            except OutcomeUnknownError:
                is_lost = True
            except SourceUnavailableError as error:
                if is_lost or is_refused:
                    raise self._unknown(resource) from error
                raise
            # Refused, or not answered. Either way it may have been done: something in between may have asked twice.
            now: LoadedManifest = yield from self._look_again(resource, base, after)
            if now.etag != base.etag:
                return None if after.commits[-1] in now.manifest.commits else now
            # Nothing has changed: the very same may be sent again, for S3 takes it once.
        if is_lost:
            raise self._unknown(resource)
        raise SourceUnavailableError(
            f"{self._url} refused {MAX_SENDS} times in a row to replace the manifest of resource {resource!r}, which "
            f"nobody has changed. Nothing was written: try again; if it stays so, run `fencelock doctor`"
        )

    def _look_again(self, resource: str, base: LoadedManifest, after: Manifest) -> Operations:
        """Read the manifest that was to be replaced; OutcomeUnknownError if it does not show whether it was."""
        try:
            now: LoadedManifest = yield from self.load(resource)
        except SourceError as error:
            raise self._unknown(resource) from error
        is_known = now.etag == base.etag or after.commits[-1] in now.manifest.commits
        if not (is_known or now.manifest.comes_after(base.manifest)):
            raise self._unknown(resource)
        return now

    def _unknown(self, resource: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self._url} did not confirm that the manifest of resource {resource!r} was replaced, so what was asked "
            f"may have been done, or may be done yet: look before you repeat it"
        )

    def _upload(self, name: str, body: Body) -> Operations:
        """Create an object; the name is new, so one that is there already is this one."""
        for tries_left in reversed(range(MAX_SENDS)):
            try:
                if (yield from write_object(self.bucket, name, body)) is not None:
                    return
                if (yield from has_object(self.bucket, name)):
                    return
            except OutcomeUnknownError as error:
                if not tries_left:
                    raise self._not_uploaded(doubt_of(error)) from error
        raise self._not_uploaded(f"{self._url}: the server refused to create an object")

    def _not_uploaded(self, problem: str) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"{problem}. What is uploaded counts only once the manifest names it: nothing was written. Try again"
        )
