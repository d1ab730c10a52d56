"""Real processes that freeze, die, wait and end, over etcd."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import fencelock
from tests.etcd.fix_etcd import Corner
from tests.support.helpers import DEADLINE_S, wait_until

pytestmark = [pytest.mark.process, pytest.mark.server_wide]

HOLD = """
import sys, fencelock
source = fencelock.connect(sys.argv[1])
lease = source.lock("lock", ttl=float(sys.argv[2])).acquire()
print(lease.token, flush=True)
lease.lost.wait()
print("lost", flush=True)
"""
WAIT = """
import sys, fencelock
source = fencelock.connect(sys.argv[1])
print("waiting", flush=True)
with source.lock("lock", ttl=float(sys.argv[2])) as lease:
    print(lease.token, flush=True)
"""
TTL = 2.0


class Actor:
    """A program that is controlled by lines of text."""

    def __init__(self, program: str, url: str) -> None:
        command = [sys.executable, "-c", program, url, str(TTL)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        wait_until(lambda: os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG))

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def actors(etcd: Corner) -> Iterator[list[Actor]]:
    fencelock.connect(etcd.url).install()
    started: list[Actor] = []
    yield started
    for actor in started:
        actor.kill()


def test_a_frozen_holder_is_taken_over_and_learns_of_it(etcd: Corner, actors: list[Actor]):
    actors.append(holder := Actor(HOLD, etcd.url))
    token = int(holder.says())
    holder.freeze()
    with fencelock.connect(etcd.url) as source, source.lock("lock", timeout=DEADLINE_S) as lease:
        assert lease.token > token
        holder.thaw()
        assert holder.says() == "lost"
        assert lease.is_valid


def test_a_killed_holder_is_taken_over_after_its_ttl(etcd: Corner, actors: list[Actor]):
    actors.append(holder := Actor(HOLD, etcd.url))
    token = int(holder.says())
    with fencelock.connect(etcd.url) as source:
        assert source.info("lock").is_held  # So that the next request comes at once.
        holder.kill()
        actors.clear()
        assert source.lock("lock").acquire(blocking=False) is None
        with source.lock("lock", timeout=DEADLINE_S) as lease:
            assert lease.token > token


def test_a_killed_waiter_blocks_nobody_for_longer_than_its_ttl(etcd: Corner, actors: list[Actor]):
    with fencelock.connect(etcd.url) as source:
        held = source.lock("lock").acquire()
        assert held is not None
        actors.append(waiter := Actor(WAIT, etcd.url))
        wait_until(lambda: source.info("lock").waiters)
        leases = []
        thread = threading.Thread(target=lambda: leases.append(source.lock("lock", timeout=DEADLINE_S).acquire()))
        thread.start()
        wait_until(lambda: len(source.info("lock").waiters) == 2)
        waiter.kill()
        actors.clear()
        held.release()
        thread.join(DEADLINE_S)
        assert leases[0].is_valid
        leases[0].release()


def test_a_frozen_waiter_whose_session_ended_is_not_granted(etcd: Corner, actors: list[Actor]):
    """H8: its turn came and went while it was frozen; it enqueues again."""
    with fencelock.connect(etcd.url) as source:
        held = source.lock("lock").acquire()
        assert held is not None
        actors.append(waiter := Actor(WAIT, etcd.url))
        assert waiter.says() == "waiting"
        wait_until(lambda: source.info("lock").waiters)
        waiter.freeze()
        wait_until(lambda: not source.info("lock").waiters)
        held.release()
        with source.lock("lock") as lease:
            waiter.thaw()
            wait_until(lambda: source.info("lock").waiters)
            assert lease.is_valid
        assert int(waiter.says()) > lease.token


def test_a_terminated_program_leaves_nothing(etcd: Corner, actors: list[Actor]):
    before = set(etcd.cluster.leases())
    actors.append(holder := Actor(HOLD, etcd.url))
    holder.says()
    holder.process.send_signal(signal.SIGINT)
    holder.process.wait(DEADLINE_S)
    assert not set(etcd.cluster.leases()) - before
