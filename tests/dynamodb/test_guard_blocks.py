"""What a guarded block can do at DynamoDB: reads at once, one transaction at its end."""

import asyncio
import contextlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

import fencelock
from fencelock import ConfigError, GuardError, Hooks, SealLostError, StaleTokenError
from fencelock.stores.dynamodb.guard.codec import partition_of
from fencelock.stores.dynamodb.guard.items import ItemAction, encode_attributes, merged
from fencelock.stores.dynamodb.guard.transaction import MAX_ITEMS
from fencelock.stores.registry import guard_store
from tests.dynamodb.fix_dynamodb import DATA, SORTED, Corner
from tests.dynamodb.guarded import Scene
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import meanwhile

PLACES = MAX_ITEMS - 1
"""Items that a block may write: one more is the mark."""


@pytest.fixture
def scene(corner: Corner) -> Scene:
    return Scene(corner)


# --- reads and writes -------------------------------------------------------------------------------------------------
def test_a_block_reads_at_once_and_writes_at_its_end(scene: Scene) -> None:
    scene.corner.put_wire("a", {"n": {"N": "100"}})
    scene.corner.put("b", v="old")
    with scene.block() as txn:
        assert txn.get(DATA, scene.key("a")) == scene.key("a") | {"n": Decimal(100)}
        assert txn.get(DATA, scene.key("c")) is None
        names = ("b", "none", "a", "b")
        found = txn.get_many(DATA, [scene.key(name) for name in names])
        assert [one and one.get("v") for one in found] == ["old", None, None, "old"]
        scene.put(txn, "c", "3")
        scene.put(txn, "c", "4")
        txn.update(DATA, scene.key("a"), "SET n = n - :n", {":n": 10})
        txn.delete(DATA, scene.key("b"))
        txn.delete(DATA, scene.key("never-was"))
        assert scene.value("c") is None
    assert (scene.value("a", "n"), scene.value("b"), scene.value("c")) == ("90", None, "4")


def test_a_query_reads_one_partition_in_its_order(scene: Scene) -> None:
    key = scene.key("month")
    with scene.block() as txn:
        for day in ("02", "01", "11", "12"):
            txn.put(SORTED, key | {"sk": day, "amount": int(day)})
    values = {":pk": key["pk"], ":begin": "1"}

    def days(txn: Any, **options: Any) -> list[str]:
        return [item["sk"] for item in txn.query(SORTED, "#pk = :pk", {":pk": key["pk"]}, {"#pk": "pk"}, **options)]

    with scene.block() as txn:
        assert days(txn) == ["01", "02", "11", "12"]
        assert days(txn, is_descending=True, limit=3) == ["12", "11", "02"]
        assert [one["sk"] for one in txn.query(SORTED, "pk = :pk AND begins_with(sk, :begin)", values)] == ["11", "12"]
        found = txn.query(SORTED, "pk = :pk", {":pk": key["pk"], ":n": 3}, filter="amount > :n")
        assert [one["amount"] for one in found] == [11, 12]


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [(10**37 + 1, 10**37 + 2, 2), (7, Decimal("7.00"), 1), (b"a", b"b", 2), (b"a", bytearray(b"a"), 1)],
)
def test_each_item_of_a_block_is_written_for_itself(one: Any, other: Any, count: int) -> None:
    """A key has up to 38 digits, and the last of them tell two items apart."""
    puts = [encode_attributes({"pk": key, "v": n}, "an item") for n, key in enumerate((one, other))]
    actions = merged([ItemAction("data", put, write="Put", item=put) for put in puts], {"data": ("pk",)})
    assert [action.item for action in actions] == puts[-count:]


def test_an_exception_leaves_nothing(scene: Scene) -> None:
    with contextlib.suppress(ZeroDivisionError), scene.block() as txn:
        scene.put(txn, "a", "1")
        raise ZeroDivisionError
    assert scene.names("a") == []
    assert scene.guard.mark().token == 5


