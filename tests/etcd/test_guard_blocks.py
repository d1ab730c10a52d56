"""What a guarded block can do at etcd: reads at once, one Txn at its end, and nothing outside its resources."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import ConfigError, GuardError, Hooks, SealLostError, StaleTokenError
from fencelock.stores.etcd.guard.block import MAX_OPERATIONS, MAX_REQUEST_BYTES
from tests.etcd.fix_etcd import Corner
from tests.etcd.guarded import Direct
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import meanwhile

ENTRIES = MAX_OPERATIONS - 1
"""Keys that a block may read: one comparison is the mark's."""


class Scene:
    """A guarded range, its holder, and a client that bypasses the guard."""

    def __init__(self, corner: Corner) -> None:
        self.url = corner.url
        self.corner = corner
        self.direct = Direct(corner.url)
        self.lease = HandmadeLease(5)
        self.told: list[Any] = []
        hooks = Hooks(on_refused=self.told.append, on_sealed=self.told.append)
        self.guard = fencelock.guard(self.url, resource=RESOURCE, lock=LOCK, hooks=hooks)

    def key(self, name: str) -> str:
        return f"{self.corner.prefix}/{RESOURCE}/{name}"

    def block(self, lease: Any = None) -> Any:
        return self.guard.transaction(lease or self.lease)

    def write(self, act: Callable[[Any], Any]) -> None:
        with self.block() as txn:
            act(txn)

    def value(self, name: str) -> str | None:
        return self.direct.get(self.key(name))

    def names(self) -> list[str]:
        """Return the names of the resource's keys."""
        found = self.corner.keys()
        return [name.removeprefix(f"{RESOURCE}/") for name in found if name.startswith(f"{RESOURCE}/")]


@pytest.fixture
def scene(etcd: Corner) -> Scene:
    return Scene(etcd)


# --- reads and writes -------------------------------------------------------------------------------------------------
def test_a_block_reads_at_once_and_writes_at_its_end(scene: Scene) -> None:
    scene.direct.put(scene.key("a"), "1")
    scene.direct.put(scene.key("b"), b"\xff")
    with scene.block() as txn:
        assert txn.get(scene.key("a")) == b"1"
        assert txn.get(scene.key("c").encode()) is None
        assert txn.get_prefix(scene.key("")) == {scene.key("a").encode(): b"1", scene.key("b").encode(): b"\xff"}
        txn.put(scene.key("c"), "3")
        txn.put(scene.key("c"), "4")
        txn.delete(scene.key("b"))
        txn.delete(scene.key("never-was"))
        assert scene.value("c") is None
    assert (scene.value("a"), scene.value("b"), scene.value("c")) == ("1", None, "4")


def test_a_deleted_prefix_takes_what_was_written_before_it_and_spares_what_is_written_later(scene: Scene) -> None:
    for name in ("x/1", "x/2", "x/3", "x/5", "y"):
        scene.direct.put(scene.key(name), "old")
    with scene.block() as txn:
        txn.put(scene.key("x/0"), "written before")
        txn.delete_prefix(scene.key("x/"))
        for name in ("x/2", "x/4", "x/"):
            txn.put(scene.key(name), "new")
        txn.delete(scene.key("x/5"))
        txn.delete_prefix(scene.key("x/6"))
    assert scene.names() == ["x/", "x/2", "x/4", "y"]
    assert (scene.value("x/2"), scene.value("y")) == ("new", "old")


def test_an_exception_leaves_nothing(scene: Scene) -> None:
    with contextlib.suppress(ZeroDivisionError), scene.block() as txn:
        txn.put(scene.key("a"), "1")
        raise ZeroDivisionError
    assert scene.names() == []
    assert scene.guard.mark().token == 5


def test_several_resources_are_written_in_one_block(etcd: Corner) -> None:
    guard = fencelock.guard(etcd.url, resources=["r", "s/t"], lock=LOCK)
    with guard.transaction(HandmadeLease(5)) as txn:
        txn.put(f"{etcd.prefix}/r/a", "1")
        txn.put(f"{etcd.prefix}/s%2Ft/a", "2")
    assert Direct(etcd.url).get(f"{etcd.prefix}/s%2Ft/a") == "2"


