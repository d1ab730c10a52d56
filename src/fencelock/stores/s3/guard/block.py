"""What `guard.transaction(lease)` yields at S3: reads of one moment, and writes that become true in one PUT at the end.

Promise: the block reads what the manifest named when it was opened, after the seal. At its end each value is uploaded
under a name of its own, and the manifest is replaced if it is still the one that was read, or if nothing that the block
relies on has changed since: the mark, the keys that it has read, and the effects. Otherwise nothing of it counts.
Never: an object overwritten that a reader may be reading; a write before the end of the block.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fencelock.clock import boottime_ms
from fencelock.errors import ConfigError, GuardError
from fencelock.protocol.guard_requests import ConflictError
from fencelock.stores.aws.clients import Calls
from fencelock.stores.optimistic.stored_values import StoredValue, now_text
from fencelock.stores.optimistic.write_buffer import WriteBuffer, too_large_error, unstored_error
from fencelock.stores.s3.connection.calls import Body, read_object
from fencelock.stores.s3.guard.manifest import (
    MAX_KEYS,
    MAX_MANIFEST_BYTES,
    MAX_RETIRED,
    LoadedManifest,
    Manifest,
    S3Layout,
    escape_key,
)

MAX_OBJECT_BYTES = 5 * 2**30
"""S3's own limit for one PUT."""


