"""The manifest of one resource: the only object that is ever overwritten, and all that counts is in it. Pure.

    <prefix><resource>/.fencelock/manifest               the mark, which object holds which key, the effects
    <prefix><resource>/.fencelock/audit/<random id>      what an operator did, and the entry before it
    <prefix><resource>/<key>/<token>-<random id>         the value of a key, written once and never again
    <prefix>.fencelock/probe/<random id>                 what `prove` and `fencelock doctor` try, and delete

S3 compares ETags, and an ETag stands for the bytes: a manifest that came back to former bytes would admit a writer who
had read it then. So each manifest has an id of its own, its commit, and with it those of its last predecessors: a
writer whose reply was lost finds out from them whether its manifest was one.

Promise: names are escaped, so two resources, or two keys, never share an object. No two manifests have the same bytes.
A manifest that another program wrote is refused, never guessed. Never: a decision about a token.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any, NamedTuple
from uuid import uuid4

from fencelock.errors import ConfigError, SchemaError
from fencelock.model import check_name
from fencelock.stores.encoding import RESERVED, decode_object, escape_name, has_members, unescape_name
from fencelock.stores.errors import GUARD_PART, check_schema_number
from fencelock.stores.optimistic.stored_values import StoredValue, to_json

SCHEMA_NUMBER = 1
MAX_KEYS = 8_000
MAX_MANIFEST_BYTES = 4_000_000
"""Limits of one resource: each block reads and writes its whole manifest."""
MAX_NAME_BYTES = 1_024
"""S3's own limit for the name of an object."""
KEPT_COMMITS = 256
"""Fewer manifests than that may come in between while somebody waits for an answer that was lost."""
AUDIT = f"{RESERVED}/audit/"
"""Where the audit entries are, below the resource's folder."""
_ID_BYTES = 8
MAX_RETIRED = 2_000
"""Objects that no key has any more, and of which the manifest knows since when: the latest. Each block reads and writes
them all, so a longer list would cost more than the writes themselves."""
_TOKEN_DIGITS = 19
_TOKEN = re.compile(r"[0-9]{19}")
_MEMBERS = {
    "schema": int,
    "commits": list,
    "mark": dict | None,
    "objects": dict,
    "effects": dict,
    "retired": dict,
    "audit_head": str | None,
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a resource consists of at one moment. Objects are named by their paths below the resource's folder."""

    mark: dict[str, Any] | None = None
    objects: dict[str, str] = field(default_factory=dict[str, str])
    """The object of each key."""
    effects: dict[str, Any] = field(default_factory=dict[str, Any])
    retired: dict[str, str] = field(default_factory=dict[str, str])
    """Since when an object belongs to no key any more, by the clock of whoever replaced it."""
    audit_head: str | None = None
    """The latest entry of the audit; each entry names the one before it."""
    commits: tuple[str, ...] = ()
    """The ids of the last manifests, its own at the end."""

    def encode(self) -> bytes:
        """Return the stored form."""
        return to_json(
            {
                "schema": SCHEMA_NUMBER,
                "commits": self.commits,
                "mark": self.mark,
                "objects": self.objects,
                "effects": self.effects,
                "retired": self.retired,
                "audit_head": self.audit_head,
            }
        )

    def next(self, **changes: Any) -> "Manifest":
        """Return the manifest that comes after this one, with an id that no other manifest has."""
        return replace(self, commits=(*self.commits[1 - KEPT_COMMITS :], token_hex(_ID_BYTES)), **changes)

    def comes_after(self, other: "Manifest") -> bool:
        """Return whether this manifest is known to be a later one: the ids of all that came in between are known."""
        if not other.commits:
            return 0 < len(self.commits) < KEPT_COMMITS
        return other.commits[-1] in self.commits[:-1]

    @property
    def stored_mark(self) -> StoredValue:
        """The mark as the guard's codec reads it."""
        return stored(self.mark)

    def effect(self, key: str) -> StoredValue:
        """Return what is kept of an effect."""
        return stored(self.effects.get(key))


def stored(members: dict[str, Any] | None) -> StoredValue:
    """Return a part of the manifest as a stored value."""
    return StoredValue(None, 0) if members is None else StoredValue(to_json(members), 1)


def decode_manifest(url: str, resource: str, body: bytes) -> Manifest:
    """Return the manifest in an object's body; SchemaError if the body is something else."""
    found = decode_object(body)
    if isinstance(number := found.get("schema"), int):
        check_schema_number(url, GUARD_PART, number, SCHEMA_NUMBER)
    if not has_members(found, _MEMBERS) or not found["commits"] or not _are_texts(found):
        raise SchemaError(
            f"{url}: the object stored as the manifest of resource {resource!r} is not a manifest, so the guard cannot "
            f"tell which tokens it refuses, nor which objects count: find out who wrote there, and restore the "
            f"manifest from a backup or an earlier version of the object"
        )
    return Manifest(
        found["mark"],
        found["objects"],
        found["effects"],
        found["retired"],
        found["audit_head"],
        tuple(found["commits"]),
    )


def _are_texts(found: dict[str, Any]) -> bool:
    texts = (*found["commits"], *found["objects"].values(), *found["retired"].values())
    return all(isinstance(text, str) for text in texts)


class LoadedManifest(NamedTuple):
    """A manifest as it was read, and its ETag; None: there was none."""

    manifest: Manifest
    etag: str | None


class S3Layout(NamedTuple):
    """Where a guard keeps what, in its bucket."""

    prefix: str

    def folder(self, resource: str) -> str:
        """Return the prefix of all objects of a resource."""
        return f"{self.prefix}{escape_name(resource)}/"

    def manifest(self, resource: str) -> str:
        """Return the name of a resource's manifest."""
        return self._checked(f"{self.folder(resource)}{RESERVED}/manifest", f"resource {resource!r}")

    @staticmethod
    def new_entry() -> str:
        """Return a new name for an audit entry, below the resource's folder."""
        return f"{AUDIT}{uuid4().hex}"

    def new_object(self, resource: str, key: str, token: int) -> str:
        """Return a new name for the value of a key, below the resource's folder; ConfigError if S3 has no room."""
        # By the token `collect` tells whether the object's writer can still replace a manifest.
        where = f"{escape_key(key)}/{token:0{_TOKEN_DIGITS}}-{uuid4().hex}"
        self._checked(self.folder(resource) + where, f"key {key!r}")
        return where

    @property
    def manifest_probe(self) -> str:
        """The name of an object that an access rule for manifests covers, and that is no resource's manifest."""
        return f"{self.prefix}{RESERVED}/{RESERVED}/manifest"

    def resources(self, folders: Iterable[str]) -> list[str]:
        """Return the resources whose folders these are, in order."""
        parts = (folder[len(self.prefix) :].removesuffix("/") for folder in folders)
        return sorted(filter(None, map(unescape_name, parts)))

    def _checked(self, name: str, what: str) -> str:
        if (size_bytes := len(name.encode())) > MAX_NAME_BYTES:
            raise ConfigError(
                f"{what} would need an object whose name has {size_bytes} bytes, and S3 takes {MAX_NAME_BYTES}: use a "
                f"shorter name. All but A-Z, a-z, 0-9, `_`, `-` and inner dots takes three bytes"
            )
        return name


def escape_key(key: str) -> str:
    """Return the path that stands for a key: each part between slashes is escaped by itself."""
    check_name(key, what="key", limit_bytes=MAX_NAME_BYTES)
    parts = key.split("/")
    if not all(parts):
        raise ConfigError(f"a key is made of parts with one slash between them, not {key!r}")
    return "/".join(map(escape_name, parts))


def token_of(where: str) -> int | None:
    """Return the token under which an object was written; None if the guard writes no such name."""
    if f"/{RESERVED}/" in f"/{where}":  # A source's locks, for example, whose names are anything.
        return None
    digits, separator, _ = where.rpartition("/")[2].partition("-")
    return int(digits) if separator and _TOKEN.fullmatch(digits) else None
