"""A guard over a target in memory that takes no locks and compares versions at the end, as for etcd and ZooKeeper."""

import itertools
import json
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple
from zlib import crc32

from fencelock.errors import GuardError, OutcomeUnknownError, SourceUnavailableError, UnsupportedError
from fencelock.model import Mark
from fencelock.protocol import guard_requests as ask
from fencelock.protocol.generators import run_generator
from fencelock.protocol.guard_requests import ConflictError
from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.optimistic.guard_codec import OptimisticGuardCodec
from fencelock.stores.optimistic.purging import PurgingGuardCodec
from fencelock.stores.optimistic.stored_values import FLOORS, StoredMark, StoredValue, encode_entry, encode_mark

TARGETS = {}


class VersionedTarget:
    """Values by their keys, each with the number of its last write; one conditional request is one step."""

    def __init__(self):
        self.values = {}
        self.numbers = itertools.count(1)
        self.mutex = threading.Lock()

    def read(self, key):
        return self.values.get(key, StoredValue(None, 0))

    def swap(self, expected, writes):
        """Write all values if every key has its expected version; otherwise return the first key that has another."""
        with self.mutex:
            for key, version in expected.items():
                if self.read(key).version != version:
                    return key
            for key, value in writes.items():
                # As in etcd and ZooKeeper, a deleted key is as if it had never been there.
                self.values.pop(key, None)
                if value is not None:
                    self.values[key] = StoredValue(value, next(self.numbers))
            return None

    def carry_out(self, operation):
        """Answer one request: the wire, where a request or its answer may be lost."""
        return operation(self)

    def keys(self, kind):
        """Return the keys of this kind."""
        return [key for key in self.values if key[0] == kind]


class CarelessTarget(VersionedTarget):
    """Ignores every condition."""

    def swap(self, expected, writes):
        return super().swap({}, writes)


class ContentTarget(VersionedTarget):
    """Knows a value by its bytes, as a store whose version is a checksum."""

    def read(self, key):
        value = super().read(key).value
        return StoredValue(value, 0 if value is None else crc32(value) + 1)


class AnswerLostError(Exception):
    """What the wire raises for an answer that does not come."""


class Swap(NamedTuple):
    """A request that writes."""

    expected: Any
    writes: Any

    def __call__(self, target):
        return target.swap(self.expected, self.writes)


class Work:
    """The object that a block gets: it reads at once, and writes at the end."""

    def __init__(self, target, expected):
        self.target = target
        self.expected = expected
        self.writes = {}
        self.is_over = False

    def get(self, table, key):
        stored = self.target.read((table, key))
        self.expected.setdefault((table, key), stored.version)
        return None if stored.value is None else stored.value.decode()

    def put(self, table, key, value):
        if self.is_over:
            raise GuardError("the block is over")
        self.writes[table, key] = value.encode()

    def end(self):
        self.is_over = True


class VersionedOperations:
    """The store's own operations; each is a function of the target."""

    def _read(self, resources):
        return (yield lambda target: {name: target.read(("mark", name)) for name in resources})

    def _read_all(self):
        return (yield from self._read([FLOORS, *(yield from self._read_names())]))

    def _read_names(self):
        return (yield lambda target: [name for _, name in target.keys("mark") if name != FLOORS])

    def _find_limited(self, resources):
        yield from ()
        return set()

    def _find_conflict(self):
        return (yield lambda target: "is the prefix of a source of locks" if "locks" in target.values else None)

    def _find_traces(self, resource):
        entries = yield lambda target: [json.loads(target.read(key).value) for key in target.keys("audit")]
        return any((one["action"], one["resource"]) == ("protect", resource) for one in entries)

    def _write(self, changes):
        writes = {("mark", name): value for name, value in changes.writes.items()}
        writes |= {("audit", object()): encode_entry(entry) for entry in changes.entries}
        yield from self._swap({("mark", name): one.version for name, one in changes.seen.items()}, writes)

    def _open_work(self, request, seen):
        expected = {("mark", name): one.version for name, one in seen.items()}
        return (yield lambda target: Work(target, expected))

    def _write_work(self, work):
        yield from self._swap(work.expected, work.writes)

    def _effect_ids(self):
        return (yield lambda target: [key[1:] for key in target.keys("effect")])

    def _read_effect_value(self, resource, key):
        return (yield lambda target: target.read(("effect", resource, key)))

    def _rely_on_effect(self, resource, key, stored):
        self.work.expected["effect", resource, key] = stored.version

    def _keep_effect(self, resource, key, value, before):
        self.work.writes["effect", resource, key] = value
        yield from ()

    def _delete_effect(self, resource, key, stored):
        place = ("effect", resource, key)
        changed = yield Swap({place: stored.version}, {place: None})
        return changed is None

    def _swap(self, expected, writes):
        changed = yield Swap(expected, writes)
        if changed is not None:
            raise ConflictError(f"{changed} has changed")


