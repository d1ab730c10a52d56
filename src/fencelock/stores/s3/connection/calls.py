"""The requests of a guard and of a source at S3, as generators that yield plain calls and understand the replies. Pure.

Promise: an object is created or replaced on a condition, but for the one that `doctor` tries without. Each body has its
digest, so an object that the server stores has all its bytes; that of a file is added when `client.py` opens it.
Never: a request sent here.
"""

import base64
import hashlib
import io
from pathlib import Path
from typing import Any, NamedTuple

from fencelock.errors import SourceUnavailableError
from fencelock.stores.aws.clients import Call, Calls, Refusal

Body = bytes | Path
"""The contents of an object, or the file that holds them."""
MISSING = frozenset({"NoSuchKey", "404"})
"""The refusals that say that there is no such object."""
_REFUSED = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409", *MISSING})
_NOT_KNOWN = frozenset(
    {
        "NoSuchLifecycleConfiguration",
        "ReplicationConfigurationNotFoundError",
        "AccessDenied",
        "NotImplemented",
        "MethodNotAllowed",
    }
)
"""The refusals by which a bucket has no such setting, or tells nobody."""


class FoundObject(NamedTuple):
    """An object as it was read."""

    body: bytes
    etag: str


def read_object(bucket: str, name: str) -> Calls[FoundObject | None]:
    """Read an object; None if there is none."""
    reply = yield Call("get_object", {"Bucket": bucket, "Key": name}, MISSING)
    return None if isinstance(reply, Refusal) else FoundObject(reply["Body"], reply["ETag"])


def has_object(bucket: str, name: str) -> Calls[bool]:
    """Return whether there is an object."""
    return not isinstance((yield Call("head_object", {"Bucket": bucket, "Key": name}, MISSING)), Refusal)


def write_object(bucket: str, name: str, body: Body, etag: str | None = None) -> Calls[str | None]:
    """Replace the object that has this ETag, or create one where there is none (None).

    Returns the new ETag; None if S3 refused: there is another object, or none, or somebody is just writing it.
    """
    if etag is None:
        return (yield from _put(bucket, name, body, {"IfNoneMatch": "*"}))
    written = yield from _put(bucket, name, body, {"IfMatch": etag})
    if written is None and (bare := etag.strip('"')) != etag:
        # Some servers, Ceph's for example, compare with an ETag as it is sent, and have none with quotation marks.
        try:
            written = yield from _put(bucket, name, body, {"IfMatch": bare})
        except SourceUnavailableError:
            # The refusal above stands: it may be of a second copy, and so tell of what the first one has done.
            return None
    return written


def _put(bucket: str, name: str, body: Body, condition: dict[str, str]) -> Calls[str | None]:
    reply = yield Call("put_object", {"Bucket": bucket, "Key": name, **_with_digest(body), **condition}, _REFUSED)
    return None if isinstance(reply, Refusal) else reply["ETag"]


def _with_digest(body: Body) -> dict[str, Any]:
    return {"Body": body, "ContentMD5": digest_of(io.BytesIO(body))} if isinstance(body, bytes) else {"Body": body}


def digest_of(content: io.BytesIO | io.BufferedReader) -> str:
    """Return the digest of a body as the head of its request has it.

    SeaweedFS 4.48 stores an empty object if a connection ends between the head and the body of a request without one.
    """
    digest = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).digest()
    return base64.b64encode(digest).decode()


def delete_object(bucket: str, name: str) -> Calls[None]:
    """Delete an object, if there is one."""
    yield Call("delete_object", {"Bucket": bucket, "Key": name})


def delete_seen(bucket: str, name: str, etag: str) -> Calls[bool]:
    """Delete the object that has this ETag; return whether it was there."""
    if (yield from _delete_if(bucket, name, etag)):
        return True
    bare = etag.strip('"')  # As in `write_object`.
    return bare != etag and (yield from _delete_if(bucket, name, bare))


