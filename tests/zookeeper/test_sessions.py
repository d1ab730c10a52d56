"""Sessions: what one costs, what its end means, and what happens when somebody removes a node."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient

import fencelock
from fencelock import ConfigError, SourceUnavailableError
from fencelock._flows.acquire import Attempt, acquire
from fencelock.clock import boottime_us
from fencelock.model import digest_of_claim, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.zookeeper.connection import client
from fencelock.stores.zookeeper.connection.client import CLOSE_S
from fencelock.stores.zookeeper.source import admin, sessions
from fencelock.stores.zookeeper.source.session import ZooKeeperSession
from fencelock.stores.zookeeper.source.store import ZooKeeperSource
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.support.beats import wait_for_a_beat
from tests.support.helpers import DEADLINE_S, check_is_quick, wait_until
from tests.support.leaders import Leaders, brief_pauses  # noqa: F401 - a fixture of the class
from tests.support.losses_at_release import LossesAtRelease
from tests.zookeeper.fix_client import TTL_MS, Client
from tests.zookeeper.framing import ZooKeeperProxy

pytestmark = pytest.mark.server_wide

MANY = 10_000
AT_ONCE_S = 30.0
"""Far from the request's timeout, also on a loaded machine."""


def end_session(server: ZooKeeperServer, session: ZooKeeperSession) -> None:
    """End a session as its expiry does: another client with its id and password closes it."""
    assert session.client.client_id is not None
    other = KazooClient(server.address, client_id=session.client.client_id)
    other.start()
    other.stop()
    other.close()


# --- no server --------------------------------------------------------------------------------------------------------
def seconds_until_unreachable(
    servers: str, request_timeout_s: float, reason: str, request: object = ask.ReadSource()
) -> float:
    """Return how long a first request takes to report that the source cannot be reached."""
    connection = ZooKeeperSource(f"zookeeper://{servers}/base").connect(request_timeout_s=request_timeout_s)
    started_s = time.monotonic()
    with pytest.raises(SourceUnavailableError, match=reason):
        connection.perform(request)
    return time.monotonic() - started_s


