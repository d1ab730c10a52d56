"""A main thread that a signal handler interrupts anywhere, while another thread calls etcd over the same channel.

gRPC takes its locks in Python code, so a handler that raises there would leave a lock taken for ever.
"""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest

import fencelock
import fencelock.aio
from fencelock._api.lease import BaseLease
from fencelock._drivers.sync import SyncDriver
from fencelock._flows import renewal
from fencelock.stores.etcd.source.cluster_state import revoke_all_at_exit
from fencelock.stores.etcd.source.session import EtcdSession
from fencelock.testing.conformance.interrupts import INTERRUPTS, interrupted_at
from tests.etcd.fix_etcd import Corner
from tests.support.guards import RESOURCE
from tests.support.helpers import DEADLINE_S, wait_until

pytestmark = [
    # Of a handler that raises as an object goes, Python reports the exception and goes on.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
]

TTL = 60.0
"""Far longer than a test: what is released here is released by its holder or by the keeper."""
HELD_S = 0.1
"""How long a lock is held that is waited for: the waiter sleeps, and is notified."""
GRPC = "/grpc/"
REQUEST = ("/stores/etcd/", "/stores/main_thread.py", GRPC, "/threading.py", "/queue.py")
"""The files of the code that runs in a request."""
BEATS = 2
"""The first of them may have begun before the interruption."""
Hold = Callable[[], None]


class Beats:
    """A thread that renews a lease as the keeper does, with one request directly after the other."""

    def __init__(self, driver: SyncDriver, lease: BaseLease) -> None:
        self._driver = driver
        self._lease = lease
        self._is_over = False
        self._count = 0
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        record = self._lease._record
        while not self._is_over:
            _, renewed = self._driver.run(renewal.renew(((record.lock, record.claim),)))
            assert list(renewed.remaining_ms) == [record.claim]
            self._count += 1

    def wait(self) -> None:
        """Wait until a beat has begun and ended."""
        enough = self._count + BEATS
        wait_until(lambda: self._count >= enough)

    def end(self) -> None:
        self._is_over = True
        self._thread.join(DEADLINE_S)
        assert self._lease.is_valid


def walk(hold: Hold, beats: Beats, stride: int, *files: str) -> None:
    """Interrupt `hold` at every place, or at every so many; after each, leases are renewed, and the lock can be had."""
    hold()
    for place in count(0, stride):
        kept: BaseException | None = None
        try:
            with interrupted_at(place, *files) as interruption:
                hold()
        except INTERRUPTS as error:
            kept = error  # As a program may: its traceback keeps what the interrupted functions had.
        beats.wait()
        del kept
        hold()
        if not interruption.has_come:
            assert place > 100
            return


@pytest.fixture
def source(etcd: Corner) -> Iterator[fencelock.Source]:
    with fencelock.connect(etcd.url) as source:
        source.install()
        yield source


def use(etcd: Corner) -> None:
    """Wait for a lock, write behind a guard, and lose a lease."""
    data = f"data-{etcd.prefix}"
    guard = fencelock.guard(etcd.cluster.url(data), resource=RESOURCE, lock="wanted")
    with fencelock.connect(etcd.url) as source:
        source.install()
        lock = source.lock("wanted", ttl=TTL, timeout=DEADLINE_S)
        first = lock.acquire()
        assert first is not None
        threading.Timer(HELD_S, first.release).start()
        with lock as lease, guard.transaction(lease) as txn:
            assert txn.get(f"{data}/{RESOURCE}/key") is None
            txn.put(f"{data}/{RESOURCE}/key", "value")
        last = lock.acquire()
        assert last is not None
        source.break_lock("wanted", reason="a test")
        assert not last.release()


async def use_async(etcd: Corner) -> None:
    """Wait for a lock on a loop."""
    async with fencelock.aio.connect(etcd.url) as source:
        lock = source.lock("wanted", ttl=TTL, timeout=DEADLINE_S)
        first = await lock.acquire()
        assert first is not None
        asyncio.get_running_loop().call_later(HELD_S, first.release_soon)
        async with lock:
            assert await lock.locked()


def test_the_main_thread_runs_no_code_of_grpc(etcd: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even to close the channels of a source to which nothing refers any more."""
    monkeypatch.setattr(EtcdSession, "is_due", lambda _: True)  # Each request brings a second one, in the background.
    with interrupted_at(None, GRPC) as interruption:
        use(etcd)
        asyncio.run(use_async(etcd))
        gc.collect()
        revoke_all_at_exit()
    assert interruption.places == 0


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.campaign), 31])
def test_a_main_thread_interrupted_anywhere_holds_up_no_beat_and_no_later_acquire(
    source: fencelock.Source, stride: int
) -> None:
    with source.lock("held", ttl=TTL) as lease:
        beats = Beats(source._keeper_driver, lease)

        def hold() -> None:
            with source.lock("wanted", ttl=TTL, timeout=DEADLINE_S):
                pass

        walk(hold, beats, stride, *REQUEST, "/fencelock/", "/weakref.py")
        beats.end()


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.campaign), 31])
def test_a_loop_interrupted_anywhere_holds_up_no_beat_and_no_later_acquire(
    source: fencelock.Source, stride: int
) -> None:
    on_loop = fencelock.aio.connect(source.url)

    async def hold() -> None:
        async with on_loop.lock("wanted", ttl=TTL, timeout=DEADLINE_S):
            pass

    lease = asyncio.run(on_loop.lock("held", ttl=TTL).acquire())
    assert lease is not None
    beats = Beats(on_loop._keeper_driver, lease)
    walk(lambda: asyncio.run(hold()), beats, stride, *REQUEST)
    beats.end()
    asyncio.run(lease.release())
    asyncio.run(on_loop.close())
