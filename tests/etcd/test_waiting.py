"""Waiters are notified when their predecessor is gone, and of nothing else; a broken stream wakes all its waiters."""

import select
import threading

import pytest

import fencelock
from fencelock.clock import boottime_us
from fencelock.model import digest_of_claim, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock_lab.proxy import Proxy
from fencelock_lab.servers.etcd import EtcdCluster
from tests.etcd.clients import Client, installed
from tests.etcd.fix_etcd import Corner
from tests.support.helpers import DEADLINE_S, wait_until
from tests.support.waiting import is_asleep_in_queue

LONG_MS = 60_000
WAITERS = 20


@pytest.fixture
def client(etcd: Corner) -> Client:
    return installed(etcd.url)


class Waiter:
    """A claim in a queue, with its wakeup."""

    def __init__(self, client: Client, lock: str = "lock", ttl_ms: int = LONG_MS) -> None:
        self.client = client
        self.lock = lock
        self.claim = draw_claim()
        request = ask.Acquire(lock, self.claim, "waiter", ttl_ms, boottime_us(), may_wait=True)
        assert isinstance(client.ask(request), ask.Queued)
        self.wakeup = client.store.listen(lock, self.claim)
        assert isinstance(self.poll(), ask.Queued)
        # A watch that has begun may notify its waiter once for nothing, because it may have missed a deletion.
        wait_until(self._is_watching)
        if self.is_told:
            assert isinstance(self.poll(), ask.Queued)

    def poll(self):
        self.wakeup.drain()
        return self.client.ask(ask.Poll(self.lock, self.claim))

    def _is_watching(self) -> bool:
        watch = self.client.state.watcher._watches.get(self.client.state.entries[digest_of_claim(self.claim)].watch_id)
        return watch is not None and watch.since is not None

    @property
    def is_told(self) -> bool:
        hearing = select.poll()
        hearing.register(self.wakeup.fileno(), select.POLLIN)
        return bool(hearing.poll(0))


def test_each_release_wakes_one_waiter(client: Client):
    holder = draw_claim()
    client.token("lock", holder)
    waiters = [Waiter(client) for _ in range(WAITERS)]
    for number, waiter in enumerate(waiters):
        client.release("lock", holder)
        wait_until(lambda waiter=waiter: waiter.is_told)
        assert not any(other.is_told for other in waiters[number + 1 :])
        assert isinstance(waiter.poll(), ask.Granted)
        holder = waiter.claim


def test_a_hand_over_reads_no_queue(etcd: Corner, client: Client):
    """The holder has recorded its release, so the next waiter need not make etcd read the whole queue."""
    holder = draw_claim()
    client.token("lock", holder)
    first, second = Waiter(client), Waiter(client)
    client.release("lock", holder)
    wait_until(lambda: first.is_told)
    entry = client.state.entries[digest_of_claim(first.claim)]
    last_release = client.state.layout.last_release("lock").decode()
    assert etcd.cluster.ctl("get", "--print-value-only", last_release).strip() == str(entry.predecessor[1])
    assert isinstance(first.poll(), ask.Granted)
    assert isinstance(second.poll(), ask.Queued)


def test_a_waiter_whose_predecessor_gives_up_waits_for_the_one_before(client: Client):
    holder = draw_claim()
    client.token("lock", holder)
    first, second = Waiter(client), Waiter(client)
    client.release("lock", first.claim)
    wait_until(lambda: second.is_told)
    assert isinstance(second.poll(), ask.Queued)
    client.release("lock", holder)
    wait_until(lambda: second.is_told)
    assert isinstance(second.poll(), ask.Granted)


def test_a_waiter_that_leaves_watches_no_more(client: Client):
    client.token("lock")
    waiter = Waiter(client)
    client.release("lock", waiter.claim)
    waiter.wakeup.close()
    assert not client.state.watcher._watches


def test_a_broken_stream_makes_waiters_poll_and_is_opened_again(etcd: Corner):
    other = installed(etcd.url)
    holder = draw_claim()
    other.token("lock", holder)
    with Proxy(etcd.cluster.servers[0].port) as proxy:
        waiter = Waiter(Client(f"etcd://127.0.0.1:{proxy.port}/{etcd.prefix}"))
        proxy.cut()
        wait_until(lambda: waiter.is_told)
        assert is_back(waiter)
        assert isinstance(waiter.poll(), ask.Queued)
        other.release("lock", holder)
        wait_until(lambda: waiter.is_told)
        assert isinstance(waiter.poll(), ask.Granted)


def is_back(waiter: Waiter) -> bool:
    """Wait until the client's connection is back."""

    def answers() -> bool:
        try:
            waiter.client.ask(ask.ReadSource())
        except fencelock.SourceError:
            return False
        return True

    return wait_until(answers)


