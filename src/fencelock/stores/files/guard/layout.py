"""Where the guard of a folder keeps what, and the operations that its codec yields: pure.

    <folder>/<resource>/…                           the guarded files of a resource
    <folder>/.fencelock/journal                     the commit under way; who holds its flock reads or commits
    <folder>/.fencelock/drafts/<resource>/…         what open blocks have written, named by the token of their lease
    <folder>/.fencelock/staged/…                    what a commit writes for the guard itself
    <folder>/.fencelock/marks/<resource>            a mark
    <folder>/.fencelock/audit/<resource>/…          what operators did, named by the time
    <folder>/.fencelock/effects/<resource>/<key>    a job that is done once (`once=`, `fencelock.dispatch`)

Promise: names are escaped, and cut where a file system takes no longer name, so that two names never share a file. A
part that ends in `+`, which no escaped name contains, is continued by the next one.
"""

from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import NamedTuple
from uuid import uuid4

from fencelock.errors import ConfigError
from fencelock.stores.encoding import RESERVED, escape_name, unescape_name

Parts = tuple[str, ...]
"""The parts of a path below the folder."""
MAX_PART_CHARACTERS = 200
"""A part of a path has 255 bytes at most, and drafts need a few for themselves."""
MAX_PATH_BYTES = 2048
"""The path of a file below its resource; the kernel takes 4096 bytes for all of a path."""
MAX_PART_BYTES = 255
"""Of each part of that path: Linux's file systems take no longer name."""
MAX_SUFFIX_CHARACTERS = 24
TOKEN_DIGITS = 19
_CONTINUED = "+"

HOME: Parts = (RESERVED,)
JOURNAL: Parts = (*HOME, "journal")
DRAFTS: Parts = (*HOME, "drafts")
STAGED: Parts = (*HOME, "staged")
MARKS: Parts = (*HOME, "marks")
AUDIT: Parts = (*HOME, "audit")
EFFECTS: Parts = (*HOME, "effects")


def name_parts(name: str) -> Parts:
    """Return the parts of a path that stand for a name."""
    part = escape_name(name)
    cuts = range(0, len(part), MAX_PART_CHARACTERS)
    parts = [part[start : start + MAX_PART_CHARACTERS] for start in cuts]
    return (*(part + _CONTINUED for part in parts[:-1]), parts[-1])


def names_of(parts: Parts) -> list[str] | None:
    """Return the names that stand one after another in a path; None if the guard never writes this path."""
    names, begun = [], ""
    for part in parts:
        begun += part.removesuffix(_CONTINUED)
        if part.endswith(_CONTINUED):
            continue
        name = unescape_name(begun)
        if name is None:
            return None
        names.append(name)
        begun = ""
    return names if not begun else None


def new_entry(resource: str) -> Parts:
    """Return the path of a new audit entry."""
    return (*AUDIT, *name_parts(resource), f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{uuid4().hex}")


def new_draft(resource: str, token: int, suffix: str) -> Parts:
    """Return the path of a new draft; it has the suffix of the file's name, by which programs tell formats."""
    kept = suffix if len(suffix) <= MAX_SUFFIX_CHARACTERS else ""
    return (*DRAFTS, *name_parts(resource), f"{token:0{TOKEN_DIGITS}}-{uuid4().hex}{kept}")


def new_staged() -> Parts:
    """Return the path of a new file that a commit writes for the guard itself."""
    return (*STAGED, uuid4().hex)


def token_of_draft(name: str) -> int | None:
    """Return the token under which a draft was written; None if the file is no draft."""
    digits, dash, _ = name.partition("-")
    return int(digits) if dash and len(digits) == TOKEN_DIGITS and digits.isdecimal() else None


def file_parts(resource: str, name: str) -> Parts:
    """Return the path of a guarded file; ConfigError for a name that could lead out of its resource."""
    if not isinstance(name, str):
        raise ConfigError(f"a file's name must be str, not {type(name).__name__}")
    parts = tuple(name.split("/"))
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        raise ConfigError("a file's name contains a lone surrogate: use text that UTF-8 can carry") from None
    size_bytes = sum(sizes) + len(parts) - 1
    is_too_long = size_bytes > MAX_PATH_BYTES or max(sizes) > MAX_PART_BYTES
    if any(part in {"", ".", ".."} for part in parts) or "\0" in name or is_too_long:
        raise ConfigError(
            f"{name[:80]!r} names no file of the resource: write a path below its folder, such as 'totals.csv' or "
            f"'2026/11/totals.csv', without '..', of {MAX_PATH_BYTES} bytes at most, and {MAX_PART_BYTES} in each part"
        )
    return (*name_parts(resource), *parts)


def suffix_of(name: str) -> str:
    """Return the suffix of a file's name, `.csv` or `.csv.gz`."""
    return "".join(PurePosixPath(name).suffixes)


# --- operations -------------------------------------------------------------------------------------------------------
class Identity(NamedTuple):
    """Which file a name led to, and its state; a file that was written or replaced since has another one."""

    inode: int
    bytes: int
    modified_ns: int
    changed_ns: int


class Expected(NamedTuple):
    """A value of the guard's own that must still be what was read (None: there was none)."""

    parts: Parts
    value: bytes | None
    name: str


class Seen(NamedTuple):
    """A guarded file that must still be what the block has read (None: there was none)."""

    parts: Parts
    identity: Identity | None
    name: str


class Step(NamedTuple):
    """Rename a draft to its name, or delete what has that name (None)."""

    draft: Parts | None
    target: Parts


class Outdated(NamedTuple):
    """A resource whose drafts under lower tokens can never be committed."""

    resource: str
    below_token: int


class ReadValues(NamedTuple):
    """Read values of the guard's own, at one moment. Answer: tuple[bytes | None, ...]."""

    paths: tuple[Parts, ...]


class ListNames(NamedTuple):
    """List the files below a folder of the guard's own. Answer: list[Parts], below it."""

    parts: Parts


class CommitFiles(NamedTuple):
    """Rename drafts and write values, all or nothing, if everything expected is as it was.

    Answer: str | None, what has changed otherwise.
    """

    expected: tuple[Expected, ...]
    seen: tuple[Seen, ...] = ()
    values: tuple[tuple[Parts, bytes | None], ...] = ()
    steps: tuple[Step, ...] = ()
    outdated: tuple[Outdated, ...] = ()


Operation = ReadValues | ListNames | CommitFiles
