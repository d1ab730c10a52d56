"""The nodes of a source in ZooKeeper, their values, and the order of a queue: no I/O.

    <base>/<lock>/<digest>__lock__<number>    a contender: the lowest number holds the lock
    <base>/.fencelock/source                  the source's record: its identity, and the offset added to zxids
    <base>/.fencelock/breaks/<digest>         an operator's break
    <base>/.fencelock/epochs/<number>         the raise of an epoch

Promise: the layout of kazoo's `Lock` and `WriteLock`, so `kazoo.recipe.lock.Lock(client, "<base>/<lock>")` and
fencelock's locks exclude each other, and so does a `ReadLock` there. Names of locks are escaped. Nodes carry the digest
of a claim, H(H(claim)): who reads it, in a node or in a server's log, can release and write nothing by it. A record is
checked when it is read; a record of another schema is refused with the remedy.
Never: an order trusted near the end of a parent's 32-bit counter, where numbers turn negative and the queue's order
with them (kazoo#606, #730); another program's node counted as a lock.
"""

import json
import os
import re
from typing import Any, NamedTuple

from fencelock.errors import SchemaError, SourceError
from fencelock.model import MAX_TOKEN, SourceInfo, default_holder
from fencelock.stores.encoding import RESERVED, decode_object, escape_name, has_members, shorten, unescape_name
from fencelock.stores.errors import SOURCE_PART, check_schema_number
from fencelock.stores.source_clock import SourceState, start_of_new_history

NODE_NAME = "__lock__"
_CONTENDER = re.compile(r"(?:__lock__|__rlock__)(\d{10}|-\d{9,10})$")
"""ZooKeeper fills a number up to ten characters, of which a sign is one."""
COUNTER_LIMIT = 2**31 - 2**20
"""The numbers that a lock's queue may use. Each attempt takes one, also an attempt that is refused for this reason."""
_MAX_TTL_MS = 2**31 - 1
"""A session's timeout has 32 bits."""
QUEUE_VALUE = b'{"fencelock": "lock"}'
"""The value of a lock's own node, by which the node is recognised when its queue is empty."""


class ZooKeeperContender(NamedTuple):
    """A node in a lock's queue."""

    number: int
    name: str


class ZooKeeperLayout(NamedTuple):
    """The paths below one base."""

    base: str

    @property
    def reserved(self) -> str:
        """The parent of everything that is not a lock; no lock's name is escaped to it."""
        return f"{self.base}/{RESERVED}"

    @property
    def source(self) -> str:
        """The source's record."""
        return f"{self.reserved}/source"

    @property
    def breaks(self) -> str:
        """The parent of all breaks."""
        return f"{self.reserved}/breaks"

    @property
    def epochs(self) -> str:
        """The parent of all raises of the epoch."""
        return f"{self.reserved}/epochs"

    def break_of(self, digest: str) -> str:
        """Return the node of the break that was requested under a claim."""
        return f"{self.breaks}/{digest}"

    def lock(self, name: str) -> str:
        """Return the parent of a lock's contenders."""
        return f"{self.base}/{escape_name(name)}"


def node_prefix(digest: str) -> str:
    """Return the beginning of the name of a claim's node; ZooKeeper appends the number.

    A digest has as many digits as kazoo's own node names have.
    """
    return digest + NODE_NAME


def lock_names(children: list[str]) -> list[str]:
    """Return the names of the locks among the children of a base, in order."""
    return sorted(name for child in children if (name := unescape_name(child)) is not None)


def parse_queue(children: list[str]) -> list[ZooKeeperContender]:
    """Return the contenders among a lock's children, the holder first."""
    found = ((match[1], match.string) for child in children if (match := _CONTENDER.search(child)))
    return sorted(ZooKeeperContender(int(number), name) for number, name in found)


def check_numbers(lock: str, queue: list[ZooKeeperContender]) -> None:
    """Raise SourceError if a number in the queue is near the counter's end, or past it."""
    last = max(queue, default=None)
    if last is not None and not (queue[0].number >= 0 and last.number < COUNTER_LIMIT):
        raise SourceError(
            f"lock {lock!r}: ZooKeeper's counter of its queue is near the end of its 32 bits ({queue[0].number} to "
            f"{last.number}; {COUNTER_LIMIT} is the limit), after which the order of waiters is lost. When nobody "
            f"holds it or waits, run `fencelock purge`: the counter then starts again, and tokens go on rising"
        )


def is_queue_node(value: bytes) -> bool:
    """Return whether a node says that it is the parent of a lock's contenders; a node that kazoo made says nothing."""
    return value == QUEUE_VALUE or decode_break(value) is not None


def encode_node(holder: str, ttl_ms: int) -> bytes:
    """Return the value of a contender's node."""
    return json.dumps({"holder": holder, "ttl_ms": ttl_ms}).encode()


