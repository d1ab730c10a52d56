"""Conflicts between prefixes: the sources and guards that a new guard or source would be inside of, or around.

A lock's queue is every key that begins with `<prefix><name>/`, and so is a resource. So data kept below a source's
prefix may be in the queue of a lock, which nobody gets then, and a source's keys may be in a resource of a guard above.

Promise: checks the prefix itself and every prefix above it, as far as the URL's user may read there.
Never: checks what is below the prefix, because that would read all of it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fencelock.errors import SourceError
from fencelock.stores.encoding import RESERVED, unescape_name
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.errors import is_not_permitted
from fencelock.stores.etcd.source.layout import EtcdLayout
from fencelock.stores.optimistic.effects import Operations


class PrefixConflict(NamedTuple):
    """The key or key prefix that exists if there is a conflict, and how the conflict is described."""

    key: bytes
    description: str


def conflicts_of_guard(prefix: bytes) -> list[PrefixConflict]:
    """Return the sources that a guard at the prefix would conflict with."""
    return [PrefixConflict(EtcdLayout(prefix).record, "is the place of a source of locks"), *_sources_above(prefix)]


def conflicts_of_source(prefix: bytes) -> list[PrefixConflict]:
    """Return the guards and sources that a source at the prefix would conflict with."""
    own = [
        PrefixConflict(key, "is the place of a guard's marks and data")
        for key in (marks_prefix(prefix), floors_key(prefix))
    ]
    above = [
        PrefixConflict(marks_prefix(outer) + part, f"is within resource {name!r} of the guard at {_shown(outer)}")
        for outer, part in _above(prefix)
        if (name := _name(part)) is not None
    ]
    return [*own, *above, *_sources_above(prefix)]


def marks_prefix(prefix: bytes) -> bytes:
    """Return the key prefix of the marks of a guard at this prefix."""
    return prefix + f"{RESERVED}/marks/".encode()


def floors_key(prefix: bytes) -> bytes:
    """Return the key of the floors of a guard at this prefix, which stays when its marks are purged."""
    return prefix + f"{RESERVED}/floors".encode()


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
    """Return for each conflict whether it exists."""
    # A mark's own key may be the beginning of another's, so it is read as one key; the parent of all marks as a range.
    reads = [wire.count_prefix(one.key) if one.key.endswith(b"/") else wire.count(one.key) for one in conflicts]
    answer = yield from execute(wire.txn((), reads))
    return [one.response_range.count > 0 for one in answer.responses]


def _exist_one_by_one(conflicts: Sequence[PrefixConflict], execute: Callable[[Any], Operations]) -> Operations:
    """Return the same, one by one, because the user may not read all keys; such a key counts as missing."""
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
    for outer, part in _above(prefix):
        if (lock := _name(part)) is not None:
            description = f"is within the queue of lock {lock!r} of the source of locks at {_shown(outer)}"
            yield PrefixConflict(EtcdLayout(outer).record, description)
        elif part == RESERVED.encode():
            yield PrefixConflict(
                EtcdLayout(outer).record, f"is within what the source of locks at {_shown(outer)} keeps"
            )


def _above(prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the prefixes above this one, the nearest first, each with the part that follows it."""
    parts = prefix.split(b"/")[:-1]
    for length in reversed(range(len(parts))):
        yield b"".join(part + b"/" for part in parts[:length]), parts[length]


def _name(part: bytes) -> str | None:
    return unescape_name(part.decode(errors="replace"))


def _shown(prefix: bytes) -> str:
    return repr(prefix.decode(errors="replace")) if prefix else "the whole of etcd"