def test_a_release_while_the_stream_is_silent_is_noticed_after_it(etcd: Corner):
    """A deletion happens while nothing is told: silence proves nothing."""
    other = installed(etcd.url)
    holder = draw_claim()
    other.token("lock", holder)
    with Proxy(etcd.cluster.servers[0].port) as proxy:
        waiter = Waiter(Client(f"etcd://127.0.0.1:{proxy.port}/{etcd.prefix}"))
        proxy.lose("replies")
        other.release("lock", holder)
        wait_until(lambda: proxy.lost_bytes)
        proxy.cut()
        wait_until(lambda: waiter.is_told)
        assert is_back(waiter)
        assert isinstance(waiter.poll(), ask.Granted)


def test_a_held_key_that_is_deleted_by_hand_is_a_loss(etcd: Corner, client: Client):
    claim = draw_claim()
    client.token("lock", claim)
    beat = ask.Renew((("lock", claim),))
    assert client.ask(beat).remaining_ms
    etcd.cluster.ctl("del", "--prefix", f"{etcd.prefix}/lock/")
    wait_until(lambda: not client.state.entries[digest_of_claim(claim)].is_watched)
    assert client.ask(beat).lost == {claim: "its key in etcd was deleted"}


def test_a_key_deleted_before_its_first_beat_is_a_loss_at_that_beat(etcd: Corner, client: Client):
    claim = draw_claim()
    client.token("lock", claim)
    etcd.cluster.ctl("del", "--prefix", f"{etcd.prefix}/lock/")
    assert client.ask(ask.Renew((("lock", claim),))).lost == {claim: "its key in etcd was deleted"}


def test_a_key_deleted_while_the_stream_is_down_is_a_loss(etcd: Corner):
    other = installed(etcd.url)
    with Proxy(etcd.cluster.servers[0].port) as proxy:
        client = Client(f"etcd://127.0.0.1:{proxy.port}/{etcd.prefix}")
        claim = draw_claim()
        client.token("lock", claim)
        beat = ask.Renew((("lock", claim),))
        client.ask(beat)
        proxy.lose("replies")
        etcd.cluster.ctl("del", "--prefix", f"{etcd.prefix}/lock/")
        wait_until(lambda: proxy.lost_bytes)
        proxy.cut()
        wait_until(lambda: not client.state.entries[digest_of_claim(claim)].is_watched)

        def lost() -> dict[str, str]:
            try:
                return client.ask(beat).lost
            except fencelock.SourceError:
                return {}

        assert wait_until(lost) == {claim: "its key in etcd was deleted"}
    assert not other.ask(ask.Inspect("lock")).is_held


@pytest.mark.server_wide
def test_a_compacted_revision_makes_a_waiter_poll(etcd: Corner, client: Client):
    """The watch asks for a revision that etcd no longer keeps: it notifies its waiter instead of waiting for ever."""
    told = threading.Event()
    revision = client.ask(ask.ReadSource()).last_token
    client.token("lock")
    etcd.cluster.ctl("compact", str(revision + 1))
    client.state.watcher.watch(b"nothing", revision, told.set, is_urgent=False)
    assert told.wait(DEADLINE_S)


def test_a_lease_that_expired_while_its_holder_waited_is_not_granted(etcd: Corner, client: Client):
    """etcd#11456: the session ended while the claim waited for the lock."""
    other = Client(etcd.url)
    holder = draw_claim()
    other.token("lock", holder)
    waiter = Waiter(client)
    lease = client.state.entries[digest_of_claim(waiter.claim)].session.lease
    etcd.cluster.ctl("lease", "revoke", f"{lease:x}")
    other.release("lock", holder)
    assert isinstance(waiter.poll(), ask.ClaimEnded)
    assert not other.ask(ask.Inspect("lock")).is_held


def test_a_revoked_session_is_lost_with_all_its_leases(etcd: Corner, client: Client):
    claims = [draw_claim() for _ in range(3)]
    for claim in claims:
        client.token(claim, claim)
    lease = client.state.entries[digest_of_claim(claims[0])].session.lease
    etcd.cluster.ctl("lease", "revoke", f"{lease:x}")
    renewed = client.ask(ask.Renew(tuple((claim, claim) for claim in claims)))
    assert set(renewed.lost) == set(claims)
    assert client.one_token("lock"), "and the next acquire has a session of its own"


def test_a_stream_leaves_a_frozen_member_with_the_calls(own_etcd_three: EtcdCluster):
    """A holder and a waiter at a member that freezes change to another one, and are still notified."""
    url = own_etcd_three.url()
    fencelock.connect(url).install()
    source, other = fencelock.connect(url), fencelock.connect(url)
    held = other.lock("lock", ttl=20.0).acquire()
    leases = []
    # It may have to enqueue again, after some seconds, in a session of its own at the other member.
    waiting = source.lock("lock", ttl=3.0, timeout=2 * DEADLINE_S)
    thread = threading.Thread(target=lambda: leases.append(waiting.acquire()))
    thread.start()
    wait_until(lambda: is_asleep_in_queue(thread))
    follower = next(server for server in own_etcd_three.servers if not server.is_leader())
    follower.freeze()
    held.release()
    thread.join(2 * DEADLINE_S)
    assert leases[0].is_valid
    begun_s = leases[0].remaining()
    wait_until(lambda: leases[0].remaining() > begun_s)
    follower.thaw()
    leases[0].release()
