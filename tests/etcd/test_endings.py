"""A claim or a session that one thread ends while another uses it, and endings that fail: nothing is left behind (H4).

A key that is left behind would block its queue for as long as the process lives, because its session is kept.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fencelock.model import digest_of_claim, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.protocol.generators import run_generator
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import LEASE_REVOKE
from fencelock.stores.etcd.source import admin
from fencelock.stores.etcd.source.cluster_state import ClusterState
from fencelock.stores.etcd.source.session import EtcdQueueEntry, EtcdSession
from fencelock_lab.proxy import Proxy
from tests.etcd.clients import Client, installed
from tests.etcd.fix_etcd import Corner
from tests.support.helpers import DEADLINE_S, wait_until
from tests.support.leaders import Leaders, brief_pauses  # noqa: F401 - a fixture of the class
from tests.support.losses_at_release import LossesAtRelease

pytestmark = pytest.mark.server_wide

TTL_MS = 60_000


@pytest.fixture
def client(etcd: Corner) -> Client:
    return installed(etcd.url)


def elsewhere(work: Callable[[], object]) -> None:
    """Run something in another thread, and wait for it."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def queue_keys(corner: Corner) -> list[str]:
    found = corner.keys()
    return [key for key in found if key.startswith(("lock/", "gone/"))]


def test_a_claim_is_not_overdue_while_it_is_enqueued(etcd: Corner, client: Client, monkeypatch: pytest.MonkeyPatch):
    """Between two lines of the acquiring thread, the keeper ends the claims that nobody asks for."""
    assign_key = ClusterState.assign_key

    def assign_key_slowly(state: ClusterState, *details: Any) -> None:
        assign_key(state, *details)
        elsewhere(lambda: run_generator(state.end_overdue(), client.connection.send))

    monkeypatch.setattr(ClusterState, "assign_key", assign_key_slowly)
    claim = draw_claim()
    client.token("lock", claim, ttl_ms=TTL_MS)
    assert client.ask(ask.Renew((("lock", claim),))).remaining_ms
    assert client.ask(ask.Release("lock", claim)).was_held
    assert queue_keys(etcd) == []


def test_a_claim_whose_end_has_begun_is_not_enqueued(etcd: Corner, client: Client, monkeypatch: pytest.MonkeyPatch):
    extend, claim = EtcdQueueEntry.extend, draw_claim()

    def extend_slowly(entry: EtcdQueueEntry, sent_ms: int) -> None:
        extend(entry, sent_ms)
        other = client.store.connect(request_timeout_s=DEADLINE_S)
        elsewhere(lambda: other.perform(ask.Release("lock", claim)))

    monkeypatch.setattr(EtcdQueueEntry, "extend", extend_slowly)
    assert isinstance(client.acquire("lock", claim), ask.ClaimEnded)
    assert queue_keys(etcd) == []


def revoke(client: Client, session: EtcdSession) -> None:
    """End a session at etcd, as an operator may."""
    client.state.client.call(LEASE_REVOKE, wire.LeaseRevokeRequest(id=session.lease), DEADLINE_S)


def test_a_claim_in_doubt_without_a_session_blocks_no_other(etcd: Corner, client: Client):
    gone, living = draw_claim(), draw_claim()
    client.token("gone", gone, ttl_ms=TTL_MS // 2)
    client.token("lock", living, ttl_ms=TTL_MS)
    entry = client.state.entries[digest_of_claim(gone)]
    entry.sent += 1
    entry.deadline_ms = 0
    assert entry.session is not None
    revoke(client, entry.session)
    assert client.ask(ask.Renew((("lock", living),))).remaining_ms
    assert digest_of_claim(gone) not in client.state.entries
    assert entry.session.is_lost


def test_an_unconfirmed_revocation_is_repeated(etcd: Corner):
    with Proxy(etcd.cluster.servers[0].port) as proxy:
        client = installed(f"etcd://127.0.0.1:{proxy.port}/{etcd.prefix}")
        claim = draw_claim()
        client.token("lock", claim, ttl_ms=TTL_MS)
        session = client.state.sessions[TTL_MS]
        proxy.lose("requests")
        client.state.lose_session(session)
        wait_until(proxy.is_quiet)
        proxy.cut()
        assert queue_keys(etcd) != []

        def has_ended() -> bool:
            client.ask(ask.Renew(()))
            return queue_keys(etcd) == []

        wait_until(has_ended)
        assert client.ask(ask.Renew((("lock", claim),))).lost


def test_a_lease_that_etcd_has_ended_is_revoked_once(client: Client, monkeypatch: pytest.MonkeyPatch):
    client.token("lock", draw_claim(), ttl_ms=TTL_MS)
    session = client.state.sessions[TTL_MS]
    revoke(client, session)
    begin, revoked = client.state.client.begin, list[int]()

    def note(method: Any, request: Any, request_timeout_s: float) -> Any:
        assert method is LEASE_REVOKE
        revoked.append(request.id)
        return begin(method, request, request_timeout_s)

    monkeypatch.setattr(client.state.client, "begin", note)
    client.state.lose_session(session)
    for _ in range(10):
        client.ask(ask.Renew(()))
    wait_until(lambda: not client.state.pending_revocations._revocations or client.ask(ask.Renew(())) is None)
    assert revoked == [session.lease]


class TestLeaders(Leaders):
    @pytest.fixture
    def installed_url(self, etcd: Corner) -> str:
        installed(etcd.url)
        return etcd.url


class TestLossesAtRelease(LossesAtRelease):
    @pytest.fixture
    def installed_url(self, etcd: Corner) -> str:
        installed(etcd.url)
        return etcd.url


def test_h3_a_release_tells_of_an_epoch_whose_raiser_died_before_it_deleted_the_entry(
    etcd: Corner, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = draw_claim()
    client.token("lock", claim, ttl_ms=TTL_MS)
    monkeypatch.setattr(admin, "_delete_older_entries", lambda *_: iter(()))
    operator = installed(etcd.url)
    operator.raise_epoch()
    assert queue_keys(etcd) != []
    assert not client.ask(ask.Release("lock", claim)).was_held
    assert queue_keys(etcd) == []
