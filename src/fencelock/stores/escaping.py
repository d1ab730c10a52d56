"""Names of locks as parts of a key or a path: `%XX` for every byte but `[A-Za-z0-9_-]` and inner dots.

Promise: two names are never one part, a part is never empty, `.` or `..`, holds no separator and does not begin or end
with a dot; so a part that begins with a dot is free for whoever keeps something beside the locks. A name that needs no
escape is its own part. Never: a part accepted that `escaped` would not have written.
"""

from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

_DOT = "%2E"
MAX_REMEMBERED = 4096
"""Names whose parts are remembered: each request spells its lock's name several times."""


@lru_cache(maxsize=MAX_REMEMBERED)
def escaped(name: str) -> str:
    """Return the part of a path that stands for a name."""
    part = quote(name, safe="").replace("~", "%7E")
    if part.startswith("."):
        part = _DOT + part[1:]
    if part.endswith("."):
        part = part[:-1] + _DOT
    return part


def unescaped(part: str) -> str | None:
    """Return the name that a part stands for; None if it stands for none."""
    try:
        name = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        return None
    return name if name and escaped(name) == part else None
