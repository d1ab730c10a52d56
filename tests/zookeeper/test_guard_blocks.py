"""What a guarded block can do at ZooKeeper: reads at once, one multi at its end, its own resources only."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.security import make_acl

import fencelock
import fencelock.aio
from fencelock import ConfigError, GuardError, Hooks, SealLostError, SourceUnavailableError, StaleTokenError
from fencelock.stores.zookeeper.guard.block import MAX_REQUEST_BYTES
from fencelock.stores.zookeeper.guard.codec import ZooKeeperGuardCodec
from fencelock_lab.servers.zookeeper import ZooKeeperFleet, ZooKeeperServer
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import meanwhile, wait_until
from tests.zookeeper.fix_zookeeper import fresh_base


@pytest.fixture(scope="module")
def direct(zookeeper_fleet: ZooKeeperFleet) -> Iterator[KazooClient]:
    """Yield a client that bypasses the guard."""
    client = zookeeper_fleet.shared().client()
    yield client
    # Errors that tests have caught keep guards and their sessions alive until the collector runs.
    gc.collect()
    client.stop()
    client.close()


class Scene:
    """A guarded subtree with the node `a`, its holder, and a client that bypasses the guard."""

    def __init__(self, server: ZooKeeperServer, direct: KazooClient) -> None:
        self.base = fresh_base()
        self.url = server.url(self.base)
        self.direct = direct
        self.root = f"{self.base}/{RESOURCE}"
        direct.ensure_path(self.root)
        direct.create(self.node("a"), b"1")
        self.lease = HandmadeLease(5)
        self.told: list[Any] = []
        hooks = Hooks(on_refused=self.told.append, on_sealed=self.told.append)
        self.guard = fencelock.guard(self.url, resource=RESOURCE, lock=LOCK, hooks=hooks)

    def node(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write(self, act: Callable[[Any], Any]) -> None:
        with self.guard.transaction(self.lease) as txn:
            act(txn)

    def value(self, name: str) -> bytes | None:
        return self.direct.get(self.node(name))[0] if self.direct.exists(self.node(name)) else None


@pytest.fixture
def scene(zookeeper: ZooKeeperServer, direct: KazooClient) -> Scene:
    return Scene(zookeeper, direct)


# --- reads and writes -------------------------------------------------------------------------------------------------
def test_a_block_reads_at_once_and_writes_at_its_end(scene: Scene) -> None:
    scene.direct.create(scene.node("gone"))
    with scene.guard.transaction(scene.lease) as txn:
        value, stat = txn.get(scene.node("a"))
        assert (value, stat.version) == (b"1", 0)
        assert txn.exists(scene.node("b")) is None
        assert txn.exists(scene.node("gone")).version == 0
        assert sorted(txn.get_children(scene.root)) == ["a", "gone"]
        txn.set(scene.node("a"), b"2")
        txn.set(scene.node("a"), b"3", version=1)
        txn.create(scene.node("b"), b"new")
        txn.create(scene.node("b/c"))
        txn.delete(scene.node("gone"))
        txn.check(scene.base, 0)
        assert (scene.value("a"), scene.value("b")) == (b"1", None)
    assert (scene.value("a"), scene.value("b"), scene.value("b/c"), scene.value("gone")) == (b"3", b"new", b"", None)


def test_an_exception_leaves_nothing(scene: Scene) -> None:
    def act(txn: Any) -> None:
        txn.set(scene.node("a"), b"2")
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        scene.write(act)
    assert scene.value("a") == b"1"
    assert scene.guard.mark().token == 5


def test_the_root_of_a_resource_is_its_own(scene: Scene) -> None:
    guard = fencelock.guard(scene.url, resource="s/t", lock=LOCK)
    with guard.transaction(scene.lease) as txn:
        txn.create(f"{scene.base}/s%2Ft", b"root")
    assert scene.direct.get(f"{scene.base}/s%2Ft")[0] == b"root"


def test_a_node_gets_the_urls_access_list_unless_another_is_given(
    zookeeper: ZooKeeperServer, direct: KazooClient, scene: Scene
) -> None:
    url = zookeeper.url(scene.base, acl="world:anyone:rcdw")
    own = make_acl("world", "anyone", read=True, delete=True)
    with fencelock.guard(url, resource=RESOURCE, lock=LOCK).transaction(scene.lease) as txn:
        txn.create(scene.node("by-default"))
        txn.create(scene.node("own"), acl=[own])
    assert direct.get_acls(scene.node("by-default"))[0][0].perms == 0b01111
    assert direct.get_acls(scene.node("own"))[0] == [own]
    assert direct.get_acls(f"{scene.base}/.fencelock/marks/{RESOURCE}")[0][0].perms == 0b01111


def test_blocks_of_one_holder_do_not_wait_for_each_other(scene: Scene) -> None:
    both_inside = threading.Barrier(2)

    def write(name: str) -> None:
        guard = fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK)
        with guard.transaction(scene.lease) as txn:
            txn.get(scene.node("a"))
            txn.create(scene.node(name))
            both_inside.wait(30)

    scene.guard.seal(scene.lease)
    other = threading.Thread(target=write, args=["one"], daemon=True)
    other.start()
    write("two")
    other.join(30)
    assert None not in (scene.value("one"), scene.value("two"))


# --- what is refused at once ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("outside", ["", "/reportsx", "/report", "/other/a", "/.fencelock/marks/reports", "/Reports/a"])
@pytest.mark.parametrize("use", ["get", "exists", "get_children", "create", "set", "delete"])
def test_a_block_touches_nothing_outside_of_its_resources(scene: Scene, use: str, outside: str) -> None:
    with (
        scene.guard.transaction(scene.lease) as txn,
        pytest.raises(GuardError, match=r"is outside of .*/reports and below for resource 'reports'"),
    ):
        getattr(txn, use)(scene.base + outside, *[b"value"] * (use == "set"))


def test_a_path_that_utf8_cannot_carry_is_refused_and_the_session_goes_on(scene: Scene) -> None:
    with scene.guard.transaction(scene.lease) as txn:
        for use in (txn.get, txn.exists, txn.get_children, txn.create):
            with pytest.raises(ConfigError, match="contains a lone surrogate"):
                use(scene.node("\ud800"))
        assert txn.get(scene.node("a"))[0] == b"1"


@pytest.mark.parametrize("path", ["", "a", "/", "/a/", "//a", "{}//a", "{}/../other", "{}/./a", "{}/"])
def test_a_path_is_written_in_one_way(scene: Scene, path: str) -> None:
    with scene.guard.transaction(scene.lease) as txn:
        for use in (txn.get, txn.create, txn.delete, lambda path: txn.check(path, 0)):
            with pytest.raises(ConfigError, match="is not the whole path of a node"):
                use(path.format(scene.root))


def test_a_block_reads_first_and_then_writes(scene: Scene) -> None:
    with scene.guard.transaction(scene.lease) as txn:
        txn.create(scene.node("b"))
        txn.create(scene.node("b/c"))
        for path, uses in (
            (scene.node("b"), (txn.get, txn.exists, txn.get_children)),
            (scene.node("b/c"), (txn.get, txn.exists)),
            (scene.root, (txn.get_children,)),
        ):
            for use in uses:
                with pytest.raises(GuardError, match="read first, then write"):
                    use(path)
        assert txn.get(scene.node("a"))[0] == b"1"
        assert txn.get_children(scene.node("a")) == []


def test_a_transaction_is_over_with_its_block(scene: Scene) -> None:
    with scene.guard.transaction(scene.lease) as txn:
        pass
    for use in (txn.get, txn.exists, txn.get_children, txn.create, txn.delete, lambda path: txn.check(path, 0)):
        with pytest.raises(GuardError, match="the guarded block is over"):
            use(scene.node("a"))


def test_values_are_bytes(scene: Scene) -> None:
    with scene.guard.transaction(scene.lease) as txn:
        for use in (txn.create, txn.set):
            with pytest.raises(ConfigError, match="must be bytes, not str"):
                use(scene.node("b"), "text")


def test_a_wrong_version_access_list_or_path_is_refused_at_once(scene: Scene) -> None:
    node = scene.node("b")
    with scene.guard.transaction(scene.lease) as txn:
        for wrong in ("1", 2**31, None, 1.5):
            for use in (lambda wrong: txn.set(node, b"", wrong), lambda wrong: txn.delete(node, wrong)):
                with pytest.raises(ConfigError, match="int of 32 bits"):
                    use(wrong)
            with pytest.raises(ConfigError, match="int of 32 bits"):
                txn.check(node, wrong)
        for acl in ([("world", "anyone")], 5, [5]):
            with pytest.raises(ConfigError, match="kazoo's ACL"):
                txn.create(node, b"", acl)
        with pytest.raises(ConfigError, match="a path must be str"):
            txn.get(node.encode())
    assert scene.value("b") is None


def test_no_transaction_of_the_callers_own_can_be_checked(scene: Scene) -> None:
    for use in (scene.guard.seal, scene.guard.check):
        with pytest.raises(GuardError, match=r"zookeeper://\S+ has no transaction that stays open"):
            use(scene.lease, connection=scene.direct.transaction())


# --- limits -----------------------------------------------------------------------------------------------------------
def test_more_than_zookeeper_takes_is_refused_before_it_is_sent(scene: Scene) -> None:
    with pytest.raises(GuardError, match=r"writes 1\d{6} bytes in 2 operations, and ZooKeeper takes 1000000"):
        scene.write(lambda txn: [txn.set(scene.node("a"), b"x" * (MAX_REQUEST_BYTES // 2)) for _ in range(2)])
    assert scene.value("a") == b"1"


def test_the_largest_request_is_written(scene: Scene) -> None:
    scene.write(lambda txn: txn.set(scene.node("a"), b"x" * (MAX_REQUEST_BYTES - 1000)))
    assert len(scene.value("a") or b"") == MAX_REQUEST_BYTES - 1000


# --- what is found at the end -----------------------------------------------------------------------------------------
def late(scene: Scene, meantime: Callable[[], Any], read: Callable[[Any], Any] = lambda _: None) -> None:
    """Write in a block, while something else happens before its end."""

    def act(txn: Any) -> None:
        read(txn)
        txn.create(scene.node("late"))
        meanwhile(meantime)

    scene.write(act)


def test_g3_a_block_that_was_overtaken_writes_nothing_and_says_by_whom(scene: Scene) -> None:
    later = fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK)
    with pytest.raises(StaleTokenError) as caught:
        late(scene, lambda: later.seal(HandmadeLease(6)))
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (5, 6, RESOURCE)
    assert scene.value("late") is None
    assert [(event.name, event.reason) for event in scene.told] == [("sealed", None), ("refused", "stale")]


def test_g10_a_block_whose_own_holder_closes_writes_nothing(scene: Scene) -> None:
    with pytest.raises(StaleTokenError, match="its own holder closed it"):
        late(scene, lambda: scene.guard.close(scene.lease))
    assert scene.value("late") is None


def test_g9_a_missing_mark_is_reported_at_the_end(scene: Scene) -> None:
    with pytest.raises(SealLostError, match="now its mark is 0"):
        late(scene, lambda: delete_mark(scene))
    assert scene.value("late") is None


def delete_mark(scene: Scene) -> None:
    scene.direct.delete(f"{scene.base}/.fencelock/marks/{RESOURCE}", recursive=True)


def test_g1_a_recreated_mark_does_not_pass_for_the_old_one(scene: Scene) -> None:
    """Its version is the same as the old mark's."""
    later = fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK)

    def take_over() -> None:
        delete_mark(scene)
        later.seal(HandmadeLease(6))

    with pytest.raises(StaleTokenError, match="its mark is 6"):
        late(scene, take_over)
    assert scene.value("late") is None


