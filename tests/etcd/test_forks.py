"""A forked child uses connections and sessions of its own, whatever its parent is in the middle of (H6)."""

import asyncio
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import fencelock
import fencelock.aio
from fencelock.errors import LeaseInheritedError, UnsupportedError
from fencelock.stores.etcd.connection import channels
from fencelock.stores.etcd.connection import forks as forking
from tests.etcd.fix_etcd import Corner
from tests.support.beats import wait_for_a_beat
from tests.support.helpers import DEADLINE_S, wait_until

pytestmark = [pytest.mark.process, pytest.mark.server_wide, pytest.mark.own_process]
FORKS = 5


def status_of_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child, and return how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    wait_until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    return os.waitpid(pid, 0)[1]


@pytest.fixture
def source(etcd: Corner) -> Iterator[fencelock.Source]:
    fencelock.connect(etcd.url).install()
    with fencelock.connect(etcd.url) as the_source:
        yield the_source


@contextmanager
def busy(source: fencelock.Source) -> Iterator[None]:
    """Run threads that acquire locks without a pause."""
    is_over = threading.Event()

    def work(number: int) -> None:
        while not is_over.is_set():
            with source.lock(f"busy-{number}"):
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(DEADLINE_S)


def cycle(source: fencelock.Source) -> None:
    with source.lock("child", timeout=DEADLINE_S) as lease:
        assert lease.token


def test_a_child_takes_locks_while_its_parents_threads_do(source: fencelock.Source):
    with busy(source):
        for _ in range(FORKS):
            assert status_of_child(lambda: cycle(source)) == 0


@pytest.mark.usefixtures("early_etcd_beats")
def test_a_child_inherits_no_lease_and_its_parents_lives_on(etcd: Corner, source: fencelock.Source):
    lease = source.lock("held", ttl=30.0).acquire()
    assert lease is not None
    wait_for_a_beat(lease)  # From its first beat on, its key is watched.

    def work() -> None:
        with pytest.raises(LeaseInheritedError):
            lease.release()
        assert source.lock("held").acquire(blocking=False) is None
        cycle(source)

    before = set(etcd.cluster.leases())
    assert status_of_child(work) == 0
    wait_for_a_beat(lease)
    assert before <= set(etcd.cluster.leases())
    etcd.cluster.ctl("del", "--prefix", f"{etcd.prefix}/held/")
    assert lease.lost.wait(DEADLINE_S), "the parent's watch tells on"


def test_a_child_of_a_process_with_a_loop_takes_locks(etcd: Corner, source: fencelock.Source):
    async def work() -> int:
        async with fencelock.aio.connect(etcd.url) as mine:
            async with mine.lock("before"):
                status = status_of_child(lambda: cycle(source))
            async with mine.lock("after"):
                return status

    assert asyncio.run(work()) == 0


def test_multiprocessing_forks_workers(etcd: Corner, source: fencelock.Source):
    cycle(source)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=cycle, args=(source,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE_S)
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_a_waiting_parent_is_notified_after_a_fork(etcd: Corner, source: fencelock.Source):
    holder = source.lock("lock").acquire()
    assert holder is not None
    leases = []
    thread = threading.Thread(target=lambda: leases.append(source.lock("lock", timeout=DEADLINE_S).acquire()))
    thread.start()
    wait_until(lambda: source.info("lock").waiters)
    assert status_of_child(lambda: cycle(source)) == 0
    holder.release()
    thread.join(DEADLINE_S)
    assert leases[0].is_valid
    leases[0].release()


def test_a_child_that_was_forked_during_a_call_gets_an_error(source: fencelock.Source, monkeypatch):
    cycle(source)
    monkeypatch.setattr(forking, "WAIT_S", 0.1)
    call = forking.GATE.enter()

    def work() -> None:
        with pytest.raises(UnsupportedError, match="in the middle of a call"):
            cycle(source)

    try:
        assert status_of_child(work) == 0
    finally:
        forking.GATE.leave(call)
    cycle(source)


class FakeChannel:
    """Records whether a fork would wait for its closing."""

    def __init__(self, gate: forking.EtcdForkGate) -> None:
        self._gate = gate
        self.was_guarded: bool | None = None

    def close(self) -> None:
        self.was_guarded = bool(self._gate._under_way)


def test_no_fork_begins_while_a_discarded_channel_is_closed(monkeypatch):
    """Closing takes a lock of the channel's; a child that is forked meanwhile would wait for it for ever."""
    gate = forking.EtcdForkGate()
    monkeypatch.setattr(channels, "GATE", gate)
    channel, late = FakeChannel(gate), FakeChannel(gate)
    channels._discard([channel.close])
    assert channel.was_guarded
    gate._forker = -1
    channels._discard([late.close])
    assert late.was_guarded is None, "it waits for nothing, and is closed later"
    gate._forker = None
    channels._close_discarded()
    assert late.was_guarded
    assert not gate._under_way


@pytest.mark.usefixtures("early_etcd_beats")
def test_programs_are_started_while_a_lease_is_watched(source: fencelock.Source):
    lease = source.lock("held", ttl=30.0).acquire()
    assert lease is not None
    wait_for_a_beat(lease)
    assert "GRPC_ENABLE_FORK_SUPPORT" not in os.environ, "and they inherit nothing of how gRPC was asked to behave"
    codes = {subprocess.run(["sh", "-c", "exit 3"], start_new_session=True, check=False).returncode for _ in range(50)}
    assert codes == {3}
    lease.release()