class VersionedCodec(VersionedOperations, PurgingGuardCodec):
    """Writes any number of values in one step."""


class LoneCodec(VersionedOperations, OptimisticGuardCodec):
    """Is made for one resource in a step, so it keeps no floors."""


class Connection:
    """One client."""

    def __init__(self, target, codec):
        self.target = target
        self.codec = codec

    @property
    def native(self):
        return self.codec.work

    def perform(self, request):
        try:
            return run_generator(self.codec.operations(request), self.send)
        except BaseException:
            self.rollback()
            raise

    def send(self, operation):
        try:
            return self.target.carry_out(operation)
        except AnswerLostError as error:
            if isinstance(operation, Swap):
                raise OutcomeUnknownError("the answer to a write was lost") from error
            raise SourceUnavailableError("the answer to a read was lost") from error

    def rollback(self):
        self.codec.forget()

    def map_error(self, error):
        return None

    def close(self):
        self.rollback()


class OptimisticGuard:
    """A guard store; stores with the same URL guard the same target."""

    capabilities = GuardCapabilities(enforced_by="nobody", keeps_open=False)

    connection_type = Connection
    target_type = VersionedTarget

    def __init__(self, url, codec_type=VersionedCodec):
        self.url = url
        self.target = TARGETS.setdefault(url, self.target_type())
        self.codec_type = codec_type

    def connect(self):
        return self.connection_type(self.target, self.codec_type(self.url))

    def install(self):
        pass

    def examine(self):
        return []


class AsyncConnection(Connection):
    """The same for tasks."""

    async def perform(self, request):
        return Connection.perform(self, request)

    async def rollback(self):
        self.codec.forget()

    def close(self):
        self.codec.forget()


class SpeakingGuard(OptimisticGuard):
    """Its client speaks asyncio."""

    capabilities = replace(OptimisticGuard.capabilities, speaks_asyncio=True)

    def connect_async(self):
        return AsyncConnection(self.target, self.codec_type(self.url))


class ContentGuard(OptimisticGuard):
    target_type = ContentTarget


class ProvingGuard(OptimisticGuard):
    """Tries whether the server keeps its conditions."""

    def prove(self):
        probe = ("probe", object())
        self.target.swap({probe: 0}, {probe: b"first"})
        if self.target.swap({probe: 0}, {probe: b"second"}) is None:
            raise UnsupportedError("the server ignores conditions, so it cannot keep a mark: use another one")
        self.target.swap({}, {probe: None})


class ProtectedGuard(OptimisticGuard):
    """Where `protect` alone creates a mark."""

    capabilities = replace(OptimisticGuard.capabilities, first_seal_creates=False)


class LoneGuard(ProtectedGuard):
    """One step there writes one resource."""

    capabilities = replace(ProtectedGuard.capabilities, spans_resources=False)