def test_a_mark_restored_by_hand_is_accepted(scene: Scene) -> None:
    mark = f"{scene.base}/.fencelock/marks/{RESOURCE}"
    scene.guard.seal(HandmadeLease(4))
    backup, _ = scene.direct.get(mark)
    late(scene, lambda: None)
    scene.direct.set(mark, backup)
    following = HandmadeLease(6)
    with scene.guard.transaction(following) as txn:
        txn.set(scene.node("late"), b"6")
    assert scene.value("late") == b"6"
    assert len(scene.direct.get_children(mark)) == 1


@pytest.mark.parametrize("how", ["get", "exists"])
@pytest.mark.parametrize("change", [lambda direct, node: direct.set(node, b"1"), KazooClient.delete])
def test_an_unfenced_write_to_what_was_read_refuses_the_block(scene: Scene, how: str, change: Any) -> None:
    node = scene.node("a")
    with pytest.raises(GuardError, match=r"node '.*/reports/a', which the block had read, has changed") as caught:
        late(scene, lambda: change(scene.direct, node), read=lambda txn: getattr(txn, how)(node))
    assert type(caught.value) is GuardError
    assert scene.value("late") is None


def test_a_write_to_what_the_block_did_not_read_refuses_nothing(scene: Scene) -> None:
    scene.direct.create(scene.node("b"))
    late(scene, lambda: scene.direct.set(scene.node("a"), b"x"), read=lambda txn: txn.get(scene.node("b")))
    assert scene.value("late") == b""


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda txn, scene: txn.create(scene.node("a")), NodeExistsError),
        (lambda txn, scene: txn.create(scene.node("x/y")), NoNodeError),
        (lambda txn, scene: txn.delete(scene.node("x")), NoNodeError),
        (lambda txn, scene: txn.delete(scene.root), NotEmptyError),
        (lambda txn, scene: txn.set(scene.node("a"), b"2", version=3), BadVersionError),
        (lambda txn, scene: txn.check(scene.base, 3), BadVersionError),
    ],
)
def test_kazoos_error_about_a_write_leaves_the_block(scene: Scene, act: Any, error: type[Exception]) -> None:
    def write(txn: Any) -> None:
        txn.set(scene.node("a"), b"2")
        act(txn, scene)

    with pytest.raises(error) as caught:
        scene.write(write)
    assert "of which nothing was written" in caught.value.__notes__[0]
    assert scene.value("a") == b"1"


