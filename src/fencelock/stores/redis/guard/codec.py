"""The operations of a guard at Redis: pure. Where it keeps what is in `layout.py`.

Each operation is one request. Promise: a mark that is missing is told from one that never was by the set of resources.
A server that no longer flushes what it acknowledges, or may evict marks, gets no seal (G4).
Never: a decision about a token.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from redis.exceptions import ResponseError

from fencelock.protocol import guard_requests as ask
from fencelock.protocol.guard_requests import ConflictError
from fencelock.stores.optimistic.effects import Operations
from fencelock.stores.optimistic.purging import PurgingGuardCodec
from fencelock.stores.optimistic.stored_values import FLOORS, PendingChanges, StoredValue, encode_entry
from fencelock.stores.redis.connection.client import RedisRequest
from fencelock.stores.redis.connection.connections import Command
from fencelock.stores.redis.connection.errors import map_refusal
from fencelock.stores.redis.guard.block import RedisComparison, RedisWriteBuffer, check_done, encode_script
from fencelock.stores.redis.guard.commands import Words
from fencelock.stores.redis.guard.layout import RedisLayout

_WRITTEN = 1
"""The version of everything: values alone are compared."""
MakeWork = Callable[[Iterable[RedisComparison]], RedisWriteBuffer]


class RedisGuardCodec(PurgingGuardCodec):
    """The operations of one connection."""

    def __init__(self, layout: RedisLayout, make_work: MakeWork) -> None:
        super().__init__(layout.info.url)
        self._info = layout.info
        self._layout = layout
        self._make_work = make_work

    def _read(self, resources: Iterable[str]) -> Operations:
        names = tuple(resources)
        # The floors are read along before a mark is written, and not at the beginning of each block.
        (values,) = yield from self._ask(("MGET", *map(self._layout.mark, names)), is_examined=FLOORS in names)
        return dict(zip(names, map(_stored, values), strict=True))

    def _read_all(self) -> Operations:
        return (yield from self._read((FLOORS, *(yield from self._read_names()))))

    def _read_names(self) -> Operations:
        (names,) = yield from self._ask(("SMEMBERS", self._layout.resources))
        return [name.decode("utf-8", "replace") for name in names]

    def _find_traces(self, resource: str) -> Operations:
        """Return whether a resource without a mark had one: a purge takes it out of the set."""
        (is_known,) = yield from self._ask(("SISMEMBER", self._layout.resources, resource))
        return bool(is_known)

    def _find_limited(self, resources: Collection[str]) -> Operations:
        """Return none: an operator makes each mark, and each again after a purge."""
        yield from ()
        return set()

    def _find_conflict(self) -> Operations:
        """Return None: Redis is never a source."""
        yield from ()

    def _write(self, changes: PendingChanges) -> Operations:
        commands: list[Words] = []
        for name, value in changes.writes.items():
            key = self._layout.mark(name)
            commands.append((b"DEL", key) if value is None else (b"SET", key, value))
            if name != FLOORS and (value is None or changes.seen[name].value is None):
                # The set tells a lost mark from one that never was: only a purge takes a resource out of it.
                listed = b"SREM" if value is None else b"SADD"
                commands.append((listed, self._layout.resources, name.encode()))
        commands += [(b"RPUSH", self._layout.audit, encode_entry(entry)) for entry in changes.entries]
        yield from self._do(self._unchanged(changes.seen), commands)
        return changes.left(_WRITTEN)

    def _unchanged(self, seen: Mapping[str, StoredValue]) -> list[RedisComparison]:
        return [
            RedisComparison((b"GET", self._layout.mark(name)), stored.value, _name(name))
            for name, stored in seen.items()
        ]

    def _open_work(self, request: ask.Open, seen: Mapping[str, StoredValue]) -> Operations:
        yield from ()
        return self._make_work(self._unchanged(seen))

    def _write_work(self, work: RedisWriteBuffer) -> Operations:
        yield from work.finish()

    # --- effects ------------------------------------------------------------------------------------------------------
    def _effect_ids(self) -> Operations:
        resources = yield from self._read_names()
        if not resources:
            return []
        keys = yield from self._ask(*(("HKEYS", self._layout.effects(one)) for one in resources))
        return [
            (resource, key.decode("utf-8", "replace"))
            for resource, found in zip(resources, keys, strict=True)
            for key in found
        ]

    def _read_effect_value(self, resource: str, key: str) -> Operations:
        (value,) = yield from self._ask(("HGET", self._layout.effects(resource), key))
        return _stored(value)

    def _rely_on_effect(self, resource: str, key: str, stored: StoredValue) -> None:
        self.work.rely_on(self._effect_unchanged(resource, key, stored))

    def _effect_unchanged(self, resource: str, key: str, stored: StoredValue) -> RedisComparison:
        return RedisComparison((b"HGET", self._layout.effects(resource), key.encode()), stored.value, f"effect {key!r}")

    def _keep_effect(self, resource: str, key: str, value: bytes | None, before: StoredValue) -> Operations:
        place = (self._layout.effects(resource), key.encode())
        self.work.keep(place, (b"HDEL", *place) if value is None else (b"HSET", *place, value))
        yield from ()

    def _delete_effect(self, resource: str, key: str, stored: StoredValue) -> Operations:
        unchanged = self._effect_unchanged(resource, key, stored)
        try:
            yield from self._do([unchanged], [(b"HDEL", *unchanged.read[1:])])
        except ConflictError:
            return False
        return True

    # --- requests -----------------------------------------------------------------------------------------------------
    def _ask(self, *commands: Command, is_examined: bool = False) -> Operations:
        """Return the answers to commands that only read."""
        answers = yield RedisRequest(commands, is_read=True, is_examined=is_examined)
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise map_refusal(answer, self._info, is_read=True)
        return answers

    def _do(self, comparisons: list[RedisComparison], commands: list[Words]) -> Operations:
        (answer,) = yield RedisRequest((encode_script(self._layout, comparisons, commands),))
        check_done(self._layout, answer, comparisons, commands)


def _name(resource: str) -> str:
    return "the record of the floors" if resource == FLOORS else f"the mark of resource {resource!r}"


def _stored(value: bytes | None) -> StoredValue:
    return StoredValue(value, _WRITTEN)
