"""The keys of a source in etcd, and their values.

    <prefix><name>/<lease>-<number>            a queue entry of a lock; the entry created first holds the lock
    <prefix>.fencelock/source/record           the source's id, epoch and history
    <prefix>.fencelock/source/locks/<name>     written with each queue entry: its revision is the lock's last token
    <prefix>.fencelock/source/passed/<name>    the creation revision of the last holder that released the lock
    <prefix>.fencelock/source/broken/<name>    who broke the lock last, and why
    <prefix>.fencelock/source/refused/<digest> a claim that ended while a request for it may still be under way
    <prefix>.fencelock/source/audit/<what>     what operators did

A claim is kept as its digest, H(H(claim)), in values and in keys: nobody can release a lock, or write in its holder's
name, by what stands here.

Names are escaped. A name that needs no escape is itself, so `etcdctl lock NAME` and Go's `concurrency.Mutex` share the
queue with fencelock: they too use the prefix `NAME/` and the creation revision. A queue entry ends with its etcd lease.
Entry numbers are reused, because etcd walks through all keys that a range ever had until it is compacted.

Promise: pure. A key that another program made is recognised, and its holder still has a description.
"""

import json
import re
from typing import Any, NamedTuple

from fencelock.errors import SchemaError
from fencelock.model import MAX_TOKEN, SourceInfo
from fencelock.stores.encoding import decode_object, escape_name, has_members, shorten, unescape_name
from fencelock.stores.errors import SOURCE_PART, check_schema_number

FORMAT = 3
_KINDS = {"format": int, "source_id": str, "epoch": int, "history_id": str, "floor": str}
_FLOOR = re.compile(r"[0-9]{1,19}")
_OURS = re.compile(rb"[0-9a-f]{1,16}-[0-9]+")


class EtcdRecord(NamedTuple):
    """The source's identity. A token is the revision that created a queue entry, plus `offset`, which grows with each
    epoch.
    """

    source_id: str
    epoch: int
    history_id: str
    offset: int
    revision: int
    """When it was last written: an older queue entry belongs to an older history."""

    def token(self, revision: int) -> int:
        """Return the token of a queue entry that was created at this revision."""
        return self.offset + revision

    def info(self, revision: int) -> SourceInfo:
        """Return the source as people see it, as of this revision.

        There is no block of reserved tokens, so all tokens up to this revision are spent.
        """
        last = min(self.token(revision), MAX_TOKEN)
        return SourceInfo(self.source_id, self.epoch, self.history_id, last, last)


class EtcdLayout:
    """The keys below one prefix."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._own = prefix + b".fencelock/source/"
        self.record = self._own + b"record"
        self.locks = self._own + b"locks/"
        self.breaks = self._own + b"broken/"

    def queue(self, lock: str) -> bytes:
        """Return the prefix of a lock's queue entries."""
        return b"%s%s/" % (self.prefix, escape_name(lock).encode())

    def queue_entry(self, lock: str, lease: int, number: int) -> bytes:
        """Return the key of a queue entry."""
        return b"%s%x-%d" % (self.queue(lock), lease, number)

    def lock(self, lock: str) -> bytes:
        """Return the key that records that the lock exists."""
        return self.locks + escape_name(lock).encode()

    def name(self, key: bytes) -> str | None:
        """Return the lock that such a key names; None if the key is not fencelock's."""
        return unescape_name(key.removeprefix(self.locks).decode(errors="replace"))

    def last_release(self, lock: str) -> bytes:
        """Return the key that records the last holder that released the lock."""
        return b"%spassed/%s" % (self._own, escape_name(lock).encode())

    def last_break(self, lock: str) -> bytes:
        """Return the key that records the last break of the lock."""
        return self.breaks + escape_name(lock).encode()

    def refusal(self, digest: str) -> bytes:
        """Return the key that refuses a claim."""
        return b"%srefused/%s" % (self._own, digest.encode())

    def written_by_holders(self) -> list[bytes]:
        """Return the key prefixes of the source's own keys that holders and waiters write, besides their queues."""
        return [self.locks, *(self._own + part for part in (b"passed/", b"refused/"))]

    def audit(self, what: str) -> bytes:
        """Return the key of an audit entry."""
        return b"%saudit/%s" % (self._own, what.encode())


def encode_record(source_id: str, epoch: int, history_id: str, floor: int) -> bytes:
    """Return the value of the record. Tokens of its history are above `floor`; if that is 0, they are the plain
    revisions.
    """
    return encode_json(format=FORMAT, source_id=source_id, epoch=epoch, history_id=history_id, floor=str(floor))


def decode_record(value: bytes, revision: int, url: str) -> EtcdRecord:
    """Return the record that was written at this revision; SchemaError if the value is not a record of this version."""
    fields = decode_object(value)
    if isinstance(number := fields.get("format"), int):
        check_schema_number(url, SOURCE_PART, number, FORMAT)
    if not has_members(fields, _KINDS) or not _FLOOR.fullmatch(fields["floor"]):
        raise SchemaError(
            f"{url}: the value of the source's record is not a record, so no token can be computed: find out who wrote "
            f"there, and put the record back from a backup"
        )
    floor = int(fields["floor"])
    # With this offset the record's own revision stands for the floor, so every later entry is above it.
    return EtcdRecord(
        fields["source_id"], fields["epoch"], fields["history_id"], floor - revision if floor else 0, revision
    )


def encode_json(**fields: Any) -> bytes:
    """Return these fields as a stored value."""
    return json.dumps(fields, ensure_ascii=False).encode()


def is_own_entry(queue: bytes, key: bytes) -> bool:
    """Return whether a key with a queue's prefix is a queue entry of fencelock."""
    return _OURS.fullmatch(key.removeprefix(queue)) is not None


def is_queue_entry(queue: bytes, kv: Any) -> bool:
    """Return whether a key with a queue's prefix is a queue entry, fencelock's or another program's.

    Queue entries end with a lease and have no slash in their last part. Another key belongs to a program that knows of
    no lock.
    """
    return kv.lease != 0 and b"/" not in kv.key.removeprefix(queue)


def encode_queue_entry(digest: str, holder: str) -> bytes:
    """Return the value of a queue entry."""
    return encode_json(digest=digest, holder=holder)


def decode_digest(kv: Any) -> Any:
    """Return the digest in the value of a queue entry; None, or anything else, if the entry is another program's."""
    return decode_object(kv.value).get("digest")


def describe_holder(queue: bytes, kv: Any) -> str:
    """Return who has a queue entry, for people; for another key, return the key."""
    if not is_queue_entry(queue, kv):
        return f"key {shorten(kv.key.decode(errors='backslashreplace'))}, which is not a queue entry"
    holder = decode_object(kv.value).get("holder")
    return shorten(holder) if isinstance(holder, str) and holder else f"etcd lease {kv.lease:x}"


def decode_break_reason(kv: Any) -> str:
    """Return why a break ended a claim, for its holder."""
    fields = decode_object(kv.value)
    return shorten(f"{fields.get('who')} broke it: {fields.get('reason')}")
