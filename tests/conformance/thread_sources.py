"""Sources in memory that start a thread of their own, and are broken for good if it does not start once."""

import threading
import time
from contextlib import suppress
from queue import SimpleQueue

from fencelock.model import digest_of_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.memory.source import MemoryConnection, MemorySource, MemoryWakeup


class OneThread:
    """Runs functions in a thread; it believes that the thread runs before the start has worked."""

    def __init__(self):
        self.work = SimpleQueue()
        self.is_running = False

    def submit(self, function):
        self.work.put(function)
        if not self.is_running:
            self.is_running = True
            threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            self.work.get()()


class ThreadSource(MemorySource):
    """A source with such a thread."""

    def __init__(self, url, **options):
        super().__init__(url, **options)
        self.thread = OneThread()


class WaitsForItsThread(ThreadSource):
    """Every request waits for the thread, without a bound."""

    def connect(self, *, request_timeout_s=0.0):
        return _WaitingConnection(self, self._now_us)


class _WaitingConnection(MemoryConnection):
    def perform(self, request):
        answered = SimpleQueue()
        with suppress(RuntimeError):
            self._store.thread.submit(lambda: answered.put(super(_WaitingConnection, self).perform(request)))
        return answered.get()


class NeverNotifiesAgain(ThreadSource):
    """The thread notifies waiters; without it they find their turn by polling, for good."""

    def listen(self, lock, claim):
        return _ThreadWakeup(self, claim)


class _ThreadWakeup(MemoryWakeup):
    def __init__(self, store, claim):
        super().__init__(store.world(), digest_of_claim(claim))
        self._store = store
        self._submit(lambda: None)

    def notify(self):
        self._submit(super().notify)

    def _submit(self, function):
        with suppress(RuntimeError):
            self._store.thread.submit(function)


class BelievesInItsWatch(ThreadSource):
    """After a lease's first renewal it relies on the thread to tell a loss, and does not look itself."""

    def __init__(self, url, **options):
        super().__init__(url, **options)
        self.watched = set()

    def connect(self, *, request_timeout_s=0.0):
        return _WatchingConnection(self, self._now_us)

    def watch(self, lock, claim):
        """Poll until the claim no longer holds the lock."""
        while self.world().model.locks[lock].digest == digest_of_claim(claim):
            time.sleep(0.001)
        self.watched.discard(claim)


class _WatchingConnection(MemoryConnection):
    def perform(self, request):
        if not isinstance(request, ask.Renew):
            return super().perform(request)
        ((lock, claim),) = request.leases
        if claim in self._store.watched:
            return ask.Renewed({claim: 1000}, {})
        reply = super().perform(request)
        if claim in reply.remaining_ms:
            self._store.watched.add(claim)
            with suppress(RuntimeError):
                self._store.thread.submit(lambda: self._store.watch(lock, claim))
        return reply


BROKEN_BY_A_THREAD = (WaitsForItsThread, NeverNotifiesAgain, BelievesInItsWatch)