def test_several_resources_are_written_in_one_block(scene: Scene) -> None:
    scene.opened(resource="s/t").protect()
    guard = fencelock.guard(scene.url, resources=[RESOURCE, "s/t"], lock=LOCK)
    with guard.transaction(HandmadeLease(5)) as txn:
        scene.put(txn, "a", "1")
    assert {name: mark.token for name, mark in guard.marks().items()} == {RESOURCE: 5, "s/t": 5}
    assert scene.value("a") == "1"


# --- what is refused at once ------------------------------------------------------------------------------------------
def test_a_block_reads_first_and_then_writes(scene: Scene) -> None:
    with scene.block() as txn:
        scene.put(txn, "a", "1")
        txn.delete(SORTED, scene.key("b") | {"sk": "1"})
        for table, key in ((DATA, scene.key("a")), (SORTED, scene.key("b") | {"sk": "1"})):
            with pytest.raises(GuardError, match="read first, then write"):
                txn.get(table, key)
            with pytest.raises(GuardError, match="read first, then write"):
                txn.get_many(table, [key])
        with pytest.raises(GuardError, match="read first, then write"):
            txn.query(SORTED, "pk = :pk", {":pk": "any"})
        assert txn.get(DATA, scene.key("b")) is None


def test_the_table_of_the_marks_has_nothing_else(scene: Scene) -> None:
    table = scene.corner.name
    with scene.block() as txn:
        key = {"pk": "guard#other", "sk": "mark"}
        for use in (
            lambda: txn.put(table, key),
            lambda: txn.update(table, key, "SET v = :v", {":v": 1}),
            lambda: txn.delete(table, key),
            lambda: txn.check(table, key, "attribute_exists(pk)"),
            lambda: txn.get(table, key),
            lambda: txn.get_many(table, [key]),
            lambda: txn.query(table, "pk = :pk", {":pk": "any"}),
        ):
            with pytest.raises(GuardError, match="has the guard's marks, and nothing else"):
                use()


def test_an_index_is_refused_with_what_to_do_instead(scene: Scene) -> None:
    with scene.block() as txn, pytest.raises(GuardError, match=r"index 'by-name'.*before the seal: query the table"):
        txn.query(DATA, "n = :n", {":n": 1}, index="by-name")


def test_a_transaction_is_over_with_its_block(scene: Scene) -> None:
    with scene.block() as txn:
        pass
    for use in (txn.get, txn.put, txn.delete):
        with pytest.raises(GuardError, match="the guarded block is over"):
            use(DATA, scene.key("a"))
    with pytest.raises(GuardError, match="the guarded block is over"):
        txn.get_many(DATA, [scene.key("a")])


@pytest.mark.parametrize("wrong", [None, {}, {"pk": 1.5}, {"pk": object()}])
def test_what_dynamodb_cannot_keep_is_refused_at_once(scene: Scene, wrong: Any) -> None:
    with scene.block() as txn:
        for use in (txn.get, txn.put, txn.delete):
            with pytest.raises(ConfigError, match="of DynamoDB"):
                use(DATA, wrong)
        with pytest.raises(ConfigError, match="give the condition too"):
            txn.delete(DATA, scene.key("a"), values={":v": 1})


def test_a_table_that_is_missing_or_has_another_key_is_named(scene: Scene) -> None:
    with pytest.raises(GuardError, match="there is no table 'no-such-table' in the region"):
        scene.write(lambda txn: txn.put("no-such-table", {"pk": "a"}))
    with scene.block() as txn, pytest.raises(ConfigError, match="the key of table 'test-sorted' is 'pk' and 'sk'"):
        txn.get(SORTED, scene.key("a"))
    with pytest.raises(ConfigError, match="the key of table 'test-sorted' is 'pk' and 'sk'"):
        scene.write(lambda txn: txn.put(SORTED, scene.key("a")))


def test_an_expression_that_dynamodb_does_not_understand_writes_nothing(scene: Scene) -> None:
    def act(txn: Any) -> None:
        scene.put(txn, "a", "1")
        txn.update(DATA, scene.key("b"), "no such words")

    with pytest.raises(fencelock.FencelockError) as caught:
        scene.write(act)
    assert caught.value.definite
    assert scene.names("a", "b") == []


