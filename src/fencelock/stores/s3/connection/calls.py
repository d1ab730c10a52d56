"""The requests of a guard at S3, as generators that yield plain calls and understand the replies. Pure.

Promise: an object of the guard is created or replaced on a condition, but for the one that `doctor` tries without.
Never: a request sent here.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fencelock.stores.aws.clients import Call, Refusal

Result = TypeVar("Result")
Asking = Generator[Call, Any, Result]
"""Yields calls, is sent the replies, and returns a Result."""
Body = bytes | Path
"""The contents of an object, or the file that holds them."""
_MISSING = frozenset({"NoSuchKey", "404"})
_REFUSED = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409", *_MISSING})

_NO_RULES = frozenset({"NoSuchLifecycleConfiguration", "AccessDenied", "NotImplemented", "MethodNotAllowed"})


class FoundObject(NamedTuple):
    """An object as it was read."""

    body: bytes
    etag: str


def read_object(bucket: str, name: str) -> Asking[FoundObject | None]:
    """Read an object; None if there is none."""
    reply = yield Call("get_object", {"Bucket": bucket, "Key": name}, _MISSING)
    return None if isinstance(reply, Refusal) else FoundObject(reply["Body"], reply["ETag"])


def has_object(bucket: str, name: str) -> Asking[bool]:
    """Return whether there is an object."""
    return not isinstance((yield Call("head_object", {"Bucket": bucket, "Key": name}, _MISSING)), Refusal)


def write_object(bucket: str, name: str, body: Body, etag: str | None = None) -> Asking[str | None]:
    """Replace the object that has this ETag, or create one where there is none (None).

    Returns the new ETag; None if S3 refused: there is another object, or none, or somebody is just writing it.
    """
    if etag is None:
        return (yield from _put(bucket, name, body, {"IfNoneMatch": "*"}))
    written = yield from _put(bucket, name, body, {"IfMatch": etag})
    if written is None and (bare := etag.strip('"')) != etag:
        # Some servers, Ceph's for example, compare with an ETag as it is sent, and have none with quotation marks.
        written = yield from _put(bucket, name, body, {"IfMatch": bare})
    return written


def _put(bucket: str, name: str, body: Body, condition: dict[str, str]) -> Asking[str | None]:
    reply = yield Call("put_object", {"Bucket": bucket, "Key": name, "Body": body, **condition}, _REFUSED)
    return None if isinstance(reply, Refusal) else reply["ETag"]


def delete_object(bucket: str, name: str) -> Asking[None]:
    """Delete an object, if there is one."""
    yield Call("delete_object", {"Bucket": bucket, "Key": name})


def list_objects(bucket: str, prefix: str) -> Asking[list[str]]:
    """Return the names of all objects that begin with the prefix."""
    return (yield from _list({"Bucket": bucket, "Prefix": prefix}, "Contents", "Key"))


def list_folders(bucket: str, prefix: str) -> Asking[list[str]]:
    """Return what the names of all objects have up to the first slash behind the prefix."""
    return (yield from _list({"Bucket": bucket, "Prefix": prefix, "Delimiter": "/"}, "CommonPrefixes", "Prefix"))


def _list(arguments: dict[str, str], part: str, member: str) -> Asking[list[str]]:
    found: list[str] = []
    more: dict[str, str] = {}
    while True:
        reply = yield Call("list_objects_v2", {**arguments, **more})
        found += (one[member] for one in reply.get(part, ()))
        if not reply.get("IsTruncated"):
            return found
        more = {"ContinuationToken": reply["NextContinuationToken"]}


# --- for `doctor` -----------------------------------------------------------------------------------------------------
def write_blindly(bucket: str, name: str) -> Asking[bool]:
    """Write an object without a condition; return whether that was permitted."""
    reply = yield Call("put_object", {"Bucket": bucket, "Key": name, "Body": b"{}"}, frozenset({"AccessDenied"}))
    return not isinstance(reply, Refusal)


def has_expiry(bucket: str, prefix: str) -> Asking[bool]:
    """Return whether a lifecycle rule of the bucket deletes objects behind the prefix; False if nobody may know."""
    reply = yield Call("get_bucket_lifecycle_configuration", {"Bucket": bucket}, _NO_RULES)
    rules = () if isinstance(reply, Refusal) else reply.get("Rules", ())
    return any(_expires(rule, prefix) for rule in rules)


def _expires(rule: dict[str, Any], prefix: str) -> bool:
    limits = rule.get("Filter", {})
    start = limits.get("Prefix", limits.get("And", {}).get("Prefix", rule.get("Prefix", "")))
    is_active = rule.get("Status") == "Enabled" and "Expiration" in rule
    return is_active and (prefix.startswith(start) or start.startswith(prefix))