class InVersionedTarget:
    """How the kit reads and writes the target."""

    compares_reads = True
    codec_type = VersionedCodec

    def make_url(self):
        return f"memory://{self.folder.name}-optimistic"

    store_type = OptimisticGuard

    def make_store(self, url):
        return self.store_type(url, self.codec_type)

    def make_careless_store(self):
        if not hasattr(self.store_type, "prove"):
            return None
        careless = type("Careless", (self.store_type,), {"target_type": CarelessTarget})
        return careless(f"{self.url}-careless")

    def wire(self):
        return VersionedTarget, "carry_out"

    def lost_reply(self):
        return AnswerLostError()

    def lose_mark(self, resource):
        self.make_store(self.url).target.swap({}, {("mark", resource): None})

    def put(self, native, table, key, value):
        native.put(table, key, value)

    def read(self, native, table, key):
        return native.get(table, key)

    def put_alone(self, table, key, value):
        self.make_store(self.url).target.swap({}, {(table, key): value.encode()})

    def dump(self):
        return repr(self.make_store(self.url).target.values).encode()

    def get(self, table, key):
        value = self.make_store(self.url).target.read((table, key)).value
        return None if value is None else value.decode()


# --- broken ones ---
class NothingComparedAtTheEnd(VersionedCodec):
    """Reads the mark when the block begins, and never again."""

    def _write_work(self, work):
        yield from self._swap({}, work.writes)


class NothingComparedByASeal(VersionedCodec):
    def _write(self, changes):
        changes.seen.clear()
        yield from super()._write(changes)


class FloorsNotCompared(VersionedCodec):
    def _write(self, changes):
        changes.seen.pop(FLOORS, None)
        yield from super()._write(changes)


class OnlyTheFirstMarkCompared(VersionedCodec):
    def _open_work(self, request, seen):
        first = dict(itertools.islice(seen.items(), 1))
        return (yield from super()._open_work(request, first))


class ReadsNotCompared(VersionedCodec):
    def _write_work(self, work):
        marks = {key: version for key, version in work.expected.items() if key[0] == "mark"}
        yield from self._swap(marks, work.writes)


class MissingMarksMadeUp(VersionedCodec):
    """Takes a resource without a mark for one that was never sealed."""

    def _marks(self, found):
        return {name: Mark(name, "lock") for name in found if name != FLOORS} | super()._marks(found)


class RetryingConnection(Connection):
    """Its client library sends a request again whose answer was lost."""

    def send(self, operation):
        try:
            return self.target.carry_out(operation)
        except AnswerLostError:
            return super().send(operation)


class RetryingGuard(OptimisticGuard):
    connection_type = RetryingConnection


class TakenForDone(Connection):
    """Takes a lost answer to a write for success."""

    def send(self, operation):
        with suppress(OutcomeUnknownError):
            return super().send(operation)


class BelievingGuard(OptimisticGuard):
    connection_type = TakenForDone


class TrustingGuard(OptimisticGuard):
    """Proves nothing."""

    def prove(self):
        pass


class AllWrittenBack(VersionedCodec):
    """A block reads all data at its beginning, and writes all of it back."""

    def _open_work(self, request, seen):
        work = yield from super()._open_work(request, seen)
        data = yield lambda target: {key: one.value for key, one in target.values.items() if key[0] in ("red", "blue")}
        work.writes |= data
        return work


class OperatorsIgnored(VersionedCodec):
    """Keeps what an operator did in the audit alone."""

    def _change_mark(self, request):
        return self._write_audit(ask.WriteAudit(request.entry))

    ANSWERS: ClassVar = {**VersionedCodec.ANSWERS, ask.ChangeMark: _change_mark}


class OperatorsAlwaysAtZero(VersionedCodec):
    """Makes every mark as a new one."""

    def _change_mark(self, request):
        yield from super()._change_mark(request._replace(mark=Mark(request.mark.resource, request.mark.lock)))

    ANSWERS: ClassVar = {**VersionedCodec.ANSWERS, ask.ChangeMark: _change_mark}


class DeclaringTooMuch(OptimisticGuard):
    capabilities = GuardCapabilities(enforced_by="policy")


class SealingToProve(OptimisticGuard):
    def prove(self):
        self.target.swap({}, {("mark", "r"): encode_mark(StoredMark(Mark("r", "lock", 1)))})


class RefusalsIgnored(VersionedCodec):
    """Takes a request that wrote nothing for one that did."""

    def _swap(self, expected, writes):
        yield lambda target: target.swap(expected, writes)
