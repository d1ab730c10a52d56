"""What etcd keeps of claims, says of proofs, and refuses; and the requests that a check takes."""

from pathlib import Path

import pytest

from fencelock.model import draw_claim, one_way
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.connection.client import LEASE_TIME_TO_LIVE, TXN
from tests.cli.program import program
from tests.etcd.clients import Client, installed
from tests.etcd.fix_etcd import Corner
from tests.etcd.test_guard_life import EtcdFaceBesideLocks
from tests.support.quorum_proofs import QuorumProofs

__all__ = ["program"]


class TestEtcdProofs(QuorumProofs):
    hashing = "fencelock.stores.etcd.source.store"
    knows_last_token_of_a_free_lock = True

    @pytest.fixture
    def face(self, etcd: Corner) -> EtcdFaceBesideLocks:
        return EtcdFaceBesideLocks(etcd)

    def data(self, face: EtcdFaceBesideLocks) -> Path:
        (server,) = face.corner.cluster.servers
        return server.data

    def check_vouched(self, face: EtcdFaceBesideLocks, remaining: float) -> None:
        """Check that the time is in whole seconds, as etcd tells it."""
        assert remaining >= face.ttl / 2
        assert remaining == int(remaining)


def test_a_check_takes_one_request_and_one_more_for_another_processs_lease(etcd: Corner):
    client, other, claim = installed(etcd.url), Client(etcd.url), draw_claim()
    client.token("lock", claim)
    history_id = client.describe().history_id
    sent = []
    for one in (client, other):
        one.describe()
        send = one.connection.send
        one.connection.send = lambda operation, send=send: (sent.append(operation), send(operation))[1]
        assert one.ask(ask.Check("lock", history_id, one_way(claim))).remaining_ms
    assert [operation.method for operation in sent] == [TXN, TXN, LEASE_TIME_TO_LIVE]


def test_a_session_that_was_revoked_holds_nothing(etcd: Corner):
    client, other, claim = installed(etcd.url), Client(etcd.url), draw_claim()
    token = client.token("lock", claim)
    (session,) = client.state.sessions.values()
    etcd.cluster.ctl("lease", "revoke", f"{session.lease:x}")
    check = ask.Check("lock", client.describe().history_id, one_way(claim))
    assert other.ask(check) == ask.Checked(0, token)


def test_a_key_of_another_program_is_no_ones_proof(etcd: Corner):
    """Whoever writes a digest into a key without a lease is in nobody's queue."""
    client, claim = installed(etcd.url), draw_claim()
    value = f'{{"digest": "{one_way(one_way(claim))}", "holder": "forged"}}'
    etcd.cluster.ctl("put", f"{etcd.prefix}/lock/1-1", value)
    found = client.ask(ask.Check("lock", client.describe().history_id, one_way(claim)))
    assert found.remaining_ms == 0
