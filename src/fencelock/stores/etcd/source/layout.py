"""Which keys a source has in etcd, and what stands in them.

    <prefix><name>/<lease>-<number>            a place in the queue of a lock; the one created first holds it
    <prefix>.fencelock/source/record           the source's id, epoch and history
    <prefix>.fencelock/source/locks/<name>     written with each place: the lock exists, its last token is the revision
    <prefix>.fencelock/source/passed/<name>    the revision of the last holder that released the lock
    <prefix>.fencelock/source/broken/<name>    who broke the lock last, and why
    <prefix>.fencelock/source/refused/<claim>  a claim that has ended though a request for it may still be under way
    <prefix>.fencelock/source/audit/<what>     what operators did

Names are escaped; a name that needs no escape is itself, so that `etcdctl lock NAME` and Go's `concurrency.Mutex` queue
up with ours: they too go by the prefix `NAME/` and the revision of creation. A place ends with its lease. Numbers are
used again: etcd goes through all keys that a range ever had, until it is compacted.

Promise: pure. A key that somebody else made is told from ours, and its holder is still somebody.
"""

import json
import re
from typing import Any, NamedTuple

from fencelock.errors import SchemaError
from fencelock.model import MAX_TOKEN, SourceInfo
from fencelock.stores.quorum.encoding import decode_object, escape_name, has_members, shorten, unescape_name

FORMAT = 1
_KINDS = {"format": int, "source_id": str, "epoch": int, "history_id": str, "floor": str}
_FLOOR = re.compile(r"[0-9]{1,19}")
_OURS = re.compile(rb"[0-9a-f]{1,16}-[0-9]+")


class EtcdRecord(NamedTuple):
    """The source's identity. A token is the revision that created a place, and `offset`, which grows by epochs."""

    source_id: str
    epoch: int
    history_id: str
    offset: int
    revision: int
    """When it was written last: a place that was created before belongs to an older history."""

    def token(self, revision: int) -> int:
        """Return the token of what was created at this revision."""
        return self.offset + revision

    def info(self, revision: int) -> SourceInfo:
        """Return it as people see it, as of this revision: there is no block, so all tokens up to it are spent."""
        last = min(self.token(revision), MAX_TOKEN)
        return SourceInfo(self.source_id, self.epoch, self.history_id, last, last)


class EtcdLayout:
    """The keys below one prefix."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._own = prefix + b".fencelock/source/"
        self.record = self._own + b"record"
        self.locks = self._own + b"locks/"

    def queue(self, lock: str) -> bytes:
        """Return what the keys of a lock's places begin with."""
        return b"%s%s/" % (self.prefix, escape_name(lock).encode())

    def queue_entry(self, lock: str, lease: int, number: int) -> bytes:
        """Return the key of a place."""
        return b"%s%x-%d" % (self.queue(lock), lease, number)

    def lock(self, lock: str) -> bytes:
        """Return the key that says that the lock exists."""
        return self.locks + escape_name(lock).encode()

    def name(self, key: bytes) -> str | None:
        """Return the lock that such a key names."""
        return unescape_name(key.removeprefix(self.locks).decode(errors="replace"))

    def last_release(self, lock: str) -> bytes:
        """Return the key of the last holder that released the lock."""
        return b"%spassed/%s" % (self._own, escape_name(lock).encode())

    def last_break(self, lock: str) -> bytes:
        """Return the key of the last break of the lock."""
        return b"%sbroken/%s" % (self._own, escape_name(lock).encode())

    def refusal(self, claim: str) -> bytes:
        """Return the key that refuses a claim."""
        return b"%srefused/%s" % (self._own, claim.encode())

    def audit(self, what: str) -> bytes:
        """Return the key of an audit entry."""
        return b"%saudit/%s" % (self._own, what.encode())


def encode_record(source_id: str, epoch: int, history_id: str, floor: int) -> bytes:
    """Return what the record says; tokens of the history are above `floor`, or revisions as they are if it is 0."""
    return encode_json(format=FORMAT, source_id=source_id, epoch=epoch, history_id=history_id, floor=str(floor))


def decode_record(value: bytes, revision: int, url: str) -> EtcdRecord:
    """Return the record that was written at this revision; SchemaError if it is none of this version's."""
    fields = decode_object(value)
    if (number := fields.get("format")) != FORMAT and isinstance(number, int):
        raise SchemaError(
            f"{url} holds fencelock's source of tokens in format {number}, and this version of fencelock has format "
            f"{FORMAT}: use the version that made it"
        )
    if not has_members(fields, _KINDS) or not _FLOOR.fullmatch(fields["floor"]):
        raise SchemaError(
            f"{url}: what is kept as the record of a source of tokens is none, so no token can be told: find out who "
            f"wrote there, and put the record back from a backup"
        )
    floor = int(fields["floor"])
    return EtcdRecord(
        fields["source_id"], fields["epoch"], fields["history_id"], floor - revision if floor else 0, revision
    )


def encode_json(**fields: Any) -> bytes:
    """Return a value of ours."""
    return json.dumps(fields, ensure_ascii=False).encode()


def is_own_entry(queue: bytes, key: bytes) -> bool:
    """Tell whether a key that begins as a queue's do is one of our places."""
    return _OURS.fullmatch(key.removeprefix(queue)) is not None


def is_queue_entry(queue: bytes, kv: Any) -> bool:
    """Tell whether a key that begins as a queue's do is somebody's place: those end with a lease, and nothing is below
    them. Any other is kept there by somebody who knows of no lock.
    """
    return kv.lease != 0 and b"/" not in kv.key.removeprefix(queue)


def encode_queue_entry(claim: str, holder: str) -> bytes:
    """Return what stands in a place."""
    return encode_json(claim=claim, holder=holder)


def decode_claim(kv: Any) -> str | None:
    """Return the claim whose place it is; None if it is somebody else's."""
    return decode_object(kv.value).get("claim")


def describe_holder(queue: bytes, kv: Any) -> str:
    """Return who has a place, for people; a key that is none is named itself."""
    if not is_queue_entry(queue, kv):
        return f"key {shorten(kv.key.decode(errors='backslashreplace'))}, which is not a place in a queue"
    holder = decode_object(kv.value).get("holder")
    return shorten(holder) if isinstance(holder, str) and holder else f"etcd lease {kv.lease:x}"