def test_no_transaction_of_the_callers_own_can_be_checked(scene: Scene) -> None:
    for use in (scene.guard.seal, scene.guard.check):
        with pytest.raises(GuardError, match="has no transaction that stays open"):
            use(scene.lease, connection=object())


# --- limits -----------------------------------------------------------------------------------------------------------
def test_as_much_as_dynamodb_takes_is_written(scene: Scene) -> None:
    assert guard_store(scene.url).capabilities.max_writes == PLACES
    with scene.block() as txn:
        for number in range(PLACES):
            scene.put(txn, str(number), "x")
    assert scene.value(str(PLACES - 1)) == "x"


def test_more_than_dynamodb_takes_is_refused_before_it_is_sent(scene: Scene) -> None:
    def write_many(txn: Any) -> None:
        for number in range(MAX_ITEMS):
            scene.put(txn, f"{number}", "x")

    def check_many(txn: Any) -> None:
        for number in range(PLACES):
            txn.check(DATA, scene.key(str(number)), "attribute_not_exists(pk)")
        scene.put(txn, "one more", "x")

    for many in (write_many, check_many):
        with pytest.raises(GuardError, match=r"writes and checks 101 items, its marks included, and DynamoDB takes"):
            scene.write(many)
    with pytest.raises(GuardError, match=r"bytes into one item, and DynamoDB keeps 409600"):
        scene.write(lambda txn: scene.put(txn, "large", "x" * 409_600))
    with pytest.raises(GuardError, match=r"writes \d+ bytes, and DynamoDB takes 4194304"):
        scene.write(lambda txn: [scene.put(txn, f"{number}", "x" * 400_000) for number in range(11)])
    assert scene.names("0", "one more", "large") == []


# --- what is found at the end -----------------------------------------------------------------------------------------
def late(scene: Scene, meantime: Callable[[], Any], act: Callable[[Any], Any] = lambda _: None) -> None:
    """Write in a block, while something else happens before its end."""

    def work(txn: Any) -> None:
        act(txn)
        scene.put(txn, "a", "late")
        meanwhile(meantime)

    scene.write(work)


def test_g3_a_block_that_was_overtaken_writes_nothing_and_says_by_whom(scene: Scene) -> None:
    told: list[Any] = []
    hooks = Hooks(on_refused=told.append, on_sealed=told.append)
    scene.guard = fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK, hooks=hooks)
    with pytest.raises(StaleTokenError) as caught:
        late(scene, lambda: scene.opened().seal(HandmadeLease(6)))
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (5, 6, RESOURCE)
    assert scene.names("a") == []
    assert [(event.name, event.reason) for event in told] == [("sealed", None), ("refused", "stale")]


def test_a_block_that_only_reads_is_refused_when_it_was_overtaken(scene: Scene) -> None:
    """What it has read is void, and may be half of the next holder's."""

    def read(txn: Any) -> None:
        txn.get(DATA, scene.key("a"))
        meanwhile(lambda: scene.opened().seal(HandmadeLease(6)))

    with pytest.raises(StaleTokenError):
        scene.write(read)


def test_g10_a_block_whose_own_holder_closes_writes_nothing(scene: Scene) -> None:
    with pytest.raises(StaleTokenError, match="its own holder closed it"):
        late(scene, lambda: scene.guard.close(scene.lease))
    assert scene.names("a") == []


def test_g9_a_missing_mark_is_reported_at_the_end_and_admits_nobody(scene: Scene) -> None:
    key = {"pk": {"S": partition_of(RESOURCE)}, "sk": {"S": "mark"}}
    with pytest.raises(SealLostError, match="now it has no mark"):
        late(scene, lambda: scene.corner.client.delete_item(TableName=scene.corner.name, Key=key))
    assert scene.names("a") == []
    with pytest.raises(GuardError, match="has no mark, so it refuses every token"):
        scene.opened().seal(HandmadeLease(9))
    with pytest.raises(GuardError, match="was protected before, and its mark is gone"):
        scene.opened().protect()


