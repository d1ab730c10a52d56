"""One etcd lease for everything that a process has with one ttl: kept by one message, revoked, never left behind."""

import asyncio
import gc
import subprocess
import sys
import threading

import pytest

import fencelock
import fencelock.aio
from fencelock.clock import boottime_ms, boottime_us
from fencelock.errors import ConfigError
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import _CLIENTS as CLIENTS
from fencelock.stores.etcd.connection.client import LEASE_KEEP_ALIVE
from fencelock.stores.etcd.source import cluster_state, codec, renewal, session
from fencelock_lab.servers.etcd import MIN_TTL_S, EtcdCluster
from tests.etcd.clients import Client, installed
from tests.etcd.fix_etcd import Corner
from tests.support.beats import wait_for_a_beat
from tests.support.helpers import DEADLINE_S, wait_until

pytestmark = pytest.mark.server_wide

LONG_MS = 600_000
MANY = 10_000


@pytest.fixture
def client(etcd: Corner) -> Client:
    return installed(etcd.url)


def since(corner: Corner, before: dict[str, int]) -> dict[str, int]:
    """Return the messages that etcd has received since then, by method."""
    now = corner.cluster.servers[0].calls()
    return {method: now[method] - before.get(method, 0) for method in now if now[method] != before.get(method, 0)}


# What earlier tests of this process have left to do may only add messages: the least that there ever are is the cost.
def test_an_acquire_is_one_round_trip_and_so_is_a_release(etcd: Corner, client: Client):
    client.one_token()

    def cycle(may_wait: bool) -> list[dict[str, int]]:
        before = etcd.cluster.servers[0].calls()
        claim = draw_claim()
        assert isinstance(client.acquire("lock", claim, may_wait=may_wait), ask.Granted)
        acquired = since(etcd, before)
        client.release("lock", claim)
        return [acquired, since(etcd, before)]

    for may_wait in (False, True):
        wait_until(lambda may_wait=may_wait: cycle(may_wait) == [{"Txn": 1}, {"Txn": 2}])


def test_a_busy_lock_costs_one_round_trip_and_leaves_nothing(etcd: Corner, client: Client):
    client.token("lock")
    keys = etcd.keys()

    def be_refused() -> dict[str, int]:
        before = etcd.cluster.servers[0].calls()
        assert isinstance(client.acquire("lock"), ask.Busy)
        return since(etcd, before)

    wait_until(lambda: be_refused() == {"Txn": 1})
    assert etcd.keys() == keys


def test_all_claims_of_one_ttl_share_a_lease(etcd: Corner, client: Client):
    before = set(etcd.cluster.leases())
    for number in range(10):
        client.token(f"lock-{number}")
    assert len(set(etcd.cluster.leases()) - before) == 1
    client.token("other", ttl_ms=LONG_MS * 2)
    assert len(set(etcd.cluster.leases()) - before) == 2


