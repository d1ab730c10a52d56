"""From one holder to the next: what a hand-over costs the servers, and what does not prove that a turn has come."""

import select

import pytest
from kazoo.client import KazooClient

from fencelock.model import digest_of_claim, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.zookeeper.source.layout import decode_record_node
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.session import ZooKeeperSession
from tests.support.helpers import wait_until
from tests.zookeeper.fix_client import Client
from tests.zookeeper.framing import ZooKeeperProxy

LONG_MS = 60_000
"""A ttl of which no test uses up the quarter after which a leader is asked."""
ENDING_MS = 4000
"""One whose quarter passes soon."""

WAKEUP_MS = 30_000


def queue_up(holder: Client, waiter: Client, *, before: int = 1, ttl_ms: int = LONG_MS) -> tuple[list[str], str]:
    """Enqueue so many claims before the waiter's, which then polls; return all of them."""
    claims = [holder.acquire("lock", ttl_ms=LONG_MS) for _ in range(before)]
    claim = waiter.acquire("lock", ttl_ms=ttl_ms)
    assert isinstance(waiter.poll("lock", claim), ask.Queued)
    return claims, claim


def entry_of(waiter: Client, claim: str) -> tuple[ZooKeeperSession, ZooKeeperQueueEntry]:
    found = waiter.store.sessions.find_claim(digest_of_claim(claim))
    assert found is not None
    return found


def wait_until_told(waiter: Client, claim: str) -> None:
    """Wait until the waiter knows that its predecessor is gone."""
    _, entry = entry_of(waiter, claim)
    wait_until(lambda: entry.predecessor is None)


def test_h7_the_next_waiter_has_the_lock_once_the_holders_node_is_gone(
    client: Client, proxied: Client, zookeeper_proxy: ZooKeeperProxy
) -> None:
    (held,), claim = queue_up(client, proxied)
    zookeeper_proxy.sent.clear()
    client.perform(ask.Release("lock", held))
    wait_until_told(proxied, claim)
    granted = proxied.poll("lock", claim)
    assert isinstance(granted, ask.Granted)
    assert granted.token > client.reply.token
    assert LONG_MS * 3 / 4 <= granted.remaining_ms <= LONG_MS
    assert not zookeeper_proxy.sent


def test_h7_a_later_waiter_watches_its_predecessor_only_and_reads_the_queue_once(
    client: Client, proxied: Client, zookeeper_proxy: ZooKeeperProxy
) -> None:
    claims, claim = queue_up(client, proxied, before=4)
    channel = proxied.store.listen("lock", claim)
    zookeeper_proxy.sent.clear()
    for first in claims[:3]:
        client.perform(ask.Release("lock", first))
    wakeup = select.poll()
    wakeup.register(channel, select.POLLIN)
    assert not wakeup.poll(0)
    client.perform(ask.Release("lock", claims[3]))
    assert wakeup.poll(WAKEUP_MS)
    assert isinstance(proxied.poll("lock", claim), ask.Granted)
    assert zookeeper_proxy.sent == {"get_children": 1}
    channel.close()


def test_a_waiter_whose_predecessor_gives_up_waits_for_the_next_one(
    client: Client, proxied: Client, zookeeper_proxy: ZooKeeperProxy
) -> None:
    (held, waits), claim = queue_up(client, proxied, before=2)
    client.perform(ask.Release("lock", waits))
    wait_until_told(proxied, claim)
    assert isinstance(proxied.poll("lock", claim), ask.Queued)
    zookeeper_proxy.sent.clear()
    client.perform(ask.Release("lock", held))
    wait_until_told(proxied, claim)
    assert isinstance(proxied.poll("lock", claim), ask.Granted)
    assert not zookeeper_proxy.sent


def test_h9_the_end_of_a_predecessor_in_the_same_session_proves_nothing(
    proxied: Client, zookeeper_proxy: ZooKeeperProxy
) -> None:
    """The end of a session removes all its nodes in one step, and tells that in any order."""
    (held,), claim = queue_up(proxied, proxied)
    zookeeper_proxy.sent.clear()
    proxied.perform(ask.Release("lock", held))
    wait_until_told(proxied, claim)
    assert isinstance(proxied.poll("lock", claim), ask.Granted)
    assert zookeeper_proxy.sent == {"delete": 1, "get_children": 1}


