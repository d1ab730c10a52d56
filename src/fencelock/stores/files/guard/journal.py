"""The journal of a folder: the renames and deletions of the commit under way, written before the first of them.

Promise: pure. A journal that was written only in part, because its writer or the power was cut, counts as none: with
several renames, the first comes after the journal's flush; a single one needs no flush (see `commit.py`).
Never: a path accepted that leads out of the folder.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from fencelock.errors import SchemaError
from fencelock.stores.encoding import decode_object, has_members
from fencelock.stores.errors import GUARD_PART, check_schema_number
from fencelock.stores.files.guard.layout import Parts, Step
from fencelock.stores.optimistic.stored_values import SCHEMA_NUMBER

_DIGEST_BYTES = 64
_JOURNAL = {"schema": int, "steps": list}


def encode_journal(steps: Sequence[Step]) -> bytes:
    """Return what the journal holds while these steps are under way."""
    body = json.dumps({"schema": SCHEMA_NUMBER, "steps": steps}, separators=(",", ":")).encode()
    return _digest(body) + b"\n" + body


def decode_journal(url: str, content: bytes) -> list[Step]:
    """Return the steps of an interrupted commit; none if it never began. SchemaError if another version wrote them."""
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES + 1 :]
    if digest != _digest(body):
        return []
    found = decode_object(body)
    if not has_members(found, _JOURNAL):
        raise _no_journal(url)
    check_schema_number(url, GUARD_PART, found["schema"], SCHEMA_NUMBER)
    return [_step(url, step) for step in found["steps"]]


def _step(url: str, step: Any) -> Step:
    if not isinstance(step, list) or len(step) != len(Step._fields):
        raise _no_journal(url)
    draft, target = step
    return Step(None if draft is None else _parts(url, draft), _parts(url, target))


def _parts(url: str, parts: Any) -> Parts:
    if not isinstance(parts, list) or not parts or not all(map(_is_part, parts)):
        raise _no_journal(url)
    return tuple(parts)


def _is_part(part: object) -> bool:
    return isinstance(part, str) and part not in {"", ".", ".."} and not {"/", "\0"} & set(part)


def _no_journal(url: str) -> SchemaError:
    return SchemaError(
        f"{url}: the file stored as the guard's journal is not a journal, so an interrupted commit cannot be finished: "
        f"find out who wrote there, and restore the folder from a backup"
    )


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