def test_kazoos_error_about_a_read_is_raised_in_the_block(scene: Scene) -> None:
    with scene.guard.transaction(scene.lease) as txn:
        for use in (txn.get, txn.get_children):
            with pytest.raises(NoNodeError):
                use(scene.node("x"))
        txn.set(scene.node("a"), b"2")
    assert scene.value("a") == b"2"


# --- tasks ------------------------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_a_task_reads_in_a_thread_and_writes_as_it_likes(scene: Scene) -> None:
    guard = fencelock.aio.guard(scene.url, resource=RESOURCE, lock=LOCK)
    async with guard.transaction(scene.lease) as txn:
        value, _ = await asyncio.to_thread(txn.get, scene.node("a"))
        txn.set(scene.node("a"), value + b"2")
    assert scene.value("a") == b"12"


# --- what is read is no older than the seal ---------------------------------------------------------------------------
def end_session(server: ZooKeeperServer, scene: Scene) -> None:
    """Make the servers end the guard's session, as after a long silence; the guard opens another."""
    client = scene.guard._core.store._client
    before = client.session
    thief = KazooClient(server.address, client_id=client._client.client_id)
    thief.start()
    thief.stop()
    thief.close()
    wait_until(lambda: client.session not in (None, before))


def test_g2_what_a_later_session_reads_is_not_relied_on(zookeeper: ZooKeeperServer, scene: Scene) -> None:
    """A server that has not heard of the seal may serve it, and children are not compared at the end."""

    def act(txn: Any) -> None:
        txn.get(scene.node("a"))
        txn.create(scene.node("late"))
        end_session(zookeeper, scene)
        for use in (txn.get, txn.exists, txn.get_children):
            with pytest.raises(SourceUnavailableError, match="ended inside the guarded block"):
                use(scene.node("a"))
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        scene.write(act)
    scene.write(lambda txn: txn.create(scene.node("next")))
    assert (scene.value("late"), scene.value("next")) == (None, b"")


