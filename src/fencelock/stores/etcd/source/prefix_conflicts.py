"""What may be in the way where a guard or a source is to begin: sources and guards at the same prefix, or around it.

A lock's queue is every key that begins with `<prefix><name>/`, and a resource is every such key too. So whatever is
kept below a source's prefix may be in the queue of a lock, which nobody gets then, and below a guard's in a resource.

Promise: the prefix itself is looked at, and every one that it is below, as far as the URL's user may read there. Never:
what is below the prefix looked for, which would be to read all of it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fencelock.errors import SourceError
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.errors import is_not_permitted
from fencelock.stores.etcd.source.layout import EtcdLayout
from fencelock.stores.quorum.encoding import RESERVED, unescape_name
from fencelock.stores.quorum.guard_codec import Operations


class PrefixConflict(NamedTuple):
    """What begins with a key, if it is there, and what it makes of the place that was asked about."""

    key: bytes
    description: str


def conflicts_of_guard(prefix: bytes) -> list[PrefixConflict]:
    """Return the sources in whose way a guard behind the prefix would be."""
    return [PrefixConflict(EtcdLayout(prefix).record, "is the place of a source of locks"), *_sources_above(prefix)]


def conflicts_of_source(prefix: bytes) -> list[PrefixConflict]:
    """Return the guards, and other sources, in whose way a source behind the prefix would be."""
    own = PrefixConflict(marks_prefix(prefix), "is the place of a guard's marks and data")
    above = [
        PrefixConflict(marks_prefix(outer) + revoke, f"is within resource {name!r} of the guard at {_shown(outer)}")
        for outer, revoke in _above(prefix)
        if (name := _name(revoke)) is not None
    ]
    return [own, *above, *_sources_above(prefix)]


def marks_prefix(prefix: bytes) -> bytes:
    """Return what the key of each mark begins with of a guard behind the prefix."""
    return prefix + f"{RESERVED}/marks/".encode()


def find_conflict(conflicts: Sequence[PrefixConflict], execute: Callable[[Any], Operations]) -> Operations:
    """Return the description of the first conflict that exists, or None. `execute` sends a Txn."""
    try:
        found: list[bool] = yield from _exist(conflicts, execute)
    except SourceError as error:
        if not is_not_permitted(error):
            raise
        found = yield from _exist_one_by_one(conflicts, execute)
    return next((one.description for one, is_there in zip(conflicts, found, strict=True) if is_there), None)


def _exist(conflicts: Sequence[PrefixConflict], execute: Callable[[Any], Operations]) -> Operations:
    # A mark's own key may go on with another's name, so it is read as one key; the parent of all marks as a range.
    looks = [wire.count_prefix(one.key) if one.key.endswith(b"/") else wire.count(one.key) for one in conflicts]
    answer = yield from execute(wire.txn((), looks))
    return [one.response_range.count > 0 for one in answer.responses]


def _exist_one_by_one(conflicts: Sequence[PrefixConflict], execute: Callable[[Any], Operations]) -> Operations:
    """The same where the user may not read all of them: of what others keep to themselves nothing is known."""
    own, *others = conflicts
    found: list[bool] = yield from _exist([own], execute)
    for one in others:
        try:
            found += yield from _exist([one], execute)
        except SourceError as error:
            if not is_not_permitted(error):
                raise
            found.append(False)
    return found


def _sources_above(prefix: bytes) -> Iterator[PrefixConflict]:
    for outer, revoke in _above(prefix):
        if (lock := _name(revoke)) is not None:
            description = f"is within the queue of lock {lock!r} of the source of locks at {_shown(outer)}"
            yield PrefixConflict(EtcdLayout(outer).record, description)
        elif revoke == RESERVED.encode():
            yield PrefixConflict(
                EtcdLayout(outer).record, f"is within what the source of locks at {_shown(outer)} keeps"
            )


def _above(prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the prefixes that this one is below, the nearest first, each with the part that comes next."""
    parts = prefix.split(b"/")[:-1]
    for length in reversed(range(len(parts))):
        yield b"".join(revoke + b"/" for revoke in parts[:length]), parts[length]


def _name(revoke: bytes) -> str | None:
    return unescape_name(revoke.decode(errors="replace"))


def _shown(prefix: bytes) -> str:
    return repr(prefix.decode(errors="replace")) if prefix else "the whole of etcd"