class S3WriteBuffer(WriteBuffer):
    """The reads and writes of one block, for both kinds of transactions."""

    def __init__(self, bucket: str, layout: S3Layout, resource: str, base: LoadedManifest, token: int) -> None:
        super().__init__()
        self.resource = resource
        self.base = base
        self.opened_ms = boottime_ms()
        self._bucket = bucket
        self._layout = layout
        self._token = token
        self._read: dict[str, str | None] = {}
        """The object of each key that the block has read; None: it had none."""
        self._listed: dict[str, list[str]] = {}
        """The keys behind each prefix that the block has listed."""
        self._relied_effects: dict[str, StoredValue] = {}
        self._writes: dict[str, Body | None] = {}
        self._effects: dict[str, dict[str, Any] | None] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.resource!r}: {len(self._writes)} writes>"

    # --- writes -------------------------------------------------------------------------------------------------------
    def put(self, key: str, value: str | bytes) -> None:
        """Write the value of a key at the end of the block. Text is stored as UTF-8."""
        if not isinstance(value, (str, bytes)):
            raise ConfigError(f"a value of S3 must be str or bytes, not {type(value).__name__}: a file goes by upload")
        self._keep(key, value.encode() if isinstance(value, str) else value)

    def upload(self, key: str, path: str | os.PathLike[str]) -> None:
        """Write the contents of a file as the value of a key at the end of the block: keep the file until then."""
        file = Path(path)
        if (size_bytes := file.stat().st_size) > MAX_OBJECT_BYTES:
            raise too_large_error(
                f"writes {size_bytes} bytes to key {key!r}", f"S3 takes {MAX_OBJECT_BYTES} in one PUT"
            )
        self._keep(key, file)

    def delete(self, key: str) -> None:
        """Remove a key at the end of the block, if it exists."""
        self._keep(key, None)

    def _keep(self, key: str, body: Body | None) -> None:
        self._check_open()
        escape_key(key)
        self._writes[key] = body

    # --- reads --------------------------------------------------------------------------------------------------------
    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with the prefix, in order; the block relies on there being no others."""
        self._check_open()
        if any(key.startswith(prefix) for key in self._writes):
            raise unstored_error(f"a key that begins with {prefix!r}")
        # A list of the caller's own: this one is compared at the end of the block.
        return list(self._listed.setdefault(prefix, keys_behind(self.base.manifest, prefix)))

    def url(self, key: str) -> str | None:
        """Return the URL of the object that holds a key's value, for other programs to read; None without the key."""
        where = self._where(key)
        return None if where is None else f"s3://{self._bucket}/{where}"

    def _where(self, key: str) -> str | None:
        """Return the name of the object that holds a key's value; the block relies on it from now on."""
        self._check_open()
        if key in self._writes:
            raise unstored_error(f"key {key!r}")
        where = self._read[key] = self.base.manifest.objects.get(key)
        return None if where is None else self._layout.folder(self.resource) + where

    def _get(self, key: str) -> Calls[bytes | None]:
        where = self._where(key)
        if where is None:
            return None
        found = yield from read_object(self._bucket, where)
        if found is None:
            raise gone_error(key, self.resource)
        return found.body

    # --- the guard's own ----------------------------------------------------------------------------------------------
    def rely_on_effect(self, key: str, stored: StoredValue) -> None:
        """Refuse the block if an effect is another at its end."""
        self._relied_effects[key] = stored

    def keep_effect(self, key: str, members: dict[str, Any] | None) -> None:
        """Write an effect at the end of the block, or delete it."""
        self._effects[key] = members

    # --- the end ------------------------------------------------------------------------------------------------------
    @property
    def is_empty(self) -> bool:
        """Whether the block writes nothing."""
        return not self._writes and not self._effects

    def uploads(self) -> dict[str, tuple[str, Body]]:
        """Return by its key what has to be uploaded before the manifest can name it, and under which name."""
        return {
            key: (self._layout.new_object(self.resource, key, self._token), body)
            for key, body in self._writes.items()
            if body is not None
        }

    def check_unchanged(self, manifest: Manifest) -> None:
        """Raise ConflictError if something that the block relies on is another in this manifest."""
        before = self.base.manifest
        if manifest.mark != before.mark:
            raise ConflictError(f"the mark of resource {self.resource!r} has changed")
        for key, where in self._read.items():
            if manifest.objects.get(key) != where:
                raise ConflictError(f"key {key!r}, which the block had read, has changed")
        for prefix, keys in self._listed.items():
            if keys_behind(manifest, prefix) != keys:
                raise ConflictError(f"a key that begins with {prefix!r}, which the block had read, has changed")
        for key, stored in self._relied_effects.items():
            if manifest.effect(key) != stored:
                raise ConflictError(f"effect {key!r} has changed")

    def reapplied_to(self, manifest: Manifest, names: dict[str, str]) -> Manifest:
        """Return a later manifest with what the block writes; ConflictError if it relies on what has changed since."""
        self.check_unchanged(manifest)
        return self.applied_to(manifest, names)

    def applied_to(self, manifest: Manifest, names: dict[str, str]) -> Manifest:
        """Return the manifest with what the block writes; `names` are those of the uploaded objects, by their keys.

        GuardError if it is larger than a resource may be.
        """
        objects, retired = dict(manifest.objects), dict(manifest.retired)
        now = now_text()
        for key in self._writes:
            if (old := objects.pop(key, None)) is not None:
                retired[old] = now
            if key in names:
                objects[key] = names[key]
        effects = {**manifest.effects, **self._effects}
        after = manifest.next(
            objects=objects,
            retired=dict(list(retired.items())[-MAX_RETIRED:]),
            effects={key: members for key, members in effects.items() if members is not None},
        )
        self._check_size(after)
        return after

    def _check_size(self, manifest: Manifest) -> None:
        """Raise GuardError if the manifest with the block's writes is larger than a resource may be."""
        if (count := len(manifest.objects)) > MAX_KEYS:
            raise too_large_error(f"makes the resource {count} keys large", f"one resource has {MAX_KEYS} at most")
        if (size_bytes := len(manifest.encode())) > MAX_MANIFEST_BYTES:
            raise too_large_error(
                f"needs a manifest of {size_bytes} bytes",
                f"one resource has {MAX_MANIFEST_BYTES} at most, of keys, of results of `once`, which `fencelock purge "
                f"--done` forgets, and of replaced objects, which fencelock.s3.collect forgets",
            )


def keys_behind(manifest: Manifest, prefix: str) -> list[str]:
    """Return the keys that begin with the prefix, in order."""
    return sorted(_behind(manifest.objects, prefix))


def _behind(keys: Iterable[str], prefix: str) -> Iterable[str]:
    return (key for key in keys if key.startswith(prefix))


def gone_error(key: str, resource: str) -> GuardError:
    """Return the error for a key whose object is not there any more."""
    return GuardError(
        f"the object that held key {key!r} of resource {resource!r} was deleted since the manifest was read: by "
        f"fencelock.s3.collect, which needs a longer older_than, or by somebody who does not use the guard. Read again"
    )