def test_g2_what_is_read_in_a_later_session_than_the_marks_is_not_relied_on(
    zookeeper: ZooKeeperServer, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends between the read of the marks, which followed a sync, and the block's first read, which
    did not.
    """
    scene.guard.seal(scene.lease)
    give_to_block = ZooKeeperGuardCodec._open_work

    def end_session_and_lend(*terms: Any) -> Any:
        end_session(zookeeper, scene)
        return give_to_block(*terms)

    monkeypatch.setattr(ZooKeeperGuardCodec, "_open_work", end_session_and_lend)
    with pytest.raises(SourceUnavailableError, match="ended inside the guarded block"):
        scene.write(lambda txn: txn.get(scene.node("a")))


def test_g2_a_block_that_read_nothing_later_outlives_its_session(zookeeper: ZooKeeperServer, scene: Scene) -> None:
    def act(txn: Any) -> None:
        txn.get(scene.node("a"))
        txn.create(scene.node("new"))
        end_session(zookeeper, scene)

    scene.write(act)
    assert scene.value("new") == b""


def test_g2_marks_are_read_after_a_sync(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may lag behind the others, and another process's seal must be visible."""
    sent: list[str] = []
    call = KazooClient._call

    def note(client: Any, request: Any, result: Any) -> Any:
        if client is scene.guard._core.store._client._client:  # Others may end sessions that earlier tests have left.
            sent.append(type(request).__name__)
        return call(client, request, result)

    monkeypatch.setattr(KazooClient, "_call", note)
    scene.write(lambda txn: txn.set(scene.node("a"), b"2"))
    scene.write(lambda txn: txn.set(scene.node("a"), b"3"))
    with_floors = ["Sync", "GetData", "GetData", "GetChildren", "GetChildren"]
    assert sent[:5] == with_floors
    assert sent[-4:] == ["Sync", "GetData", "GetChildren", "Transaction"]
    sent.clear()
    scene.guard.mark()
    assert sent == with_floors


def test_a_node_that_others_made_below_a_mark_is_named(scene: Scene) -> None:
    scene.guard.seal(HandmadeLease(4))
    foreign = f"{scene.base}/.fencelock/marks/{RESOURCE}/theirs"
    scene.direct.create(f"{foreign}/deep", makepath=True)
    with pytest.raises(GuardError, match=f"{foreign} has nodes below it, and fencelock makes none there"):
        scene.guard.seal(scene.lease)
    scene.direct.delete(foreign, recursive=True)
    scene.guard.seal(scene.lease)
    assert scene.guard.mark().token == 5