def decode_holder(value: bytes) -> tuple[str, int | None]:
    """Return the holder and the ttl in a contender's value; another program's value is returned as it is."""
    fields = decode_object(value)
    if not has_members(fields, {"holder": str, "ttl_ms": int}) or not 0 < fields["ttl_ms"] <= _MAX_TTL_MS:
        return shorten(value.decode(errors="replace")) or "somebody", None
    return shorten(fields["holder"]) or "somebody", fields["ttl_ms"]


_OFFSET = re.compile(r"-?[0-9]{1,19}")
_BREAK = {"by": str, "why": str, "lock": str, "holder": str | None, "nodes": list, "at": str, "offset": str}


class BreakNode(NamedTuple):
    """What an operator's break records at its own node, and at the lock's."""

    by: str
    why: str
    lock: str
    holder: str | None
    nodes: tuple[str, ...]
    at: str
    offset: str
    """The record's when the break was done: the token is this plus the node's own zxid."""

    def reason(self) -> str:
        """Return the reason for the old holder."""
        return shorten(f"{self.by} broke it: {self.why}")

    def ended(self, digest: str) -> bool:
        """Return whether this break ended the claim."""
        return any(name.startswith(node_prefix(digest)) for name in self.nodes)

    def value(self) -> bytes:
        """Return its value for nodes."""
        return json.dumps(self._asdict()).encode()


def decode_break(value: bytes) -> BreakNode | None:
    """Return the break in a node's value; None if the value is anything else."""
    fields = decode_object(value)
    if fields.keys() != set(BreakNode._fields) or not has_members(fields, _BREAK):
        return None
    if not all(isinstance(name, str) for name in fields["nodes"]) or not _OFFSET.fullmatch(fields["offset"]):
        return None
    return BreakNode(**{**fields, "nodes": tuple(fields["nodes"])})


# --- the record ---
SCHEMA_NUMBER = 3
_KINDS = {"schema": int, "source_id": str, "epoch": int, "history_id": str, "offset": str, "reason": str}


class SourceRecord(NamedTuple):
    """The record's value; `version` and `zxid` are those of the node's last change."""

    source_id: str
    epoch: int
    history_id: str
    offset: int
    reason: str
    version: int = 0
    zxid: int = 0

    @property
    def seen(self) -> SourceState:
        """The source's state, for comparison with what was seen before."""
        return SourceState(self.source_id, self.epoch, self.history_id)

    def token(self, zxid: int) -> int:
        """Return the token of a node that this transaction created; SourceError past the end of the range."""
        token = self.offset + zxid
        if token > MAX_TOKEN:
            raise SourceError(f"source {self.source_id} has no token left: {token} would be 2**63 or more")
        return token

    def why_ended(self) -> str:
        """Return why a claim that is older than this history is over."""
        return f"the source's epoch was raised: {self.reason}"

    def info(self, zxid: int) -> SourceInfo:
        """Return the source as people see it, if this was its last transaction."""
        last_token = self.token(zxid)
        return SourceInfo(self.source_id, self.epoch, self.history_id, last_token, last_token)

    def raised(self, zxid: int, highest_token: int, reason: str) -> "SourceRecord":
        """Return the record of the next history, whose tokens begin at a multiple of 2**40 above all tokens seen so
        far.
        """
        beginning = start_of_new_history(max(self.token(zxid), highest_token))
        return self._replace(epoch=self.epoch + 1, history_id=_draw_history(), offset=beginning - zxid, reason=reason)

    def audit(self, when: str) -> bytes:
        """Return the audit entry of a raise."""
        return json.dumps({"at": when, "by": default_holder(), **self._asdict(), "offset": str(self.offset)}).encode()

    def value(self) -> bytes:
        """Return the value of the record's node."""
        fields = {"schema": SCHEMA_NUMBER, **self._asdict(), "offset": str(self.offset)}
        del fields["version"], fields["zxid"]
        return json.dumps(fields).encode()


def _draw_history() -> str:
    return os.urandom(8).hex()


def new_record() -> SourceRecord:
    """Return the record of a new source."""
    return SourceRecord(os.urandom(16).hex(), 1, _draw_history(), 0, "")


def decode_record_node(value: bytes, stat: Any, url: str) -> SourceRecord:
    """Return the record in a node's value; SchemaError if the value is not a record of this version."""
    fields = decode_object(value)
    if isinstance(number := fields.get("schema"), int):
        check_schema_number(url, SOURCE_PART, number, SCHEMA_NUMBER)
    if not has_members(fields, _KINDS) or not _OFFSET.fullmatch(fields["offset"]):
        raise SchemaError(
            f"{url} holds something that is not a record of fencelock's: name another base, or find out who wrote "
            f"there, and put the record back from a backup"
        )
    fields = {name: fields[name] for name in _KINDS if name != "schema"}
    return SourceRecord(**{**fields, "offset": int(fields["offset"]), "version": stat.version, "zxid": stat.mzxid})