def test_blocks_of_one_holder_do_not_wait_for_each_other(scene: Scene) -> None:
    both_inside = threading.Barrier(2)

    def write(name: str) -> None:
        guard = fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK)
        with guard.transaction(scene.lease) as txn:
            txn.get(scene.key("shared"))
            txn.put(scene.key(name), name)
            both_inside.wait(30)

    scene.guard.seal(scene.lease)
    other = threading.Thread(target=write, args=["one"], daemon=True)
    other.start()
    write("two")
    other.join(30)
    assert None not in (scene.value("one"), scene.value("two"))


# --- what is refused at once ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "outside", ["", "reports", "reportsx/a", "other/a", ".fencelock/marks/reports", "Reports/a", "report"]
)
@pytest.mark.parametrize("use", ["get", "get_prefix", "put", "delete", "delete_prefix"])
def test_a_block_touches_nothing_outside_of_its_resources(scene: Scene, use: str, outside: str) -> None:
    key = f"{scene.corner.prefix}/{outside}" if outside else ""
    with scene.block() as txn, pytest.raises(GuardError, match=r"is outside of .*/reports/'… for resource 'reports'"):
        getattr(txn, use)(key, *["value"] * (use == "put"))


def test_a_block_reads_first_and_then_writes(scene: Scene) -> None:
    with scene.block() as txn:
        txn.put(scene.key("a/1"), "1")
        txn.delete(scene.key("b"))
        txn.delete_prefix(scene.key("c/"))
        for name in ("a/1", "b", "c/1"):
            with pytest.raises(GuardError, match="read first, then write"):
                txn.get(scene.key(name))
        for name in ("", "a/", "b", "c/", "c/1"):
            with pytest.raises(GuardError, match="read first, then write"):
                txn.get_prefix(scene.key(name))
        assert txn.get(scene.key("a")) is None
        assert txn.get_prefix(scene.key("a/2")) == {}


def test_a_transaction_is_over_with_its_block(scene: Scene) -> None:
    with scene.block() as txn:
        pass
    with contextlib.suppress(ZeroDivisionError), scene.block() as another:
        raise ZeroDivisionError
    for one in (txn, another):
        for use in (one.get, one.get_prefix, one.delete, one.delete_prefix):
            with pytest.raises(GuardError, match="the guarded block is over"):
                use(scene.key("a"))
        with pytest.raises(GuardError, match="the guarded block is over"):
            one.compare(scene.key("a"), version=0)


@pytest.mark.parametrize("wrong", [None, 1, ["a"]])
def test_keys_and_values_are_text_or_bytes(scene: Scene, wrong: Any) -> None:
    with scene.block() as txn:
        for use in (lambda: txn.get(wrong), lambda: txn.put(scene.key("a"), wrong), lambda: txn.put(wrong, "a")):
            with pytest.raises(ConfigError, match="must be str or bytes"):
                use()


def test_text_that_utf8_cannot_carry_is_refused(scene: Scene) -> None:
    with scene.block() as txn:
        for use in (lambda: txn.get(scene.key("\ud800")), lambda: txn.put(scene.key("a"), "\ud800")):
            with pytest.raises(ConfigError, match="contains a lone surrogate"):
                use()


def test_no_transaction_of_the_callers_own_can_be_checked(scene: Scene) -> None:
    for use in (scene.guard.seal, scene.guard.check):
        with pytest.raises(GuardError, match=r"etcd://\S+ has no transaction that stays open"):
            use(scene.lease, connection=object())


# --- limits -----------------------------------------------------------------------------------------------------------
def test_as_much_as_etcd_takes_is_written(scene: Scene) -> None:
    with scene.block() as txn:
        for number in range(ENTRIES):
            txn.get(scene.key(f"read/{number}"))
        for number in range(MAX_OPERATIONS):
            txn.put(scene.key(f"{number}"), "x")
    assert len(scene.names()) == MAX_OPERATIONS


