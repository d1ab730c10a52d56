"""A guard over a place in memory: what the kit for guards is tried on, and broken."""

import threading
import time
from contextlib import suppress

from fencelock.errors import SourceUnavailableError
from fencelock.testing.memory_resource import MemoryResource, MemoryResourceSession

REQUEST_TIMEOUT_S = 5.0
PLACES = {}


class PatientSession(MemoryResourceSession):
    """A session that waits for the writer before it."""

    def enter(self):
        give_up = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            with suppress(SourceUnavailableError), self.place.mutex:
                super().enter()
                return
            if time.monotonic() >= give_up:
                raise SourceUnavailableError("the place was locked for too long")
            self.place.left.wait(0.01)


class MemoryGuard:
    """A guard store; every one of the same URL watches over the same place."""

    speaks_asyncio = False

    def __init__(self, url, session_type=PatientSession):
        self.url = url
        self.session_type = session_type
        self.place = PLACES.get(url)
        if self.place is None:
            self.place = PLACES[url] = MemoryResource()
            self.place.mutex = threading.Lock()
            self.place.left = threading.Event()

    def connect(self):
        return self.session_type(self.place)

    def caller_connection(self, native):
        return native

    def install(self):
        pass

    def examine(self):
        return []


class InPlace:
    """How the kit reads and writes there."""

    session_type = PatientSession

    def make_url(self):
        return f"memory://{self.folder.name}"

    def make_store(self, url):
        return MemoryGuard(url, self.session_type)

    def put(self, native, table, key, value):
        native.put(table, key, value)

    def put_alone(self, table, key, value):
        self.make_store(self.url).connect().put_alone(table, key, value)

    def get(self, table, key):
        return self.make_store(self.url).connect().get(table, key)