@pytest.mark.parametrize("becomes", [{"n": {"N": "6"}}, {"more": {"S": "x"}}, None])
def test_what_a_block_compares_refuses_it_when_it_has_changed(scene: Scene, becomes: dict[str, Any] | None) -> None:
    scene.corner.put_wire("read", {"n": {"N": "5"}})

    def change() -> None:
        if becomes is None:
            scene.corner.client.delete_item(TableName=DATA, Key={"pk": {"S": scene.corner.key("read")}})
        else:
            scene.corner.put_wire("read", becomes)

    with pytest.raises(GuardError, match=r"what the block compares of item .*read.* has changed") as caught:
        late(scene, change, lambda txn: txn.get(DATA, scene.key("read"), compare=("n",)))
    assert type(caught.value) is GuardError
    assert scene.value("a") is None


def test_a_comparison_is_of_what_is_named_and_of_an_item_that_is_not_there(scene: Scene) -> None:
    scene.corner.put_wire("read", {"n": {"N": "5"}})
    with scene.block() as txn:
        txn.get(DATA, scene.key("read"), compare=("n", "none"))
        txn.get(DATA, scene.key("no"), compare=("n",))
        txn.update(DATA, scene.key("read"), "SET n = n + :n", {":n": 1}, condition="n > :n")
        scene.corner.put_wire("read", {"n": {"N": "5"}, "other": {"S": "changed"}})
    assert scene.value("read", "n") == "6"
    with pytest.raises(GuardError, match=r"what the block compares of item .*no.* has changed"):
        late(scene, lambda: scene.corner.put("no", v="x"), lambda txn: txn.get(DATA, scene.key("no"), compare=("n",)))


def test_a_name_in_the_place_of_names_is_no_comparison(scene: Scene) -> None:
    """Its letters are no attributes of an item, so it would compare nothing."""
    with scene.block() as txn, pytest.raises(ConfigError, match=r"write compare=\('balance',\)"):
        txn.get(DATA, scene.key("a"), compare="balance")


@pytest.mark.parametrize(
    "act",
    [
        lambda txn, key: txn.check(DATA, key, "v = :v", {":v": "off"}),
        lambda txn, key: txn.put(
            DATA, key | {"v": "new"}, condition="#v = :v", values={":v": "off"}, names={"#v": "v"}
        ),
        lambda txn, key: txn.update(DATA, key, "SET v = :new", {":new": "x", ":v": "off"}, condition="v = :v"),
        lambda txn, key: txn.delete(DATA, key, condition="attribute_not_exists(pk)"),
    ],
)
def test_a_block_may_set_conditions_of_its_own(scene: Scene, act: Callable[[Any, Any], Any]) -> None:
    scene.corner.put("flag", v="on")
    with pytest.raises(GuardError, match=r"the block's own condition on item .*flag.* does not hold"):
        late(scene, lambda: None, lambda txn: act(txn, scene.key("flag")))
    assert (scene.value("flag"), scene.value("a")) == ("on", None)


# --- tasks ------------------------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_a_task_awaits_reads_and_not_writes(scene: Scene) -> None:
    guard = scene.opened_async()
    scene.corner.put("a", v="1")
    async with guard.transaction(scene.lease) as txn:
        assert (await txn.get(DATA, scene.key("a")))["v"] == "1"
        assert await txn.get_many(DATA, [scene.key("b")]) == [None]
        assert await txn.query(SORTED, "pk = :pk", {":pk": "none"}) == []
        scene.put(txn, "b", "2")
        txn.check(DATA, scene.key("a"), "v = :v", {":v": "1"})
    assert scene.value("b") == "2"
    meanwhile(lambda: scene.opened().seal(HandmadeLease(6)))
    with pytest.raises(StaleTokenError, match="its mark is 6"):
        await guard.transaction(scene.lease).__aenter__()


@pytest.mark.asyncio
async def test_g3_a_task_that_was_overtaken_writes_nothing(scene: Scene) -> None:
    guard = scene.opened_async()

    async def write() -> None:
        async with guard.transaction(scene.lease) as txn:
            scene.put(txn, "a", "late")
            await asyncio.to_thread(scene.opened().seal, HandmadeLease(6))

    with pytest.raises(StaleTokenError, match="its mark is 6"):
        await write()
    assert scene.names("a") == []
