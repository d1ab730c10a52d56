"""`etcdctl lock` and fencelock's locks exclude each other, in both directions, in the order of their arrival."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import fencelock
from fencelock.clock import boottime_us
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import TXN
from fencelock_lab.servers.etcd import ctl_environment
from tests.etcd.clients import Client, installed
from tests.etcd.fix_etcd import Corner
from tests.support.helpers import DEADLINE_S, wait_until

LONG_MS = 60_000
ROUNDS = 4


@contextmanager
def etcdctl_lock(corner: Corner, name: str = "lock") -> Iterator[subprocess.Popen[str]]:
    """Start an etcdctl that acquires the lock or waits for it; it prints its key once it has it."""
    command = corner.cluster.ctl_command("lock", f"{corner.prefix}/{name}", "--ttl=5")
    with subprocess.Popen(command, env=ctl_environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def is_granted(process: subprocess.Popen[str]) -> str:
    """Wait until an etcdctl has the lock, and return the key that it prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def queue_keys(corner: Corner, name: str = "lock") -> list[str]:
    return [key for key in sorted(corner.keys()) if key.startswith(f"{name}/")]


@pytest.fixture
def client(etcd: Corner) -> Client:
    return installed(etcd.url)


def test_etcdctl_excludes_fencelock(etcd: Corner, client: Client):
    with etcdctl_lock(etcd) as theirs:
        key = is_granted(theirs)
        assert isinstance(client.acquire("lock"), ask.Busy)
        info = client.ask(ask.Inspect("lock"))
        assert info.is_held
        assert info.holder == f"etcd lease {key.rpartition('/')[2]}"
    wait_until(lambda: isinstance(client.acquire("lock"), ask.Granted))


def test_fencelock_excludes_etcdctl(etcd: Corner, client: Client):
    claim = draw_claim()
    client.token("lock", claim)
    with etcdctl_lock(etcd) as theirs:
        wait_until(lambda: len(queue_keys(etcd)) == 2)
        assert len(client.ask(ask.Inspect("lock")).waiters) == 1
        client.release("lock", claim)
        assert is_granted(theirs)
        assert isinstance(client.acquire("lock"), ask.Busy)


def test_fencelock_waits_for_etcdctl_and_is_notified(etcd: Corner):
    fencelock.connect(etcd.url).install()
    with fencelock.connect(etcd.url) as source, etcdctl_lock(etcd) as theirs:
        is_granted(theirs)
        leases = []
        thread = threading.Thread(target=lambda: leases.append(source.lock("lock", timeout=DEADLINE_S).acquire()))
        thread.start()
        wait_until(lambda: len(queue_keys(etcd)) == 2)
        theirs.terminate()
        thread.join(DEADLINE_S)
        assert leases[0].is_valid
        leases[0].release()


def test_waiters_are_served_in_order_of_arrival(etcd: Corner, client: Client):
    holder, waiter = draw_claim(), draw_claim()
    client.token("lock", holder)
    with etcdctl_lock(etcd) as theirs:
        wait_until(lambda: len(queue_keys(etcd)) == 2)
        reply = client.ask(ask.Acquire("lock", waiter, "tester", LONG_MS, boottime_us(), may_wait=True))
        assert isinstance(reply, ask.Queued)
        client.release("lock", holder)
        assert isinstance(client.ask(ask.Poll("lock", waiter)), ask.Queued)
        is_granted(theirs)
    wait_until(lambda: isinstance(client.ask(ask.Poll("lock", waiter)), ask.Granted))


def test_all_exclude_each_other_under_contention(etcd: Corner):
    """Two threads of fencelock, which share an etcd lease, and programs that etcdctl runs under the lock."""
    fencelock.connect(etcd.url).install()
    inside: list[str] = []
    counter = f"{etcd.prefix}-counter"
    etcd.cluster.ctl("put", counter, "0")
    source = fencelock.connect(etcd.url)

    def count() -> None:
        for _ in range(ROUNDS):
            with source.lock("lock", timeout=DEADLINE_S):
                inside.append("us")
                assert inside == ["us"]
                value = int(etcd.cluster.ctl("get", "--print-value-only", counter))
                etcd.cluster.ctl("put", counter, str(value + 1))
                inside.clear()

    threads = [threading.Thread(target=count) for _ in range(2)]
    for thread in threads:
        thread.start()
    ctl = " ".join(map(str, etcd.cluster.ctl_command()))
    add = f'value=$({ctl} get --print-value-only {counter}); {ctl} put {counter} "$((value + 1))"'
    for _ in range(ROUNDS):
        etcd.cluster.ctl("lock", f"{etcd.prefix}/lock", "--", "sh", "-c", add)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert int(etcd.cluster.ctl("get", "--print-value-only", counter)) == 3 * ROUNDS
    source.close()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"holder": "\\ud800x"}', "\\ud800x"),
        (b'{"holder": "\xed\xa0\x80"}', "\\ud800"),
        (b'{"holder": "\\u001b[2J"}', "\x1b[2J"),
        (b'{"holder": 5}', "etcd lease"),
        (b'{"holder": ' + b"[" * 5000, "etcd lease"),
        (b"\xff\x00", "etcd lease"),
        (b'{"holder": "' + b"x" * 1_000_000 + b'"}', "x" * 511 + "…"),
    ],
)
def test_a_foreign_holder_is_shown_and_broken_whatever_its_value(
    etcd: Corner, client: Client, value: bytes, shown: str
):
    with etcdctl_lock(etcd) as theirs:
        key, lease = is_granted(theirs), int(queue_keys(etcd)[0].rpartition("/")[2], 16)
        client.state.client.call(TXN, wire.txn((), (wire.put(key.encode(), value, lease),)), 5.0)
        assert isinstance(client.acquire("lock"), ask.Busy)
        holder = client.ask(ask.Inspect("lock")).holder
        assert holder.startswith(shown)
        holder.encode()
        assert client.ask(ask.Break("lock", draw_claim(), "an operator", "a test")).holder == holder
        assert client.token("lock")


def test_a_broken_foreign_holder_is_out(etcd: Corner, client: Client):
    with etcdctl_lock(etcd) as theirs:
        key = is_granted(theirs)
        broken = client.ask(ask.Break("lock", draw_claim(), "an operator", "a test"))
        assert broken.holder == f"etcd lease {key.rpartition('/')[2]}"
        assert client.token("lock") > broken.token