@pytest.mark.campaign
@pytest.mark.slow
def test_ten_thousand_leases_cost_one_keepalive_a_beat(etcd: Corner, client: Client):
    leases = []
    for number in range(MANY // 100):  # Enqueued by hand, to save time: the test counts the messages of the beat.
        leases += hold_hundred(client, number)
    beat = ask.Renew(tuple(leases))
    assert len(client.ask(beat).remaining_ms) == MANY
    state = client.store.state
    wait_until(lambda: all(state.watcher.is_live(entry.watch_id) for entry in state.entries.values()))
    before = etcd.cluster.servers[0].calls()
    assert len(client.ask(beat).remaining_ms) == MANY
    assert since(etcd, before) == {"LeaseKeepAlive": 1, "Txn": 1}


def hold_hundred(client: Client, number: int) -> list[tuple[str, str]]:
    """Acquire a hundred locks, several at a time."""
    leases = [(f"lock-{number}-{place}", draw_claim()) for place in range(100)]

    def work(part: list[tuple[str, str]]) -> None:
        connection = client.store.connect(request_timeout_s=DEADLINE_S)
        for lock, claim in part:
            reply = connection.perform(ask.Acquire(lock, claim, "tester", LONG_MS, boottime_us(), may_wait=True))
            assert isinstance(reply, ask.Granted)

    threads = [threading.Thread(target=work, args=(leases[begin::4],)) for begin in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return leases


def test_threads_that_begin_together_are_granted_one_lease(etcd: Corner, client: Client):
    before = set(etcd.cluster.leases())
    hold_hundred(client, 0)
    assert len(set(etcd.cluster.leases()) - before) == 1


def test_closing_a_source_revokes_its_lease(etcd: Corner, client: Client):
    before = set(etcd.cluster.leases())
    with fencelock.connect(etcd.url) as source, source.lock("lock"):
        assert len(set(etcd.cluster.leases()) - before) == 1
    wait_until(lambda: set(etcd.cluster.leases()) <= before)


def test_an_unreferenced_source_is_gone_without_the_collector(etcd: Corner, client: Client):
    others = set(CLIENTS)

    def use() -> None:
        with fencelock.connect(etcd.url) as source, source.lock("lock"):
            assert source.lock("lock", timeout=0.1).acquire() is None  # With a stream of watches.

    gc.disable()
    try:
        use()
        wait_until(lambda: set(CLIENTS) <= others)
    finally:
        gc.enable()


@pytest.mark.usefixtures("early_etcd_beats")
def test_closing_a_source_keeps_the_leases_that_are_held(etcd: Corner, client: Client):
    with fencelock.connect(etcd.url) as source:
        lease = source.lock("lock", ttl=30.0).acquire()
    assert lease is not None
    for _ in range(2):  # The first beat may have begun before the end.
        wait_for_a_beat(lease)
    assert client.ask(ask.Inspect("lock")).is_held
    lease.release()


def test_closing_an_asynchronous_source_revokes_its_lease(etcd: Corner, client: Client):
    before = set(etcd.cluster.leases())

    async def cycle() -> None:
        async with fencelock.aio.connect(etcd.url) as source, source.lock("lock"):
            assert len(set(etcd.cluster.leases()) - before) == 1

    asyncio.run(cycle())
    wait_until(lambda: set(etcd.cluster.leases()) <= before)


PROGRAM = """
import fencelock, sys
source = fencelock.connect(sys.argv[1])
lease = source.lock("lock").acquire()
waiting = source.lock("lock", timeout=0.1).acquire()
print(lease.token, waiting)
"""


def test_the_end_of_the_interpreter_revokes_held_leases(etcd: Corner, client: Client):
    before = set(etcd.cluster.leases())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, etcd.url], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stderr == ""
    assert done.stdout.endswith(" None\n")
    assert set(etcd.cluster.leases()) <= before
    assert isinstance(client.acquire("lock"), ask.Granted)


def test_a_ttl_below_the_clusters_own_is_an_error_with_both_numbers(etcd_fleet):
    cluster: EtcdCluster = etcd_fleet.new_cluster(1)
    cluster.servers[0].settings |= {"heartbeat-interval": 100, "election-timeout": 2000}
    with cluster:
        client = installed(cluster.url())
        with pytest.raises(ConfigError, match="grants a ttl of 3 s where 1 s"):
            client.acquire("lock", ttl_ms=MIN_TTL_S * 1000)
        assert cluster.leases() == []
        assert isinstance(client.acquire("lock", ttl_ms=3000), ask.Granted)


def test_a_ttl_is_a_whole_number_of_seconds(etcd: Corner):
    with pytest.raises(ConfigError, match="1"):
        fencelock.connect(etcd.url).lock("lock", ttl=1.5)


def pass_by(monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    """Have the time of this process's sessions and claims be so much later; etcd's own time is not."""

    def later_ms() -> int:
        return boottime_ms() + ms

    for module in (cluster_state, codec, renewal, session):
        monkeypatch.setattr(module, "boottime_ms", later_ms)


def test_a_keepalive_that_is_confirmed_too_late_confirms_nothing(
    etcd: Corner, client: Client, monkeypatch: pytest.MonkeyPatch
):
    client.token("lock", ttl_ms=LONG_MS)
    late = client.state.sessions[LONG_MS]
    pass_by(monkeypatch, LONG_MS)
    assert not late.remaining_ms()
    request = wire.LeaseKeepAliveRequest(id=late.lease)
    assert Client(etcd.url).state.client.call(LEASE_KEEP_ALIVE, request, DEADLINE_S).ttl == LONG_MS // 1000
    client.token("another", ttl_ms=LONG_MS)
    assert client.state.sessions[LONG_MS].lease != late.lease
    wait_until(lambda: f"{late.lease:016x}" not in etcd.cluster.leases())


def test_a_claim_that_nobody_asks_for_ends_by_its_ttl_though_its_session_lives(
    etcd: Corner, client: Client, monkeypatch: pytest.MonkeyPatch
):
    kept, forgotten = draw_claim(), draw_claim()
    stranger = Client(etcd.url)
    client.token("kept", kept, ttl_ms=LONG_MS)
    client.token("forgotten", forgotten, ttl_ms=LONG_MS)
    for passed_ms in (LONG_MS // 2, LONG_MS * 3 // 4):
        pass_by(monkeypatch, passed_ms)
        assert client.ask(ask.Renew((("kept", kept),))).remaining_ms
        assert stranger.ask(ask.Inspect("forgotten")).is_held
    pass_by(monkeypatch, LONG_MS)

    def is_free() -> bool:
        assert client.ask(ask.Renew((("kept", kept),))).remaining_ms
        return not stranger.ask(ask.Inspect("forgotten")).is_held

    wait_until(is_free)
    assert client.ask(ask.Renew((("forgotten", forgotten),))).lost
