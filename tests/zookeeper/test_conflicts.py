"""Guards and sources at one base, and nodes that only look like contenders: refused, and never removed."""

import pytest
from kazoo.client import KazooClient

import fencelock
from fencelock import SourceError, StaleTokenError
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.zookeeper.source.store import ZooKeeperSource
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.zookeeper.fix_client import Client
from tests.zookeeper.fix_zookeeper import fresh_base

STRANGER = "data__lock__0000000000"


@pytest.fixture
def base(zookeeper: ZooKeeperServer) -> str:
    base = fresh_base()
    ZooKeeperSource(zookeeper.url(base)).install()
    return base


def sealed(url: str, resource: str = RESOURCE, token: int = 5) -> fencelock.Guard:
    guard = fencelock.guard(url, resource=resource, lock=LOCK)
    guard.seal(HandmadeLease(token))
    return guard


def test_a_break_and_a_purge_spare_the_marks_of_a_guard_below_the_locks_node(
    zookeeper: ZooKeeperServer, base: str, client: Client
) -> None:
    guard = sealed(zookeeper.url(f"{base}/billing"))
    with fencelock.connect(zookeeper.url(base)) as source:
        lease = source.lock("billing", ttl=20.0).acquire()
        source.break_lock("billing", reason="a test")
        assert lease is not None
        assert lease.release() is False
        source.purge()
        source.raise_epoch(reason="a test")
    assert guard.mark().token == 5
    with pytest.raises(StaleTokenError):
        guard.seal(HandmadeLease(4))


def test_a_node_only_named_like_a_contender_is_never_removed(
    zookeeper: ZooKeeperServer, base: str, kazoo: KazooClient
) -> None:
    guard = sealed(zookeeper.url(f"{base}/billing"), STRANGER)
    with guard.transaction(HandmadeLease(5)) as txn:
        txn.create(f"{base}/billing/{STRANGER}", b"100")
    made = Client(zookeeper.url(base))
    with pytest.raises(SourceError, match=f"{STRANGER}.*Nothing was done"):
        made.perform(ask.Break("billing", draw_claim(), "an operator", "a test"))
    history = made.perform(ask.ReadSource()).history_id
    made.perform(ask.RaiseEpoch(history, "a test"))
    made.close()
    assert kazoo.get(f"{base}/billing/{STRANGER}")[0] == b"100"


@pytest.mark.parametrize(
    ("below", "text"),
    [("", "is the place of a guard"), (f"/{RESOURCE}", "within a resource"), (f"/{RESOURCE}/x", "")],
)
def test_no_source_is_installed_where_guarded_nodes_are(zookeeper: ZooKeeperServer, below: str, text: str) -> None:
    base = fresh_base()
    sealed(zookeeper.url(base))
    with pytest.raises(SourceError, match=f"{text}.*nothing was installed"):
        ZooKeeperSource(zookeeper.url(f"{base}{below}")).install()
    ZooKeeperSource(zookeeper.url(f"{base}/another")).install()