def test_a_break_tells_a_waiter_of_its_own_end_before_its_predecessors(
    client: Client, proxied: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    on_event = ZooKeeperQueueEntry.on_event

    def note_event(self: ZooKeeperQueueEntry, event: object) -> None:
        told.append(event.path)  # type: ignore[attr-defined]
        on_event(self, event)

    monkeypatch.setattr(ZooKeeperQueueEntry, "on_event", note_event)
    _, claim = queue_up(client, proxied)
    _, entry = entry_of(proxied, claim)
    expected = [entry.path, entry.predecessor]
    client.perform(ask.Break("lock", draw_claim(), "tester", "a test"))
    wait_until_told(proxied, claim)
    assert told == expected
    assert proxied.poll("lock", claim) == ask.ClaimEnded()


@pytest.mark.parametrize("is_written_to", [False, True], ids=["", "written to"])
def test_a_waiter_whose_node_went_before_its_predecessors_is_not_granted(
    is_written_to: bool, client: Client, proxied: Client, kazoo: KazooClient
) -> None:
    """Its own deletion is told first; or not at all, because a watch fires only once."""
    _, claim = queue_up(client, proxied)
    _, entry = entry_of(proxied, claim)
    if is_written_to:
        kazoo.set(entry.path, b"somebody was here")
        wait_until(lambda: not entry.watched_connection)
    removal = kazoo.transaction()
    removal.delete(entry.path)
    removal.delete(entry.predecessor)
    assert removal.commit() == [True, True]
    wait_until_told(proxied, claim)
    assert proxied.poll("lock", claim) == ask.ClaimEnded()


@pytest.mark.parametrize("is_known", [False, True], ids=["", "which is known"])
def test_t7_a_waiter_whose_turn_comes_after_the_epoch_was_raised_is_not_granted(
    is_known: bool, client: Client, proxied: Client, kazoo: KazooClient
) -> None:
    """The contenders of the old history are removed one by one after the raise: here the waiter's node is still
    left.
    """
    _, claim = queue_up(client, proxied)
    session, entry = entry_of(proxied, claim)
    path, predecessor = proxied.store.layout.source, entry.predecessor
    record = decode_record_node(*kazoo.get(path), "here")
    kazoo.set(path, record.raised(kazoo.last_zxid, 0, "a test").value())
    wait_until(lambda: session.record is None)
    if is_known:
        proxied.acquire("other", ttl_ms=LONG_MS)
        assert isinstance(proxied.reply, ask.Granted)
    kazoo.delete(predecessor)
    wait_until_told(proxied, claim)
    assert proxied.poll("lock", claim) == ask.ClaimEnded()
    assert kazoo.exists(entry.path) is None


def test_h8_the_leader_is_asked_before_a_grant_once_a_quarter_of_the_ttl_has_passed(
    client: Client, proxied: Client, zookeeper_proxy: ZooKeeperProxy
) -> None:
    (held,), claim = queue_up(client, proxied, ttl_ms=ENDING_MS)
    session, _ = entry_of(proxied, claim)
    wait_until(lambda: not session.is_surely_alive(session.request_start()))
    client.perform(ask.Release("lock", held))
    wait_until_told(proxied, claim)
    zookeeper_proxy.sent.clear()
    assert isinstance(proxied.poll("lock", claim), ask.Granted)
    assert zookeeper_proxy.sent == {"sync": 1, "get_children": 1}


def test_events_of_a_lost_connection_are_read_again(
    client: Client, proxied: Client, zookeeper_proxy: ZooKeeperProxy
) -> None:
    (held,), claim = queue_up(client, proxied)
    session, _ = entry_of(proxied, claim)
    client.perform(ask.Release("lock", held))
    wait_until_told(proxied, claim)
    zookeeper_proxy.cut()
    wait_until(lambda: session.record is None and session.client.connected)
    zookeeper_proxy.sent.clear()
    assert isinstance(proxied.poll("lock", claim), ask.Granted)
    assert zookeeper_proxy.sent == {"get": 1, "get_children": 1}


def test_h2_a_node_that_somebody_wrote_to_is_watched_again(client: Client, kazoo: KazooClient) -> None:
    """A watch fires once: without a new one, a later deletion would go unnoticed."""
    lease = ("lock", client.acquire("lock", ttl_ms=LONG_MS))
    _, entry = entry_of(client, lease[1])
    assert client.renew(lease).lost == {}
    kazoo.set(entry.path, b"somebody was here")
    wait_until(lambda: not entry.watched_connection)
    assert client.renew(lease).lost == {}
    kazoo.delete(entry.path)
    wait_until(lambda: entry.is_gone)
    assert list(client.renew(lease).lost) == [lease[1]]


def test_messages_may_come_in_pieces(proxied: Client, zookeeper_proxy: ZooKeeperProxy) -> None:
    zookeeper_proxy.piece_bytes = 3
    claims = [proxied.acquire("lock", ttl_ms=LONG_MS) for _ in range(3)]
    for claim in claims:
        assert isinstance(proxied.poll("lock", claim), ask.Granted)
        assert proxied.renew(("lock", claim)).lost == {}
        proxied.perform(ask.Release("lock", claim))