def test_more_than_etcd_takes_is_refused_before_it_is_sent(scene: Scene) -> None:
    def write_many(txn: Any) -> None:
        for number in range(MAX_OPERATIONS + 1):
            txn.put(scene.key(f"{number}"), "x")

    def read_many(txn: Any) -> None:
        for number in range(MAX_OPERATIONS):
            txn.get(scene.key(f"{number}"))

    with pytest.raises(GuardError, match=r"makes 129 writes, and etcd takes 128"):
        scene.write(write_many)
    with pytest.raises(GuardError, match=r"makes 129 comparisons"):
        scene.write(read_many)
    with pytest.raises(GuardError, match=r"needs 1500\d\d\d bytes, and etcd takes 1500000 in one request"):
        scene.write(lambda txn: txn.put(scene.key("large"), "x" * MAX_REQUEST_BYTES))
    assert scene.names() == []


def test_the_largest_request_is_written(scene: Scene) -> None:
    with scene.block() as txn:
        txn.put(scene.key("large"), "x" * (MAX_REQUEST_BYTES - 1000))
    assert len(scene.value("large") or "") == MAX_REQUEST_BYTES - 1000


# --- what is found at the end -----------------------------------------------------------------------------------------
def late(scene: Scene, meantime: Callable[[], Any], read: Callable[[Any], Any] = lambda _: None) -> None:
    """Write in a block, while something else happens before its end."""

    def act(txn: Any) -> None:
        read(txn)
        txn.put(scene.key("a"), "late")
        meanwhile(meantime)

    scene.write(act)


def test_g3_a_block_that_was_overtaken_writes_nothing_and_says_by_whom(scene: Scene) -> None:
    later = fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK)
    with pytest.raises(StaleTokenError) as caught:
        late(scene, lambda: later.seal(HandmadeLease(6)))
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (5, 6, RESOURCE)
    assert scene.names() == []
    assert [(event.name, event.reason) for event in scene.told] == [("sealed", None), ("refused", "stale")]


def test_g10_a_block_whose_own_holder_closes_writes_nothing(scene: Scene) -> None:
    with pytest.raises(StaleTokenError, match="its own holder closed it"):
        late(scene, lambda: scene.guard.close(scene.lease))
    assert scene.names() == []


def test_g9_a_missing_mark_is_reported_at_the_end(scene: Scene) -> None:
    with pytest.raises(SealLostError, match="now its mark is 0"):
        late(scene, lambda: scene.direct.delete(f"{scene.corner.prefix}/.fencelock/marks/{RESOURCE}"))
    assert scene.names() == []


@pytest.mark.parametrize(("was", "becomes"), [("was", "changed"), ("was", "was"), ("was", None), (None, "new")])
def test_an_unfenced_write_to_what_was_read_refuses_the_block(
    scene: Scene, was: str | None, becomes: str | None
) -> None:
    key = scene.key("read")
    if was is not None:
        scene.direct.put(key, was)
    change = (lambda: scene.direct.delete(key)) if becomes is None else (lambda: scene.direct.put(key, becomes))
    with pytest.raises(GuardError, match=r"key '.*/reports/read', which the block had read, has changed") as caught:
        late(scene, change, read=lambda txn: txn.get(key))
    assert type(caught.value) is GuardError
    assert scene.value("a") is None


@pytest.mark.parametrize("name", ["p/old", "p/new"])
def test_an_unfenced_write_below_a_prefix_that_was_read_refuses_the_block(scene: Scene, name: str) -> None:
    scene.direct.put(scene.key("p/old"), "was")
    with pytest.raises(GuardError, match=r"begins with '.*/p/', which the block had read, has changed"):
        late(
            scene,
            lambda: scene.direct.put(scene.key(name), "changed"),
            read=lambda txn: txn.get_prefix(scene.key("p/")),
        )
    assert scene.value("a") is None


