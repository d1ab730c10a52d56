"""Calls that gRPC's threads serve, when such a thread does not start or has died: nobody waits without a bound, and
forks and closing are as before.
"""

import asyncio
import os
import time
from collections.abc import Callable

import psutil
import pytest

from fencelock.errors import OutcomeUnknownError
from fencelock.stores.etcd.connection import begun_call, wire
from fencelock.stores.etcd.connection.client import RANGE, EtcdClient
from fencelock.stores.etcd.connection.url import parse_url
from fencelock.testing.conformance.faults import failing_starts
from tests.etcd.fix_etcd import Corner
from tests.support.helpers import DEADLINE_S, wait_until

pytestmark = [pytest.mark.process, pytest.mark.own_process]
FORK_S = 4.0
"""gRPC waits for 5 s if it believes that a thread of its own still runs."""
READ = wire.RangeRequest(key=b"x")


@pytest.fixture
def client(etcd: Corner) -> EtcdClient:
    return EtcdClient(parse_url(etcd.url))


def begin(client: EtcdClient, request_timeout_s: float) -> None:
    """Call in the background, in this thread."""
    assert client.begin(RANGE, READ, request_timeout_s).result().header.revision


def begin_async(client: EtcdClient, request_timeout_s: float) -> None:
    """Call on a loop."""
    assert asyncio.run(client.call_async(RANGE, READ, request_timeout_s)).header.revision


def watch(client: EtcdClient, _: float) -> None:
    """Open a stream, and end it."""
    client.watch(iter(())).cancel()


CALLS = pytest.mark.parametrize("call", [begin, begin_async, watch])
Call = Callable[[EtcdClient, float], None]


def connections(etcd: Corner) -> int:
    """Return how many connections this process has to the member."""
    port = etcd.cluster.servers[0].port
    found = psutil.Process().net_connections(kind="tcp")
    return sum(1 for one in found if one.raddr and one.raddr.port == port and one.status == "ESTABLISHED")


@pytest.fixture
def few(etcd: Corner, client: EtcdClient) -> int:
    """Have the client call, and return how many connections there are."""
    client.call(RANGE, READ, DEADLINE_S)
    return connections(etcd)


@CALLS
@pytest.mark.parametrize("number", [1, 2])
def test_the_next_call_succeeds_on_another_channel_and_the_old_one_is_closed(
    etcd: Corner, client: EtcdClient, few: int, call: Call, number: int
) -> None:
    for _ in range(3):
        error = None
        with failing_starts(number) as faults:
            try:
                call(client, DEADLINE_S)
            except OutcomeUnknownError as raised:
                error = str(raised)
        assert ("limit on threads" in (error or "")) == bool(faults.failed)
        call(client, DEADLINE_S)
    wait_until(lambda: connections(etcd) <= few)


@CALLS
def test_forks_are_quick_afterwards_and_the_child_can_call(client: EtcdClient, call: Call) -> None:
    client.call(RANGE, READ, DEADLINE_S)  # Starts the thread that calls for the main thread: gRPC's own is to fail.
    with failing_starts(1), pytest.raises(OutcomeUnknownError):
        call(client, DEADLINE_S)
    began_s = time.monotonic()
    child = os.fork()
    if not child:
        try:
            call(client, DEADLINE_S)
            client.call(RANGE, READ, DEADLINE_S)
        except BaseException:
            os._exit(1)
        os._exit(0)
    took_s = time.monotonic() - began_s
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert took_s < FORK_S


@pytest.mark.parametrize("call", [begin, begin_async])
def test_a_call_whose_thread_has_died_is_not_awaited_for_ever(
    client: EtcdClient, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun_call, "LATE_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr("grpc._channel._run_channel_spin_thread", lambda state: None)
        with pytest.raises(Exception, match="has served the call"):
            call(client, 0.05)
    call(client, DEADLINE_S)
    assert not begun_call.GATE._under_way
