"""The operations of a guard at a folder: pure.

Promise: a mark, an effect and an audit entry are each a file of their own, which is replaced in the commit that changes
what it is about. Names are escaped, so two resources never share a file.
Never: a decision about a token; a floor, since one commit is about one resource.
"""

from collections.abc import Callable, Iterable, Mapping

from fencelock.protocol import guard_requests as ask
from fencelock.protocol.guard_requests import ConflictError
from fencelock.stores.files.guard.block import FilesTransaction
from fencelock.stores.files.guard.layout import (
    AUDIT,
    EFFECTS,
    MARKS,
    CommitFiles,
    Expected,
    ListNames,
    Outdated,
    Parts,
    ReadValues,
    name_parts,
    names_of,
    new_entry,
)
from fencelock.stores.optimistic.effects import Operations
from fencelock.stores.optimistic.guard_codec import OptimisticGuardCodec
from fencelock.stores.optimistic.stored_values import FLOORS, PendingChanges, StoredValue, decode_mark, encode_entry

_NAMES_OF_EFFECT = 2
MakeWork = Callable[[str, int, tuple[Expected, ...]], FilesTransaction]


class FilesGuardCodec(OptimisticGuardCodec):
    """The operations of one connection. `make_work` makes a block's transaction of a resource, a token and what it
    relies on.
    """

    def __init__(self, url: str, make_work: MakeWork) -> None:
        super().__init__(url)
        self._make_work = make_work

    def _read(self, resources: Iterable[str]) -> Operations:
        names = tuple(resources)
        kept = [name for name in names if name != FLOORS]
        values: tuple[bytes | None, ...] = yield ReadValues(tuple(map(_mark_parts, kept)))
        found = dict(zip(kept, values, strict=True))
        return {name: StoredValue(found.get(name), 0) for name in names}

    def _read_all(self) -> Operations:
        found: list[Parts] = yield ListNames(MARKS)
        names = filter(None, map(names_of, found))
        return (yield from self._read((FLOORS, *(one[0] for one in names if len(one) == 1))))

    def _find_conflict(self) -> Operations:
        """Return None: a source in a SQLite file is not disturbed by what is beside it."""
        yield from ()

    def _find_traces(self, resource: str) -> Operations:
        """Return whether the audit knows the resource: it has an entry of each protected one."""
        return bool((yield ListNames((*AUDIT, *name_parts(resource)))))

    def _write(self, changes: PendingChanges) -> Operations:
        values = [(_mark_parts(name), value) for name, value in changes.writes.items()]
        values += [(new_entry(entry.resource), encode_entry(entry)) for entry in changes.entries]
        outdated = (
            Outdated(name, decode_mark(self._url, name, value).mark.token)
            for name, value in changes.writes.items()
            if value is not None
        )
        yield from self._send(CommitFiles(_unchanged(changes.seen), values=tuple(values), outdated=tuple(outdated)))
        return changes.left(0)

    def _open_work(self, request: ask.Open, seen: Mapping[str, StoredValue]) -> Operations:
        yield from ()
        (resource,) = request.resources
        return self._make_work(resource, request.sequencer.token, _unchanged(seen))

    def _write_work(self, work: FilesTransaction) -> Operations:
        yield from self._send(work.request())

    def _send(self, commit: CommitFiles) -> Operations:
        changed: str | None = yield commit
        if changed is not None:
            raise ConflictError(changed)

    # --- effects ------------------------------------------------------------------------------------------------------
    def _effect_ids(self) -> Operations:
        found = yield ListNames(EFFECTS)
        names = filter(None, map(names_of, found))
        return [tuple(one) for one in names if len(one) == _NAMES_OF_EFFECT]

    def _read_effect_value(self, resource: str, key: str) -> Operations:
        (value,) = yield ReadValues((_effect_parts(resource, key),))
        return StoredValue(value, 0)

    def _rely_on_effect(self, resource: str, key: str, stored: StoredValue) -> None:
        self.work.rely_on(_effect_parts(resource, key), stored.value, f"effect {key!r}")

    def _keep_effect(self, resource: str, key: str, value: bytes | None, before: StoredValue) -> Operations:
        self.work.keep(_effect_parts(resource, key), value)
        yield from ()

    def _delete_effect(self, resource: str, key: str, stored: StoredValue) -> Operations:
        where = _effect_parts(resource, key)
        changed = yield CommitFiles((Expected(where, stored.value, f"effect {key!r}"),), values=((where, None),))
        return changed is None


def _mark_parts(resource: str) -> Parts:
    return (*MARKS, *name_parts(resource))


def _effect_parts(resource: str, key: str) -> Parts:
    return (*EFFECTS, *name_parts(resource), *name_parts(key))


def _unchanged(seen: Mapping[str, StoredValue]) -> tuple[Expected, ...]:
    return tuple(
        Expected(_mark_parts(name), stored.value, f"the mark of resource {name!r}")
        for name, stored in seen.items()
        if name != FLOORS
    )