@pytest.mark.parametrize("thin", [lambda txn, key: txn.delete(key), lambda txn, key: txn.delete_prefix(key)])
def test_what_another_block_of_the_lease_deletes_below_a_prefix_that_was_read_refuses_the_block(
    scene: Scene, thin: Callable[[Any, str], None]
) -> None:
    scene.write(lambda txn: txn.put(scene.key("all/1"), "x"))

    def delete() -> None:
        scene.write(lambda txn: thin(txn, scene.key("all/1")))

    with pytest.raises(GuardError, match=r"resource 'reports', in which another block has deleted, has changed"):
        late(scene, delete, read=lambda txn: txn.get_prefix(scene.key("all/")))
    assert scene.value("late") is None
    scene.write(lambda txn: txn.put(scene.key("count"), str(len(txn.get_prefix(scene.key("all/"))))))
    assert scene.value("count") == "0"


def test_a_write_to_what_the_block_did_not_read_refuses_nothing(scene: Scene) -> None:
    with scene.block() as txn:
        txn.get(scene.key("read"))
        txn.put(scene.key("a"), "mine")
        scene.direct.put(scene.key("b"), "unfenced")
    assert scene.value("a") == "mine"


@pytest.mark.parametrize(
    ("comparison", "holds"),
    [
        ({"value": "on"}, True),
        ({"value": b"off"}, False),
        ({"version": 1}, True),
        ({"version": 0}, False),
        ({"mod_revision": 1}, False),
        ({"create_revision": 0}, False),
    ],
)
def test_a_block_may_compare_any_key(scene: Scene, comparison: dict[str, Any], holds: bool) -> None:
    flag = f"{scene.corner.prefix}/flag"
    scene.direct.put(flag, "on")

    def act(txn: Any) -> None:
        txn.compare(flag, **comparison)
        txn.put(scene.key("a"), "x")

    with contextlib.nullcontext() if holds else pytest.raises(GuardError, match="block itself added"):
        scene.write(act)
    assert scene.value("a") == ("x" if holds else None)


@pytest.mark.parametrize("comparison", [{}, {"version": 1, "value": "x"}, {"version": 1, "mod_revision": 1}])
def test_a_comparison_is_of_one_thing(scene: Scene, comparison: dict[str, Any]) -> None:
    with scene.block() as txn, pytest.raises(ConfigError, match="one of value, version, create_revision"):
        txn.compare(scene.key("a"), **comparison)


@pytest.mark.parametrize("number", ["1", 1.5, 2**63])
def test_a_comparison_is_with_a_number_of_64_bits(scene: Scene, number: Any) -> None:
    with scene.block() as txn, pytest.raises(ConfigError, match="a version of etcd must be an int of 64 bits"):
        txn.compare(scene.key("a"), version=number)


# --- tasks ------------------------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_a_task_awaits_reads_and_not_writes(scene: Scene) -> None:
    guard = fencelock.aio.guard(scene.url, resource=RESOURCE, lock=LOCK)
    scene.direct.put(scene.key("a"), "1")
    async with guard.transaction(scene.lease) as txn:
        assert await txn.get(scene.key("a")) == b"1"
        assert await txn.get_prefix(scene.key("")) == {scene.key("a").encode(): b"1"}
        txn.put(scene.key("b"), "2")
        txn.compare(scene.key("a"), value="1")
    assert scene.value("b") == "2"
    meanwhile(lambda: fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK).seal(HandmadeLease(6)))
    with pytest.raises(StaleTokenError, match="its mark is 6"):
        await guard.transaction(scene.lease).__aenter__()


@pytest.mark.asyncio
async def test_g3_a_task_that_was_overtaken_writes_nothing(scene: Scene) -> None:
    guard = fencelock.aio.guard(scene.url, resource=RESOURCE, lock=LOCK)

    async def write() -> None:
        async with guard.transaction(scene.lease) as txn:
            txn.put(scene.key("a"), "late")
            await asyncio.to_thread(fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK).seal, HandmadeLease(6))

    with pytest.raises(StaleTokenError, match="its mark is 6"):
        await write()
    assert scene.names() == []
