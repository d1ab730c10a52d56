"""What ZooKeeper keeps of claims, says of proofs, and refuses."""

from pathlib import Path

import pytest
from kazoo.client import KazooClient

import fencelock
from fencelock.model import draw_claim, one_way
from fencelock.protocol import source_requests as ask
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.cli.program import program
from tests.support.quorum_proofs import QuorumProofs
from tests.zookeeper.fix_client import Client
from tests.zookeeper.test_guard_life import ZooKeeperFaceBesideLocks

__all__ = ["program"]


class TestZooKeeperProofs(QuorumProofs):
    hashing = "fencelock.stores.zookeeper.source.store"
    knows_last_token_of_a_free_lock = False

    @pytest.fixture
    def face(self, zookeeper: ZooKeeperServer, kazoo: KazooClient) -> ZooKeeperFaceBesideLocks:
        self.server = zookeeper
        return ZooKeeperFaceBesideLocks(zookeeper, kazoo)

    def data(self, face: ZooKeeperFaceBesideLocks) -> Path:
        return self.server.data

    def check_vouched(self, face: ZooKeeperFaceBesideLocks, remaining: float) -> None:
        """Check that nothing is promised beyond the moment of the answer."""
        assert remaining == 0.001


def test_a_holder_with_kazoos_lock_has_no_proof(zookeeper_url: str, kazoo: KazooClient, client: Client) -> None:
    with fencelock.connect(zookeeper_url) as source:
        history_id = source.describe().history_id
    base = "/" + zookeeper_url.partition("://")[2].partition("/")[2].partition("?")[0]
    with kazoo.Lock(f"{base}/lock"):
        (node,) = kazoo.get_children(f"{base}/lock")
        found = client.perform(ask.Check("lock", history_id, one_way(draw_claim())))
        assert found == ask.Checked(0, kazoo.exists(f"{base}/lock/{node}").czxid)


def test_a_session_that_was_closed_holds_nothing(zookeeper_url: str, client: Client) -> None:
    other = Client(zookeeper_url)
    claim = other.acquire("lock")
    check = ask.Check("lock", other.reply.history_id, one_way(claim))
    assert client.perform(check) == ask.Checked(1, other.reply.token)
    other.close()
    assert client.perform(check) == ask.Checked(0, None)
