"""What a store with optimistic transactions (etcd, ZooKeeper, S3, DynamoDB, Redis, files) keeps of marks, floors
and the audit: values of JSON.

Promise: pure. A value that another program wrote is refused, never guessed. A mark is stored with the time of its last
write, by the writer's clock, and with no claim and no proof.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from fencelock.errors import SchemaError
from fencelock.model import MAX_TOKEN, Mark
from fencelock.protocol.guard_requests import AuditEntry
from fencelock.stores.encoding import decode_object, has_members
from fencelock.stores.errors import GUARD_PART, check_schema_number

SCHEMA_NUMBER = 3
FLOORS = ""
"""The name of the floors among the names of the resources, none of which is empty: one value has those of all sources,
so that it is read along with the marks, whichever source the lease is from.
"""
_MARK = {
    "schema": int,
    "lock": str,
    "token": str,
    "source_id": str | None,
    "history_id": str | None,
    "digest": str | None,
    "closed": bool,
    "raised_at": str | None,
    "rebound": bool,
}
_FLOORS = {"schema": int, "floors": dict}
MAX_REMEMBERED = 64
"""Marks that are kept decoded: each block of a tenure reads the same one."""
_TOKEN = re.compile(r"[0-9]{1,19}")
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class StoredValue(NamedTuple):
    """A stored value (None: the key does not exist) and its version, which changes with each write."""

    value: bytes | None
    version: int


@dataclass(slots=True)
class PendingChanges:
    """What a short transaction has read, and what it will write: the marks by their resources, and the floors."""

    seen: dict[str, StoredValue] = field(default_factory=dict[str, StoredValue])
    writes: dict[str, bytes | None] = field(default_factory=dict[str, bytes | None])
    """None: to be deleted."""
    entries: list[AuditEntry] = field(default_factory=list[AuditEntry])
    relies_on_floors: bool = False

    def value(self, name: str) -> bytes | None:
        """Return what this transaction leaves under a name that it has read."""
        return self.writes.get(name, self.seen[name].value)

    def left(self, version: int) -> dict[str, StoredValue]:
        """Return what is stored of all that was read, once it was written under this version."""
        return self.seen | {name: StoredValue(value, version) for name, value in self.writes.items()}


def now_text() -> str:
    """Return this machine's time."""
    return datetime.now(UTC).strftime(_TIME)


def is_older(written_at: str | None, older_than_ms: int) -> bool:
    """Return whether a stored time is so long ago, by this machine's clock; False for what is not a time."""
    try:
        then = datetime.strptime(written_at or "", _TIME).replace(tzinfo=UTC)
    except ValueError:
        return False
    return datetime.now(UTC) - then >= timedelta(milliseconds=older_than_ms)


# --- marks ------------------------------------------------------------------------------------------------------------
class StoredMark(NamedTuple):
    """A mark, the time of its last write, and whether its resource was ever bound to another lock or source."""

    mark: Mark
    raised_at: str | None = None
    is_rebound: bool = False


def encode_mark(stored: StoredMark) -> bytes:
    """Return the stored value of a mark."""
    mark = stored.mark
    return to_json(
        {
            "schema": SCHEMA_NUMBER,
            "lock": mark.lock,
            "token": str(mark.token),
            "source_id": mark.source_id,
            "history_id": mark.history_id,
            "digest": mark.digest,
            "closed": mark.is_closed,
            "raised_at": stored.raised_at,
            "rebound": stored.is_rebound,
        }
    )


@lru_cache(MAX_REMEMBERED)
def decode_mark(url: str, resource: str, value: bytes) -> StoredMark:
    """Return the mark in a stored value; SchemaError if the value is not a mark."""
    found = _decode(url, value)
    if not has_members(found, _MARK) or not _TOKEN.fullmatch(found["token"]):
        raise SchemaError(
            f"{url}: the value stored as the mark of resource {resource!r} is not a mark, so the guard cannot tell "
            f"which tokens it refuses: find out who wrote there, and restore the mark from a backup"
        )
    identity = found["source_id"], found["history_id"], found["digest"]
    mark = Mark(resource, found["lock"], int(found["token"]), *identity, found["closed"])
    return StoredMark(mark, found["raised_at"], found["rebound"])


# --- floors -----------------------------------------------------------------------------------------------------------
def encode_floors(floors: Mapping[str, int]) -> bytes:
    """Return the stored value of the floors, by their sources."""
    tokens = {source_id: str(token) for source_id, token in sorted(floors.items())}
    return to_json({"schema": SCHEMA_NUMBER, "floors": tokens})


def decode_floors(url: str, value: bytes | None) -> dict[str, int]:
    """Return the floors in a stored value, by their sources; SchemaError if the value is something else."""
    if value is None:
        return {}
    found = _decode(url, value)
    if not has_members(found, _FLOORS) or not all(map(_is_floor, found["floors"].values())):
        raise SchemaError(
            f"{url}: the value stored as the floors of purged marks is something else, so the guard cannot tell which "
            f"tokens it refuses at a resource without a mark: find out who wrote there. Restore it from a backup; or "
            f"delete it (at ZooKeeper: make the node empty), and run `fencelock marks {url} --raise-to SOURCE --reason "
            f"…` for each source of the guard"
        )
    return {source_id: int(token) for source_id, token in found["floors"].items()}


def _is_floor(token: object) -> bool:
    return isinstance(token, str) and bool(_TOKEN.fullmatch(token)) and 0 < int(token) <= MAX_TOKEN


# --- the audit --------------------------------------------------------------------------------------------------------
def encode_entry(entry: AuditEntry) -> bytes:
    """Return the stored value of an audit entry, with the time on this machine's clock."""
    members = entry._asdict() | {"at": datetime.now(UTC).isoformat(timespec="seconds")}
    return to_json(members | {"from_token": str(entry.from_token), "to_token": str(entry.to_token)})


def to_json(members: Mapping[str, Any]) -> bytes:
    """Return members as compact JSON."""
    return json.dumps(members, separators=(",", ":")).encode()


def _decode(url: str, value: bytes) -> dict[str, Any]:
    """Return the object in a value; SchemaError if it is one of another schema."""
    found = decode_object(value)
    if isinstance(number := found.get("schema"), int):
        check_schema_number(url, GUARD_PART, number, SCHEMA_NUMBER)
    return found
