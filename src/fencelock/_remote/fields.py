"""The text of the fields that a request and its answer carry, the same over HTTP and gRPC: RFC 9651 strings and lists.

    Fencing-Token:  "fl2.…"
    Fencing-Sealed: "9f3ab2c1d4e5f607", "0a1b2c3d4e5f6071"
    Fencing-Mark:   "43";seal="9f3ab2c1d4e5f607"

Promise: whatever is not exactly such a text is a ValueError, which repeats nothing of it. A list is read in time that
grows with its length. Never: a text longer than what its field can need.
"""

import re
from collections.abc import Iterable

from fencelock._remote.seals import MAX_ID_PARTS, MAX_SEAL_IDS, SEAL_ID_CHARACTERS, RemoteMark
from fencelock.model import MAX_TOKEN

TOKEN_FIELD = "fencing-token"
SEALED_FIELD = "fencing-sealed"
MARK_FIELD = "fencing-mark"
KEY_FIELD = "idempotency-key"
REPLAYED_FIELD = "fencing-replayed"
REPLAYED = "?1"
"""The value of Fencing-Replayed: true."""
MAX_KEY_CHARACTERS = 255
MAX_LIST_CHARACTERS = MAX_SEAL_IDS * 64
_QUOTED = re.compile(r'"([\x20-\x21\x23-\x5b\x5d-\x7e]*)"')
_ID = rf"((?:[0-9a-f]{{{SEAL_ID_CHARACTERS}}}){{1,{MAX_ID_PARTS}}})"
_SEAL_ID = re.compile(f'"{_ID}"')
_MARK = re.compile(rf'"([1-9][0-9]{{0,18}})";\ *seal="{_ID}"', re.VERBOSE)
_COMMA = re.compile(r"[ \t]*,[ \t]*")


def encode_string(text: str) -> str:
    """Return the text as a string of RFC 9651; it has no quotation mark, backslash or control character."""
    return f'"{text}"'


def decode_string(field: str, limit: int) -> str:
    """Return the text of a field that is one string of at most so many characters without an escape in it."""
    found = _QUOTED.fullmatch(field.strip(" \t")) if len(field) <= limit + 2 else None
    if found is None:
        raise ValueError(f'it is not one string in quotation marks, "…", of at most {limit} characters')
    return found[1]


def encode_sealed(ids: Iterable[str]) -> str:
    """Return seal ids as a list of strings."""
    return ", ".join(map(encode_string, ids))


def decode_sealed(field: str) -> tuple[str, ...]:
    """Return the seal ids of a list."""
    found = [_SEAL_ID.fullmatch(member) for member in _members(field)]
    ids = tuple(one[1] for one in found if one is not None)
    if len(ids) < len(found) or len(ids) > MAX_SEAL_IDS:
        raise ValueError(f"it is not a list of at most {MAX_SEAL_IDS} seal ids in quotation marks")
    return ids


def encode_marks(marks: Iterable[RemoteMark]) -> str:
    """Return marks as a list of strings with a parameter."""
    return ", ".join(f'"{mark.token}";seal="{mark.seal_id}"' for mark in marks)


def decode_marks(field: str) -> tuple[RemoteMark, ...]:
    """Return the marks of a list."""
    found = [_MARK.fullmatch(member) for member in _members(field)]
    marks = tuple(RemoteMark(int(one[1]), one[2]) for one in found if one is not None)
    if len(marks) < len(found) or any(mark.token > MAX_TOKEN for mark in marks):
        raise ValueError('it is not a list of marks, "43";seal="9f3ab2c1d4e5f607"')
    return marks


def read_marks(fields: Iterable[str]) -> tuple[RemoteMark, ...]:
    """Return the marks in an answer's fields: none if one field is not understood, for that proves nothing."""
    try:
        return tuple(mark for field in fields for mark in decode_marks(field))
    except ValueError:
        return ()


def _members(field: str) -> list[str]:
    """Split a list; an empty field is an empty list."""
    if len(field) > MAX_LIST_CHARACTERS:
        raise ValueError(f"it has more than {MAX_LIST_CHARACTERS} characters")
    whole = field.strip(" \t")
    return _COMMA.split(whole) if whole else []
