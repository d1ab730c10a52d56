"""What others may have written where a store reads: taken apart so that nothing of it raises, or is too long to show.

Promise: pure. Text that comes out can be encoded and is short; which of its characters a terminal takes is for whoever
prints it. Never: a value taken for one of ours because a part of it fits.
"""

import json
from collections.abc import Mapping
from types import UnionType
from typing import Any

MAX_SHOWN_CHARACTERS = 512
_CUT = "…"


def json_object(value: bytes) -> dict[str, Any]:
    """Return the JSON object that a value is; an empty one if it is none."""
    try:
        said = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def fits(said: Mapping[str, Any], kinds: Mapping[str, type | UnionType]) -> bool:
    """Tell whether an object has all of these members, each of its kind."""
    return all(isinstance(said.get(name), kind) for name, kind in kinds.items())


def shown(text: str) -> str:
    """Return a text of somebody else's as it may be shown and kept: without lone surrogates, and not too long."""
    cut = text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - len(_CUT)] + _CUT
    return cut.encode(errors="backslashreplace").decode()
