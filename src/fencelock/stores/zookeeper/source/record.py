"""The record of a source in ZooKeeper: who it is, its history, and what it adds to zxids to make tokens.

Promise: what is read is checked; a record of another schema is refused with the remedy.
"""

import json
import re
from typing import Any, NamedTuple

from fencelock.errors import SchemaError, SourceError
from fencelock.model import MAX_TOKEN, SourceInfo, default_holder, draw_claim
from fencelock.stores.quorum.encoding import decode_object, has_members
from fencelock.stores.source_clock import Seen, next_beginning

SCHEMA_NUMBER = 1
_HISTORY_CHARACTERS = 16
_KINDS = {"schema": int, "source_id": str, "epoch": int, "history_id": str, "offset": str, "reason": str}
_OFFSET = re.compile(r"-?[0-9]{1,19}")


class SourceRecord(NamedTuple):
    """What the record's node says; `version` and `zxid` are the node's own, of its last change."""

    source_id: str
    epoch: int
    history_id: str
    offset: int
    reason: str
    version: int = 0
    zxid: int = 0

    @property
    def seen(self) -> Seen:
        """Which state of which source this is."""
        return Seen(self.source_id, self.epoch, self.history_id)

    def token(self, zxid: int) -> int:
        """Return the token of what was made by a transaction; SourceError past the end of the range."""
        token = self.offset + zxid
        if token > MAX_TOKEN:
            raise SourceError(f"source {self.source_id} has no token left: {token} would be 2**63 or more")
        return token

    def why_ended(self) -> str:
        """Return why a claim is over that is older than this history."""
        return f"the source's epoch was raised: {self.reason}"

    def info(self, zxid: int) -> SourceInfo:
        """Return the source as people see it, when this transaction was its last."""
        last_token = self.token(zxid)
        return SourceInfo(self.source_id, self.epoch, self.history_id, last_token, last_token)

    def raised(self, zxid: int, highest_token: int, reason: str) -> "SourceRecord":
        """Return the next history, whose tokens begin at a multiple of 2**40 above all that were ever seen."""
        beginning = next_beginning(max(self.token(zxid), highest_token))
        return self._replace(epoch=self.epoch + 1, history_id=_draw(), offset=beginning - zxid, reason=reason)

    def audit(self, when: str) -> bytes:
        """Return what a raise leaves behind for whoever asks why."""
        return json.dumps({"at": when, "by": default_holder(), **self._asdict(), "offset": str(self.offset)}).encode()

    def value(self) -> bytes:
        """Return the record as its node has it."""
        told = {"schema": SCHEMA_NUMBER, **self._asdict(), "offset": str(self.offset)}
        del told["version"], told["zxid"]
        return json.dumps(told).encode()


def _draw() -> str:
    return draw_claim()[:_HISTORY_CHARACTERS]


def new_record() -> SourceRecord:
    """Return the record of a source that is just made."""
    return SourceRecord(draw_claim(), 1, _draw(), 0, "")


def record_in(value: bytes, stat: Any, url: str) -> SourceRecord:
    """Return the record that a node's value says; SchemaError if it is none of this version's."""
    told = decode_object(value)
    if (number := told.get("schema")) != SCHEMA_NUMBER and isinstance(number, int):
        raise SchemaError(
            f"{url} holds fencelock's source with schema {number}, and this version of fencelock has schema "
            f"{SCHEMA_NUMBER}: use the version that made it"
        )
    if not has_members(told, _KINDS) or not _OFFSET.fullmatch(told["offset"]):
        raise SchemaError(
            f"{url} holds something that is not a record of fencelock's: name another base, or find out who wrote "
            f"there, and put the record back from a backup"
        )
    told = {name: told[name] for name in _KINDS if name != "schema"}
    return SourceRecord(**{**told, "offset": int(told["offset"]), "version": stat.version, "zxid": stat.mzxid})


def not_installed(url: str) -> SchemaError:
    """Return the error for a base without a record."""
    return SchemaError(f"{url} holds no source of fencelock's: run `fencelock install` on it")
