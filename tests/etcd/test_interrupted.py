"""A thread that an exception from outside meets anywhere, while another thread calls etcd over the same channel.

gRPC takes its locks in Python code, so an exception there would leave a lock taken for ever.
"""

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

import fencelock
import fencelock.aio
from fencelock.stores.etcd.source.cluster_state import revoke_all_at_exit
from fencelock.stores.etcd.source.session import EtcdSession
from fencelock.testing.conformance.interrupts import interrupted_at
from tests.etcd.fix_etcd import Corner
from tests.support.beats import Beats, walk
from tests.support.guards import RESOURCE
from tests.support.helpers import DEADLINE_S

pytestmark = [
    # Of a handler that raises as an object goes, Python reports the exception and goes on.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
]

TTL = 60.0
"""Far longer than a test: what is released here is released by its holder or by the keeper."""
HELD_S = 0.1
"""How long a lock is held that is waited for: the waiter sleeps, and is notified."""
GRPC = "/grpc/"
REQUEST = ("/stores/etcd/", "/stores/helper_threads.py", GRPC, "/threading.py", "/queue.py")
"""The files of the code that runs in a request."""


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


@pytest.mark.parametrize("is_main", [True, False], ids=["main thread", "another thread"])
def test_no_thread_of_a_program_runs_code_of_grpc(etcd: Corner, monkeypatch: pytest.MonkeyPatch, is_main: bool) -> None:
    """Not even to close the channels of a source to which nothing refers any more."""
    monkeypatch.setattr(EtcdSession, "is_due", lambda _: True)  # Each request brings a second one, in the background.
    places: list[int] = []

    def run() -> None:
        gc.collect()  # What earlier tests have left is gRPC's own.
        with interrupted_at(None, GRPC) as interruption:
            use(etcd)
            asyncio.run(use_async(etcd))
            gc.collect()
            revoke_all_at_exit()
        places.append(interruption.places)

    if is_main:
        run()
    else:
        other = threading.Thread(target=run)
        other.start()
        other.join()
    assert places == [0]


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.campaign), 31])
def test_h10_a_main_thread_interrupted_anywhere_holds_up_no_beat_and_no_later_acquire(
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
def test_h10_a_loop_interrupted_anywhere_holds_up_no_beat_and_no_later_acquire(
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
