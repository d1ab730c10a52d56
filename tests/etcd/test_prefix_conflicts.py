"""Guards and sources whose prefixes conflict: refused where they begin, and recognised where they exist."""

import pytest

import fencelock
from fencelock import GuardError, SourceError, StaleTokenError
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.source.prefix_conflicts import conflicts_of_guard, conflicts_of_source
from fencelock.stores.registry import guard_store
from fencelock_lab.servers.etcd import EtcdCluster
from tests.etcd.clients import Client, installed
from tests.etcd.fix_etcd import Corner
from tests.etcd.guarded import Direct
from tests.etcd.test_secured import app_url
from tests.support.guards import LOCK, RESOURCE, HandmadeLease


def inner_url(corner: Corner, path: str = "billing") -> str:
    return corner.cluster.url(f"{corner.prefix}/{path}")


def broken(client: Client, lock: str) -> ask.Broken:
    return client.ask(ask.Break(lock, draw_claim(), "an operator", "a test"))


def sealed(url: str, token: int = 5) -> fencelock.Guard:
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    guard.seal(HandmadeLease(token))
    return guard


# --- where a guard begins ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["billing", "billing/deep/deeper", "a%2Fb", ".fencelock/x"])
def test_no_mark_is_made_below_the_prefix_of_a_source(etcd: Corner, path: str) -> None:
    installed(etcd.url)
    with pytest.raises(GuardError, match=f"source of locks at '{etcd.prefix}/'.*name another path"):
        sealed(inner_url(etcd, path))
    assert not [key for key in sorted(etcd.keys()) if "/marks/" in key]


def test_a_mark_is_made_where_no_lock_can_be_named_so(etcd: Corner) -> None:
    installed(etcd.url)
    assert sealed(inner_url(etcd, "no lock, for its blanks")).mark().token == 5


def test_a_prefix_that_the_user_may_not_read_is_no_conflict(guarded_etcd: EtcdCluster) -> None:
    assert sealed(app_url(guarded_etcd, "app/data")).mark().token == 5
    with pytest.raises(SourceError, match="does not permit"):
        sealed(app_url(guarded_etcd, "other"))
    installed(app_url(guarded_etcd, "app/locks"))
    with pytest.raises(GuardError, match="queue of lock 'billing' of the source of locks at 'app/locks/'"):
        sealed(app_url(guarded_etcd, "app/locks/billing"))


def test_conflicts_are_searched_above_and_not_below() -> None:
    assert [one.key for one in conflicts_of_guard(b"a/%2F//b/")] == [
        b"a/%2F//b/.fencelock/source/record",
        b"a/%2F//.fencelock/source/record",
        b"a/.fencelock/source/record",
        b".fencelock/source/record",
    ]
    assert [one.key for one in conflicts_of_guard(b"")] == [b".fencelock/source/record"]
    assert [one.key for one in conflicts_of_source(b"a/b/")] == [
        b"a/b/.fencelock/marks/",
        b"a/b/.fencelock/floors",
        b"a/.fencelock/marks/b",
        b".fencelock/marks/a",
        b"a/.fencelock/source/record",
        b".fencelock/source/record",
    ]


# --- where a source begins --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("guard", "source", "text"),
    [
        ("g", "g", "is the place of a guard's marks and data"),
        ("g", f"g/{RESOURCE}", f"is within resource '{RESOURCE}' of the guard at"),
        ("g", f"g/{RESOURCE}/deeper", f"is within resource '{RESOURCE}' of the guard at"),
    ],
)
def test_no_source_is_installed_where_guarded_data_are(etcd: Corner, guard: str, source: str, text: str) -> None:
    sealed(inner_url(etcd, guard))
    before = etcd.keys()
    with pytest.raises(SourceError, match=f"{text}.*nothing was installed"):
        installed(inner_url(etcd, source))
    assert etcd.keys() == before
    installed(inner_url(etcd, f"g/{RESOURCE}2"))


def test_no_source_is_installed_in_the_queue_of_anothers_lock(etcd: Corner) -> None:
    installed(etcd.url)
    with pytest.raises(SourceError, match="queue of lock 'app' of the source"):
        installed(inner_url(etcd, "app"))


# --- where they are in each other's way already -----------------------------------------------------------------------
@pytest.fixture
def nested(etcd: Corner) -> Corner:
    """Make a guard below the prefix of a source that is installed later."""
    sealed(inner_url(etcd))
    installed(etcd.url)
    return etcd


def test_a_break_spares_a_mark_in_the_queue(nested: Corner) -> None:
    client = Client(nested.url)
    assert isinstance(client.acquire("billing"), ask.Busy)
    before = nested.keys()
    with pytest.raises(SourceError, match=r"billing/\.fencelock/marks/.*Nothing was done"):
        broken(client, "billing")
    assert nested.keys() == before
    guard = fencelock.guard(inner_url(nested), resource=RESOURCE, lock=LOCK)
    with pytest.raises(StaleTokenError):
        guard.seal(HandmadeLease(4))


def test_a_break_ends_a_holder_before_a_key_that_is_no_entry(etcd: Corner) -> None:
    client = installed(etcd.url)
    token = client.token("billing", draw_claim())
    Direct(etcd.url).put(f"{etcd.prefix}/billing/data", "1")
    Direct(etcd.url).put(f"{etcd.prefix}/billing/deep/data", "2")
    assert broken(client, "billing").token > token
    with pytest.raises(SourceError, match="billing/data, which is not a queue entry"):
        broken(client, "billing")
    assert [key for key in sorted(etcd.keys()) if key.startswith("billing/")] == ["billing/data", "billing/deep/data"]


def test_a_raised_epoch_spares_data_named_like_entries(etcd: Corner) -> None:
    client = installed(etcd.url)
    client.token("billing", draw_claim())
    Direct(etcd.url).put(f"{etcd.prefix}/billing/{RESOURCE}/1-1", "data")
    client.raise_epoch("a test")
    assert [key for key in sorted(etcd.keys()) if key.startswith("billing/")] == [f"billing/{RESOURCE}/1-1"]


def test_a_key_in_a_queue_is_shown_and_found(nested: Corner) -> None:
    client = Client(nested.url)
    # As if somebody had acquired the lock before: otherwise only the guard's own check finds the conflict.
    Direct(nested.url).put(f"{nested.prefix}/.fencelock/source/locks/billing", "")
    holder = client.ask(ask.Inspect("billing")).holder
    assert holder.startswith(f"key {nested.prefix}/billing/.fencelock/marks/")
    (found,) = (one for one in client.store.examine() if one.code == "blocked-queue")
    assert "lock 'billing'" in found.message
    assert holder in found.message
    codes = [one.code for one in guard_store(inner_url(nested)).examine()]
    assert codes == ["shared-place", "open-to-all"]
