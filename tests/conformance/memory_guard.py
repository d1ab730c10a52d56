"""A guard over a target in memory, on which the conformance kit for guards is tested; broken guards derive from it."""

import threading
import time
from contextlib import suppress

from fencelock.errors import SourceUnavailableError
from fencelock.protocol.stores import GuardCapabilities
from fencelock.testing.memory_resource import MemoryResource, MemoryResourceSession

REQUEST_TIMEOUT_S = 5.0
TARGETS = {}


class PatientSession(MemoryResourceSession):
    """A session that waits for the writer before it."""

    def enter(self):
        give_up = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            with suppress(SourceUnavailableError), self.target.mutex:
                super().enter()
                return
            if time.monotonic() >= give_up:
                raise SourceUnavailableError("the target was locked for too long")
            self.target.left.wait(0.01)


class MemoryGuard:
    """A guard store; stores with the same URL guard the same target."""

    capabilities = GuardCapabilities(enforced_by="store")

    def __init__(self, url, session_type=PatientSession):
        self.url = url
        self.session_type = session_type
        self.target = TARGETS.get(url)
        if self.target is None:
            self.target = TARGETS[url] = MemoryResource()
            self.target.mutex = threading.Lock()
            self.target.left = threading.Event()

    def connect(self):
        return self.session_type(self.target)

    def caller_connection(self, native):
        return native

    def install(self):
        pass

    def examine(self):
        return []


class InTarget:
    """How the kit reads and writes the target."""

    session_type = PatientSession
    interrupted_files = ("/tests/conformance/",)

    def make_url(self):
        return f"memory://{self.folder.name}"

    def make_store(self, url):
        return MemoryGuard(url, self.session_type)

    def put(self, native, table, key, value):
        native.put(table, key, value)

    def put_alone(self, table, key, value):
        self.make_store(self.url).connect().put_alone(table, key, value)

    def dump(self):
        return repr(vars(self.make_store(self.url).target.state)).encode()

    def get(self, table, key):
        return self.make_store(self.url).connect().get(table, key)
