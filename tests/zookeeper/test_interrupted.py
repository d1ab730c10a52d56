"""A thread that an exception from outside meets anywhere, while another one uses the same session of ZooKeeper.

kazoo takes locks in Python code, and hands each request over in two steps: after an exception between them, every
later request of the session would wait for the one after it.
"""

import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest

import fencelock
from fencelock.testing.conformance.interrupts import INTERRUPTS, interrupted_at
from fencelock_lab.servers.zookeeper import ZooKeeperFleet, ZooKeeperServer
from tests.support.beats import Beats, walk
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import DEADLINE_S
from tests.zookeeper.fix_zookeeper import fresh_base

pytestmark = [
    # Of a handler that raises as an object goes, Python reports the exception and goes on.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
]

TICK_MS = 3000
TTL = 60.0
"""The longest that servers with this tick grant: what is released here is released by its holder or by the keeper."""
KAZOO = ("/kazoo/handlers/", "/kazoo/protocol/connection.py")
"""Where kazoo takes locks, and hands requests over; to read its session's id does neither."""
REQUEST = ("/stores/zookeeper/", "/stores/helper_threads.py", "/kazoo/", "/threading.py")
Block = Callable[[int], None]


@pytest.fixture(scope="module")
def server(zookeeper_fleet: ZooKeeperFleet) -> Iterator[ZooKeeperServer]:
    with zookeeper_fleet.new_server(tick_ms=TICK_MS) as server:
        yield server


@pytest.fixture
def source(server: ZooKeeperServer) -> Iterator[fencelock.Source]:
    with fencelock.connect(server.url(fresh_base())) as source:
        source.install()
        yield source


@pytest.fixture
def block(server: ZooKeeperServer) -> Block:
    """A function that writes behind a guard, under this token."""
    base = fresh_base()
    guard = fencelock.guard(server.url(base), resource=RESOURCE, lock=LOCK)
    node = f"{base}/{RESOURCE}"

    def write(token: int) -> None:
        with guard.transaction(HandmadeLease(token)) as txn:
            (txn.create if txn.exists(node) is None else txn.set)(node, b"value")

    return write


def test_no_thread_of_a_program_runs_code_of_kazoo_in_a_request(source: fencelock.Source, block: Block) -> None:
    def use() -> None:
        with interrupted_at(None, *KAZOO) as interruption:
            with source.lock("wanted", ttl=TTL):
                block(1)
            places.append(interruption.places)

    places: list[int] = []
    other = threading.Thread(target=use)
    other.start()
    other.join()
    use()
    assert places == [0, 0]


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.campaign), 17])
def test_h10_an_acquire_interrupted_anywhere_holds_up_no_beat_and_no_later_acquire(
    source: fencelock.Source, stride: int
) -> None:
    with source.lock("held", ttl=TTL) as lease:
        beats = Beats(source._keeper_driver, lease)

        def hold() -> None:
            with source.lock("wanted", ttl=TTL, timeout=DEADLINE_S):
                pass

        walk(hold, beats, stride, *REQUEST, "/fencelock/")
        beats.end()


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.campaign), 17])
def test_g11_a_block_interrupted_anywhere_holds_up_no_later_one(block: Block, stride: int) -> None:
    block(1)
    for place in count(0, stride):
        try:
            with interrupted_at(place, *REQUEST) as interruption:
                block(2 * place + 2)
        except INTERRUPTS:
            pass
        block(2 * place + 3)
        if not interruption.has_come:
            assert place
            return
