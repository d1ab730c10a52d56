"""The watcher at a real member: it misses no deletion that it promises to tell, and urgent watches begin at once."""

from threading import Event

import pytest

from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import TXN, EtcdClient
from fencelock.stores.etcd.connection.url import parse_url
from fencelock.stores.etcd.source.watcher import Watcher
from fencelock.testing.conformance.faults import failing_starts
from tests.etcd.clients import installed
from tests.etcd.fix_etcd import Corner
from tests.support.helpers import DEADLINE_S, wait_until

KEY = b"watched"
kinds = pytest.mark.parametrize("is_urgent", [True, False], ids=["urgent", "exact"])


class Scene:
    """A client, its watcher, and one key."""

    def __init__(self, corner: Corner) -> None:
        self.client = EtcdClient(parse_url(corner.url))
        self.watcher = Watcher(self.client)
        self.key = corner.prefix.encode() + KEY

    def do(self, *operations: wire.RequestOp) -> int:
        """Run this in one transaction, and return its revision."""
        return int(self.client.call(TXN, wire.txn([], list(operations)), DEADLINE_S).header.revision)

    def begin(self, *, is_urgent: bool) -> tuple[Event, int]:
        """Watch the key from now on, and wait until the watch has begun."""
        told = Event()
        revision = self.do(wire.put(self.key, b""))
        watch_id = self.watcher.watch(self.key, revision + 1, told.set, is_urgent=is_urgent)
        if is_urgent:
            wait_until(lambda: self.watcher._watches[watch_id].since is not None)
        return told, watch_id


@pytest.fixture
def scene(etcd: Corner) -> Scene:
    return Scene(etcd)


@kinds
def test_a_deletion_is_told(scene: Scene, *, is_urgent: bool) -> None:
    told, _ = scene.begin(is_urgent=is_urgent)
    told.clear()  # It may have notified for nothing when it began.
    scene.do(wire.delete(scene.key))
    assert told.wait(DEADLINE_S)


@kinds
def test_h7_a_deletion_before_the_watch_begins_is_told(scene: Scene, *, is_urgent: bool) -> None:
    """The key was seen, and is deleted before etcd receives the watch."""
    seen = scene.do(wire.put(scene.key, b""))
    scene.do(wire.delete(scene.key))
    told = Event()
    scene.watcher.watch(scene.key, seen + 1, told.set, is_urgent=is_urgent)
    assert told.wait(DEADLINE_S)


def test_a_waiter_that_polled_after_its_watch_began_needs_no_other(scene: Scene) -> None:
    told, watch_id = scene.begin(is_urgent=True)
    seen = scene.do(wire.put(scene.key, b"other"))
    assert scene.watcher.has_seen(watch_id, seen)
    assert not scene.watcher.has_seen(watch_id, 1), "the watch tells of nothing that was so long ago"
    scene.do(wire.delete(scene.key))
    assert told.wait(DEADLINE_S)  # It may have notified for nothing when it began.
    wait_until(lambda: not scene.watcher.has_seen(watch_id, seen))


def test_a_broken_stream_notifies_all(scene: Scene) -> None:
    told, _ = scene.begin(is_urgent=True)
    scene.watcher.reopen()
    assert told.wait(DEADLINE_S)


# --- a thread that does not start -------------------------------------------------------------------------------------
@kinds
def test_a_watch_is_live_once_etcd_has_confirmed_it(scene: Scene, *, is_urgent: bool) -> None:
    told, seen = Event(), scene.do(wire.put(scene.key, b""))
    with failing_starts() as faults:
        watch_id = scene.watcher.watch(scene.key, seen + 1, told.set, is_urgent=is_urgent)
        assert faults.failed == ["fencelock-watcher"]
        assert not scene.watcher.is_live(watch_id)
    scene.watcher.start()
    wait_until(lambda: scene.watcher.is_live(watch_id))
    scene.do(wire.delete(scene.key))
    assert told.wait(DEADLINE_S)


def test_h2_a_beat_looks_for_itself_while_no_watch_is_live(etcd: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    client, claim, is_over = installed(etcd.url), draw_claim(), Event()
    client.token("lock", claim)
    beat = ask.Renew((("lock", claim),))
    monkeypatch.setattr(Watcher, "_serve", lambda watcher: is_over.wait())  # It runs, and serves nothing.
    for _ in range(2):
        assert claim in client.ask(beat).remaining_ms
    names = etcd.keys()
    (key,) = [name for name in names if name.startswith("lock/")]
    delete = wire.txn([], [wire.delete(f"{etcd.prefix}/{key}".encode())])
    EtcdClient(parse_url(etcd.url)).call(TXN, delete, DEADLINE_S)
    assert claim in client.ask(beat).lost
    is_over.set()