@pytest.mark.parametrize("servers", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2", "nohost.invalid"])
def test_servers_that_do_not_run_are_reported_at_once(servers: str) -> None:
    assert seconds_until_unreachable(servers, 60.0, "no server runs there") < AT_ONCE_S


def test_a_server_that_is_silent_gets_the_whole_time() -> None:
    """It may be busy, or in an election."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:1,127.0.0.1:{silent.getsockname()[1]}"
        assert seconds_until_unreachable(servers, 0.3, "no server answered in 0.3 s") >= 0.3


@pytest.mark.parametrize(("may_wait", "bound_s"), [(False, 0.2), (True, 0.4)])
def test_a_first_acquire_waits_for_a_silent_server_for_its_bound(
    monkeypatch: pytest.MonkeyPatch, may_wait: bool, bound_s: float
) -> None:
    """And not for the end of a session that was never made: `fencelock run` has to answer in time."""
    monkeypatch.setattr(sessions, "MAX_TRY_S", 0.2)
    monkeypatch.setattr(sessions, "MAX_OPEN_S", 0.4)
    request = ask.Acquire("lock", draw_claim(), "holder", 30_000, boottime_us(), may_wait)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"

        def ask_in_vain() -> None:
            assert seconds_until_unreachable(servers, 60.0, f"no server answered in {bound_s} s", request) >= bound_s

        check_is_quick(ask_in_vain, bound_s + CLOSE_S)


def test_a_new_client_leaves_a_silent_server_soon_however_long_its_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_FIRST_ATTEMPT_S", 0.1)
    monkeypatch.setattr(sessions, "MAX_OPEN_S", DEADLINE_S)
    with (
        ThreadPoolExecutor(1) as threads,
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        servers = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in (first, second))
        request = ask.Acquire("lock", draw_claim(), "holder", 600_000, boottime_us(), may_wait=True)
        asking = threads.submit(seconds_until_unreachable, servers, DEADLINE_S, "no server runs there", request)
        called = []
        for one in (first, second):
            one.settimeout(DEADLINE_S / 3)
            called.append(one.accept()[0])
        for one in (first, second, *called):
            one.close()
        asking.result()


# --- what things cost -------------------------------------------------------------------------------------------------
def test_an_uncontended_cycle_sends_three_requests(proxied: Client, zookeeper_proxy: ZooKeeperProxy) -> None:
    claim = proxied.acquire("lock")
    assert zookeeper_proxy.sent == {"create": 1, "get_children": 1}
    proxied.perform(ask.Release("lock", claim))
    assert zookeeper_proxy.sent == {"create": 1, "get_children": 1, "delete": 1}


def test_a_busy_lock_costs_a_node_that_is_gone_at_once(proxied: Client, zookeeper_proxy: ZooKeeperProxy) -> None:
    proxied.acquire("lock")
    zookeeper_proxy.sent.clear()
    proxied.acquire("lock", may_wait=False)
    assert proxied.reply == ask.Busy()
    assert zookeeper_proxy.sent == {"create": 1, "get_children": 1, "delete": 1}


@pytest.mark.campaign
def test_many_held_locks_cost_one_beat(proxied: Client, zookeeper_proxy: ZooKeeperProxy) -> None:
    """Their first beat reads each node; from then on a beat is two requests."""
    leases = [(f"lock-{number}", proxied.acquire(f"lock-{number}", ttl_ms=120_000)) for number in range(500)]
    assert proxied.renew(*leases).lost == {}
    for _ in range(3):
        zookeeper_proxy.sent.clear()
        reply = proxied.renew(*leases)
        assert (len(reply.remaining_ms), reply.lost) == (len(leases), {})
        assert zookeeper_proxy.sent == {"sync": 1, "get": 1}


@pytest.mark.campaign
@pytest.mark.slow
def test_ten_thousand_held_locks_cost_one_beat(client: Client, zookeeper: ZooKeeperServer) -> None:
    """Counted by the server, which includes the pings of every session and this question."""

    def acquire(number: int) -> tuple[str, str]:
        return f"lock-{number}", client.acquire(f"lock-{number}", ttl_ms=600_000)

    with ThreadPoolExecutor(8) as threads:
        leases = list(threads.map(acquire, range(MANY)))
    assert len(client.renew(*leases).remaining_ms) == MANY
    before = int(zookeeper.report()["Received"])
    assert len(client.renew(*leases).remaining_ms) == MANY
    assert int(zookeeper.report()["Received"]) - before < 20


def test_all_locks_of_one_ttl_share_a_session(client: Client, zookeeper: ZooKeeperServer) -> None:
    for number in range(20):
        client.acquire(f"lock-{number}")
    assert len(client.store.sessions.open_sessions()) == 1
    client.acquire("other", ttl_ms=TTL_MS + 1)
    assert len(client.store.sessions.open_sessions()) == 2


# --- the ttl ----------------------------------------------------------------------------------------------------------
def test_a_ttl_that_the_servers_would_change_is_refused_with_their_limit(zookeeper_url: str) -> None:
    with fencelock.connect(zookeeper_url) as source:
        with pytest.raises(ConfigError, match=r"800 s was asked for.*700 s instead, their maxSessionTimeout"):
            source.lock("a", ttl=800.0).acquire()
        with pytest.raises(ConfigError, match="1 to 86400 seconds"):
            source.lock("a", ttl=0.5)


def test_h1_the_time_left_is_counted_from_what_the_leader_surely_knows(client: Client) -> None:
    """A follower may have told its leader of the session as late as half a tick before the request."""
    client.acquire("lock", ttl_ms=10_000)
    session = client.session
    time.sleep(0.2)
    touched_ms = session.client.touched_ms(boottime_us() // 1000)
    for _ in range(5):
        before_ms = boottime_us() // 1000
        request_start = session.request_start()
        assert request_start.lives_until_ms <= before_ms + 10_000
        assert request_start.lives_until_ms - 10_000 <= request_start.sent_ms - session.info.tick_ms // 2
        assert request_start.lives_until_ms - 10_000 >= touched_ms
    wait_until(lambda: session.client.touched_ms(boottime_us() // 1000) > touched_ms)


def test_h1_what_was_sent_after_a_request_does_not_lengthen_its_time(client: Client) -> None:
    client.acquire("lock", ttl_ms=10_000)
    session = client.session
    request_start = session.request_start()
    wait_until(lambda: session.client.touched_ms(boottime_us() // 1000) > request_start.sent_ms)
    assert request_start.lives_until_ms <= request_start.sent_ms + 10_000


# --- loss -------------------------------------------------------------------------------------------------------------
def node_of(client: Client, claim: str) -> str:
    path = client.session.entries[digest_of_claim(claim)].path
    assert path is not None
    return path


@pytest.mark.parametrize("is_watched", [False, True], ids=["before its first beat", "after it"])
def test_h2_a_node_removed_by_hand_is_a_loss_though_the_session_lives(
    client: Client, kazoo: KazooClient, *, is_watched: bool
) -> None:
    lost, kept = client.acquire("lost"), client.acquire("kept")
    if is_watched:
        client.renew(("lost", lost), ("kept", kept))
    kazoo.delete(node_of(client, lost))
    reply = client.renew(("lost", lost), ("kept", kept))
    assert set(reply.remaining_ms) == {kept}
    assert "removed" in reply.lost[lost]
    assert client.perform(ask.Acquire("lost", lost, "tester", TTL_MS, boottime_us(), True)) == ask.ClaimEnded()


def test_h2_a_node_removed_while_the_watch_was_gone_is_a_loss(
    proxied: Client, zookeeper_proxy: ZooKeeperProxy, kazoo: KazooClient
) -> None:
    claim = proxied.acquire("lock", ttl_ms=60_000)
    proxied.renew(("lock", claim))
    session = next(one for one in proxied.store.sessions.open_sessions() if one.ttl_ms == 60_000)
    path = session.entries[digest_of_claim(claim)].path
    zookeeper_proxy.freeze()
    zookeeper_proxy.cut()
    wait_until(lambda: not session.client.connected)
    kazoo.delete(path)
    zookeeper_proxy.thaw()
    wait_until(lambda: session.client.connected)
    reply = proxied.renew(("lock", claim))
    assert "removed" in reply.lost[claim]


def test_suspended_is_doubt_and_no_loss(proxied: Client, zookeeper_proxy: ZooKeeperProxy) -> None:
    claim = proxied.acquire("lock")
    for _ in range(3):
        zookeeper_proxy.cut()
        wait_until(lambda: proxied.session.client.connected)
        assert claim in wait_until(lambda: _renewed(proxied, claim)).remaining_ms
    assert zookeeper_proxy.counts["connections"] > 3


def _renewed(client: Client, claim: str) -> ask.Renewed | None:
    try:
        return client.renew(("lock", claim))
    except fencelock.SourceError:
        return None


def test_the_end_of_the_session_is_the_end_of_every_claim(client: Client, zookeeper: ZooKeeperServer) -> None:
    held, other = client.acquire("lock"), client.acquire("other")
    waiting = client.acquire("lock")
    end_session(zookeeper, client.session)
    wait_until(lambda: not client.session.entries)
    reply = client.renew(("lock", held), ("other", other))
    assert all("session ended" in reply.lost[claim] for claim in (held, other))
    assert client.perform(ask.Poll("lock", waiting)) == ask.ClaimEnded(), "H8"
    assert client.perform(ask.Release("lock", held)) == ask.Released(was_held=False)
    client.acquire("lock")
    assert isinstance(client.reply, ask.Granted), "and the next claim has a session"


def test_h8_a_waiter_whose_session_ended_while_it_slept_enqueues_again(
    client: Client, zookeeper: ZooKeeperServer
) -> None:
    """The lock is free by then, because its node is gone (etcd#11456, CURATOR-604)."""
    holder = Client(client.store.info.url + "?tick_ms=200")
    claim = holder.acquire("lock", ttl_ms=60_000)
    attempt = Attempt("lock", "waiter", TTL_MS)
    flow = acquire(attempt, may_wait=True, timeout_ms=None)
    request, claims = flow.send(None), []
    while not isinstance(request, ask.Wait):
        reply = None
        if isinstance(request, ask.Draw):
            claims.append(draw_claim())
            reply = (claims[-1], boottime_us())
        elif isinstance(request, ask.Now):
            reply = boottime_us() // 1000
        elif not isinstance(request, ask.Listen):
            reply = client.perform(request)
        request = flow.send(reply)
    end_session(zookeeper, client.session)
    holder.perform(ask.Release("lock", claim))
    wait_until(lambda: not client.session.entries)
    request = flow.send(None)
    assert isinstance(request, ask.Now)
    assert isinstance(flow.send(boottime_us() // 1000), ask.Poll)
    assert client.perform(ask.Poll("lock", claims[-1])) == ask.ClaimEnded()
    assert isinstance(flow.send(ask.ClaimEnded()), ask.Draw), "it draws another claim"
    holder.session.close()


def test_a_waiter_that_gives_up_while_suspended_leaves_no_node(
    proxied: Client, zookeeper_proxy: ZooKeeperProxy, kazoo: KazooClient
) -> None:
    """kazoo#760: the node would block everybody behind it for as long as its process lives."""
    proxied.acquire("lock", ttl_ms=60_000)
    session = next(one for one in proxied.store.sessions.open_sessions() if one.ttl_ms == 60_000)
    waiting = proxied.acquire("lock", ttl_ms=60_000)
    path = session.entries[digest_of_claim(waiting)].queue_path
    assert len(kazoo.get_children(path)) == 2
    zookeeper_proxy.freeze()
    zookeeper_proxy.cut()
    impatient = proxied.store.connect(request_timeout_s=0.1)
    with pytest.raises(fencelock.SourceError):
        impatient.perform(ask.Release("lock", waiting))
    zookeeper_proxy.thaw()
    wait_until(lambda: len(kazoo.get_children(path)) == 1)
    assert proxied.perform(ask.Release("lock", waiting)) == ask.Released(was_held=False)


def test_a_waiter_that_gave_up_leaves_no_watcher(client: Client) -> None:
    """The holder's node may stay for days, and kazoo keeps its watchers for as long."""
    client.acquire("lock")
    for _ in range(3):
        waiting = client.acquire("lock")
        client.poll("lock", waiting)
        (predecessor,) = (one.predecessor for one in client.session.entries.values() if one.predecessor is not None)
        assert len(client.session.client._data_watchers[predecessor]) == 1
        client.perform(ask.Release("lock", waiting))
    assert not client.session.client._data_watchers[predecessor]


def test_a_node_that_is_made_after_its_claim_was_given_up_is_removed(
    proxied: Client, zookeeper_proxy: ZooKeeperProxy, kazoo: KazooClient
) -> None:
    """H4, H5: the request waits in a frozen network for longer than its timeout."""
    claim = draw_claim()
    impatient = proxied.store.connect(request_timeout_s=0.2)
    zookeeper_proxy.freeze()
    with pytest.raises(fencelock.SourceError):
        impatient.perform(ask.Acquire("lock", claim, "tester", TTL_MS, boottime_us(), False))
    with pytest.raises(fencelock.SourceError):
        impatient.perform(ask.Release("lock", claim))
    zookeeper_proxy.thaw()
    wait_until(lambda: not proxied.session.entries)
    assert kazoo.get_children(proxied.store.layout.lock("lock")) == []
    assert proxied.perform(ask.Acquire("lock", claim, "tester", TTL_MS, boottime_us(), False)) == ask.ClaimEnded()


# --- through the public API -------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("early_beats")
def test_h3_a_loss_is_reported(zookeeper_url: str, kazoo: KazooClient) -> None:
    reasons: list[str] = []
    with fencelock.connect(zookeeper_url) as source:
        lease = source.lock("lock", ttl=30.0, on_lost=reasons.append).acquire()
        assert lease is not None
        store = source._store
        (session,) = store.sessions.open_sessions()  # type: ignore[attr-defined]
        (entry,) = session.entries.values()
        kazoo.delete(entry.path)
        assert lease.lost.wait(DEADLINE_S)
        wait_until(lambda: reasons)
        assert "removed" in reasons[0]


@pytest.mark.usefixtures("early_beats")
def test_a_closed_source_keeps_its_session_until_the_last_lease_is_gone(zookeeper_url: str) -> None:
    source = fencelock.connect(zookeeper_url)
    lease = source.lock("lock", ttl=30.0).acquire()
    assert lease is not None
    sessions = source._store.sessions  # type: ignore[attr-defined]
    source.close()
    wait_for_a_beat(lease)
    assert lease.is_valid
    assert len(sessions.open_sessions()) == 1
    lease.release()  # In the background, since the source is closed.
    wait_until(lambda: sessions.open_sessions() == [])


class TestLeaders(Leaders):
    @pytest.fixture
    def installed_url(self, zookeeper_url: str) -> str:
        return zookeeper_url


class TestLossesAtRelease(LossesAtRelease):
    @pytest.fixture
    def installed_url(self, zookeeper_url: str) -> str:
        return zookeeper_url


@pytest.mark.parametrize("is_told", [True, False])
def test_h3_a_release_tells_of_an_epoch_whose_raiser_died_before_it_removed_the_node(
    client: Client, zookeeper_url: str, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """Whether or not the watch of the record has told of the change."""
    claim = client.acquire("lock")
    monkeypatch.setattr(admin, "_remove_older", lambda *_: None)
    operator = Client(zookeeper_url)
    history_id = operator.perform(ask.ReadSource()).history_id
    operator.perform(ask.RaiseEpoch(history_id, "a test"))
    operator.close()
    if is_told:
        wait_until(lambda: client.session.record is None)
    assert not client.perform(ask.Release("lock", claim)).was_held