def _delete_if(bucket: str, name: str, etag: str) -> Calls[bool]:
    call = Call("delete_object", {"Bucket": bucket, "Key": name, "IfMatch": etag}, _REFUSED | {"NotImplemented"})
    return not isinstance((yield call), Refusal)


def list_objects(bucket: str, prefix: str) -> Calls[list[str]]:
    """Return the names of all objects that begin with the prefix."""
    return (yield from _list({"Bucket": bucket, "Prefix": prefix}, "Contents", "Key"))


def list_folders(bucket: str, prefix: str) -> Calls[list[str]]:
    """Return what the names of all objects have up to the first slash behind the prefix."""
    return (yield from _list({"Bucket": bucket, "Prefix": prefix, "Delimiter": "/"}, "CommonPrefixes", "Prefix"))


def _list(arguments: dict[str, str], part: str, member: str) -> Calls[list[str]]:
    found: list[str] = []
    more: dict[str, str] = {}
    while True:
        reply = yield Call("list_objects_v2", {**arguments, **more})
        found += (one[member] for one in reply.get(part, ()))
        if not reply.get("IsTruncated"):
            return found
        more = {"ContinuationToken": reply["NextContinuationToken"]}


# --- for `doctor` -----------------------------------------------------------------------------------------------------
def write_blindly(bucket: str, name: str) -> Calls[bool]:
    """Write an object without a condition; return whether that was permitted."""
    put = {"Bucket": bucket, "Key": name, **_with_digest(b"{}")}
    reply = yield Call("put_object", put, frozenset({"AccessDenied"}))
    return not isinstance(reply, Refusal)


def has_expiry(bucket: str, prefix: str) -> Calls[bool]:
    """Return whether a lifecycle rule of the bucket deletes objects behind the prefix; False if nobody may know."""
    rules = yield from _lifecycle_rules(bucket)
    return any(_deletes_by_age(rule) and _touches(rule, prefix) for rule in rules)


def keeps_versions(bucket: str, prefix: str) -> Calls[bool]:
    """Return whether the bucket keeps former versions of objects behind the prefix; False if nobody may know."""
    reply = yield Call("get_bucket_versioning", {"Bucket": bucket}, _NOT_KNOWN)
    if isinstance(reply, Refusal) or reply.get("Status") != "Enabled":
        return False
    rules = yield from _lifecycle_rules(bucket)
    return not any("NoncurrentVersionExpiration" in rule and prefix.startswith(_start(rule)) for rule in rules)


def is_replicated(bucket: str, prefix: str) -> Calls[bool]:
    """Return whether the bucket copies objects behind the prefix to another one; False if nobody may know."""
    reply = yield Call("get_bucket_replication", {"Bucket": bucket}, _NOT_KNOWN)
    rules = () if isinstance(reply, Refusal) else reply["ReplicationConfiguration"]["Rules"]
    return any(rule["Status"] == "Enabled" and _touches(rule, prefix) for rule in rules)


def _lifecycle_rules(bucket: str) -> Calls[list[dict[str, Any]]]:
    """Return the rules that are in force."""
    reply = yield Call("get_bucket_lifecycle_configuration", {"Bucket": bucket}, _NOT_KNOWN)
    rules = () if isinstance(reply, Refusal) else reply.get("Rules", ())
    return [rule for rule in rules if rule.get("Status") == "Enabled"]


def _deletes_by_age(rule: dict[str, Any]) -> bool:
    """Return whether a rule is about current objects: `ExpiredObjectDeleteMarker` is about what others left."""
    return bool({"Days", "Date"} & rule.get("Expiration", {}).keys())


def _touches(rule: dict[str, Any], prefix: str) -> bool:
    start = _start(rule)
    return prefix.startswith(start) or start.startswith(prefix)


def _start(rule: dict[str, Any]) -> str:
    """Return what the names of a rule's objects begin with."""
    limits = rule.get("Filter", {})
    start: str = limits.get("Prefix", limits.get("And", {}).get("Prefix", rule.get("Prefix", "")))
    return start
