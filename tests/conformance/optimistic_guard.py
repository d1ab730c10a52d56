"""A guard over a place in memory that holds nothing still and only compares at the end, as etcd and ZooKeeper do."""

import itertools
import threading

from fencelock.errors import GuardError
from fencelock.protocol.generators import run_generator
from fencelock.protocol.guard_requests import ConflictError
from fencelock.stores.quorum.guard_codec import OptimisticGuardCodec, StoredValue, encode_entry, encode_mark

PLACES = {}


class VersionedPlace:
    """Values by their keys, each with the number of its last write; one conditional request is one step."""

    def __init__(self):
        self.values = {}
        self.numbers = itertools.count(1)
        self.mutex = threading.Lock()

    def read(self, key):
        return self.values.get(key, StoredValue(None, 0))

    def swap(self, expected, writes):
        """Write all if every key has the version that is expected of it; return the first that has not."""
        with self.mutex:
            for key, version in expected.items():
                if self.read(key).version != version:
                    return key
            for key, value in writes.items():
                self.values[key] = StoredValue(value, next(self.numbers))
            return None


class Work:
    """What a block gets: reads at once, writes at the end."""

    def __init__(self, place, expected):
        self.place = place
        self.expected = expected
        self.writes = {}
        self.is_over = False

    def get(self, table, key):
        stored = self.place.read((table, key))
        self.expected.setdefault((table, key), stored.version)
        return None if stored.value is None else stored.value.decode()

    def put(self, table, key, value):
        if self.is_over:
            raise GuardError("the block is over")
        self.writes[table, key] = value.encode()

    def end(self):
        self.is_over = True


class Speech(OptimisticGuardCodec):
    """The words that a store says for itself; each trip is a call with the place."""

    def _read(self, resources):
        return (yield lambda place: {name: place.read(("mark", name)) for name in resources})

    def _read_all(self):
        return (yield lambda place: {key[1]: one for key, one in place.values.items() if key[0] == "mark"})

    def _find_conflict(self):
        return (yield lambda place: "is the place of a source of locks" if "locks" in place.values else None)

    def _write(self, changes):
        writes = {("mark", name): encode_mark(mark) for name, mark in changes.marks.items()}
        writes |= {("audit", id(entry)): encode_entry(entry) for entry in changes.entries}
        yield from self._swap({("mark", name): one.version for name, one in changes.seen.items()}, writes)

    def _open_work(self, request, seen):
        expected = {("mark", name): one.version for name, one in seen.items()}
        return (yield lambda place: Work(place, expected))

    def _write_work(self, work):
        yield from self._swap(work.expected, work.writes)

    def _swap(self, expected, writes):
        changed = yield lambda place: place.swap(expected, writes)
        if changed is not None:
            raise ConflictError(f"{changed} has changed")


class Connection:
    """One client."""

    def __init__(self, place, speech):
        self.place = place
        self.speech = speech

    @property
    def native(self):
        return self.speech.work

    def perform(self, request):
        try:
            return run_generator(self.speech.operations(request), lambda call: call(self.place))
        except BaseException:
            self.rollback()
            raise

    def rollback(self):
        self.speech.forget()

    def map_error(self, error):
        return None

    def close(self):
        self.rollback()


class OptimisticGuard:
    """A guard store; every one of the same URL watches over the same place."""

    speaks_asyncio = False

    def __init__(self, url, speech_type=Speech):
        self.url = url
        self.place = PLACES.setdefault(url, VersionedPlace())
        self.speech_type = speech_type

    def connect(self):
        return Connection(self.place, self.speech_type(self.url))

    def caller_connection(self, native):
        raise GuardError("no transaction stays open here")

    def install(self):
        pass

    def examine(self):
        return []


class InVersionedPlace:
    """How the kit reads and writes there."""

    enforces = observes = False
    speech_type = Speech

    def make_url(self):
        return f"memory://{self.folder.name}-optimistic"

    def make_store(self, url):
        return OptimisticGuard(url, self.speech_type)

    def put(self, native, table, key, value):
        native.put(table, key, value)

    def put_alone(self, table, key, value):
        self.make_store(self.url).place.swap({}, {(table, key): value.encode()})

    def get(self, table, key):
        value = self.make_store(self.url).place.read((table, key)).value
        return None if value is None else value.decode()


# --- broken ones ---
class NothingComparedAtTheEnd(Speech):
    """The mark is looked at when the block begins, and never again."""

    def _write_work(self, work):
        yield from self._swap({}, work.writes)


class NothingComparedByASeal(Speech):
    def _write(self, changes):
        changes.seen.clear()
        yield from super()._write(changes)


class OnlyTheFirstMarkCompared(Speech):
    def _open_work(self, request, seen):
        first = dict(itertools.islice(seen.items(), 1))
        return (yield from super()._open_work(request, first))


class ReadsNotCompared(Speech):
    def _write_work(self, work):
        marks = {key: version for key, version in work.expected.items() if key[0] == "mark"}
        yield from self._swap(marks, work.writes)


class RefusalsIgnored(Speech):
    """A request that wrote nothing passes for one that did."""

    def _swap(self, expected, writes):
        yield lambda place: place.swap(expected, writes)
