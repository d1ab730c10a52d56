"""How a store writes names into keys and paths, and how it reads JSON values that other programs may have written.

A name becomes one part of a path: `%XX` for every byte but `[A-Za-z0-9_-]` and inner dots.

Promise: pure. Two names never become one part. A part is never empty, `.` or `..`, holds no separator and does not
begin or end with a dot, so parts that begin with a dot are free for other uses beside the locks. A name that needs no
escape is its own part. `decode_object` never raises, and text that passed `shorten` is short and encodable; escaping
control characters for a terminal is the printer's task.
Never: a part accepted that `escape_name` would not have written; a value accepted because a part of it fits.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from types import UnionType
from typing import Any
from urllib.parse import quote, unquote_to_bytes

RESERVED = ".fencelock"
"""The part of a prefix or folder that belongs to fencelock: no escaped name begins with a dot."""
MAX_REMEMBERED = 4096
"""Names whose parts are cached, because each request escapes its lock's name several times."""
MAX_SHOWN_CHARACTERS = 512
_DOT = "%2E"
_CUT = "…"


@lru_cache(maxsize=MAX_REMEMBERED)
def escape_name(name: str) -> str:
    """Return the path part that stands for a name."""
    part = quote(name, safe="").replace("~", "%7E")
    if part.startswith("."):
        part = _DOT + part[1:]
    if part.endswith("."):
        part = part[:-1] + _DOT
    return part


def unescape_name(part: str) -> str | None:
    """Return the name that a part stands for; None if `escape_name` never writes this part."""
    try:
        name = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        return None
    return name if name and escape_name(name) == part else None


def decode_object(value: bytes) -> dict[str, Any]:
    """Return the JSON object in a value; an empty one if the value is anything else."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def has_members(value: Mapping[str, Any], types: Mapping[str, type | UnionType]) -> bool:
    """Return whether an object has all of these members, each of its type."""
    return all(isinstance(value.get(name), type_) for name, type_ in types.items())


def shorten(text: str) -> str:
    """Return another program's text without lone surrogates and at most MAX_SHOWN_CHARACTERS long."""
    cut = text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - len(_CUT)] + _CUT
    return cut.encode(errors="backslashreplace").decode()
