"""What the DynamoDB guard survives: lost requests, frozen and killed holders, forks, operators and their commands."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fencelock.aio
from fencelock import inspect_resources
from fencelock.stores.dynamodb.guard.codec import FLOORS_PARTITION
from fencelock.stores.registry import guard_store
from fencelock_lab.servers.ministack import MinistackFleet
from tests.cli.program import program
from tests.dynamodb.fix_dynamodb import DATA, Corner, fresh_corner
from tests.dynamodb.guarded import watch, watch_async
from tests.support.guard_life import GuardLife
from tests.support.guarded_keys import Face, Loss
from tests.support.guards import LOCK, RESOURCE, Blocking, HandmadeLease, HandmadeSource

__all__ = ["program"]


class DynamoFace(Face):
    """One guarded item."""

    READ = f"txn.get({DATA!r}, {{'pk': KEY}})['v']"
    WRITE = f"txn.put({DATA!r}, {{'pk': KEY, 'v': value}})"

    def __init__(self, corner: Corner) -> None:
        self.corner = corner
        self.url = corner.url()
        self.key = corner.key("value")
        guard = fencelock.guard(self.url, resource=RESOURCE, lock=LOCK)
        guard.install()
        guard.protect()
        corner.put("value", v="initial")

    def put(self, txn: Any, value: str) -> None:
        txn.put(DATA, {"pk": self.key, "v": value})

    def read_number(self, txn: Any) -> int:
        return int(txn.get(DATA, {"pk": self.key})["v"])

    def value(self) -> str | None:
        return self.corner.value("value")

    def put_floors(self, value: bytes) -> None:
        key = {"pk": {"S": FLOORS_PARTITION}, "sk": {"S": FLOORS_PARTITION}}
        self.corner.client.put_item(TableName=self.corner.name, Item=key | {"value": {"S": value.decode()}})

    def watch(self, guard: Any, loss: Loss) -> Loss:
        return watch(guard, loss)

    def trips(self, guard: Any) -> Callable[[], int]:
        store = guard._core.store
        for table in (self.corner.name, DATA):  # It asks for each once.
            store._run(store._tables.describe(table))
        return super().trips(guard)

    def entries(self) -> list[dict[str, Any]]:
        found = [item for item in self.corner.own_items() if item["pk"]["S"].startswith("audit#")]
        entries = [json.loads(item["value"]["S"]) for item in sorted(found, key=lambda one: one["sk"]["S"])]
        assert entries[0]["action"] == "protect", "which made the mark"
        return entries[1:]


@pytest.fixture
def new_face(ministack_fleet: MinistackFleet) -> Callable[[], Face]:
    return lambda: DynamoFace(fresh_corner(ministack_fleet))


@pytest.fixture
def face(new_face: Callable[[], Face]) -> Face:
    return new_face()


class TestDynamoGuard:
    """What no other test of this store sees; all of it is a campaign's."""

    play = GuardLife.play
    test_a_seal_takes_two_trips_and_a_block_two = GuardLife.test_a_seal_takes_two_trips_and_a_block_two
    test_a_holder_killed_inside_its_block_leaves_nothing = (
        GuardLife.test_a_holder_killed_inside_its_block_leaves_nothing
    )
    test_h6_a_forked_child_writes_by_the_sequencer_and_the_parent_goes_on = (
        GuardLife.test_h6_a_forked_child_writes_by_the_sequencer_and_the_parent_goes_on
    )
    test_h6_a_block_that_a_child_has_inherited_is_written_by_its_parent_alone = (
        GuardLife.test_h6_a_block_that_a_child_has_inherited_is_written_by_its_parent_alone
    )
    test_g8_whatever_an_operator_does_to_a_mark_is_kept_with_its_reason = (
        GuardLife.test_g8_whatever_an_operator_does_to_a_mark_is_kept_with_its_reason
    )


@pytest.mark.campaign
class TestDynamoGuardLife(GuardLife):
    MISTYPED = "guard-refused: "

    def test_g6_the_store_protects_no_table_and_says_what_to_do(self, face: Face) -> None:
        with pytest.raises(fencelock.UnsupportedError, match=r"has no triggers.*--print-policy"):
            face.guard().protect("reports")
        with pytest.raises(fencelock.GuardError, match="protects no table"):
            face.guard().unprotect(reason="a test")

    def test_g9_raising_to_a_source_that_has_issued_nothing_is_kept_too(self, face: Face) -> None:
        face.guard().raise_to(HandmadeSource(0), reason="restored")
        assert [one["action"] for one in face.entries()] == ["raise-to"]
        assert [mark.token for mark in inspect_resources(face.url).marks] == [0]


class AsyncDynamoFace(DynamoFace):
    """The same through the async guard."""

    def __init__(self, corner: Corner, runner: asyncio.Runner) -> None:
        super().__init__(corner)
        self.runner = runner

    def guard(self, lock: str = LOCK) -> Any:
        return Blocking(fencelock.aio.guard(self.url, resource=RESOURCE, lock=lock), self.runner.run)

    def watch(self, guard: Any, loss: Loss) -> Loss:
        return watch_async(guard, loss)


@pytest.mark.campaign
class TestAsyncDynamoGuard:
    @pytest.fixture
    def new_face(self, ministack_fleet: MinistackFleet) -> Iterator[Callable[[], Face]]:
        with asyncio.Runner() as runner:
            yield lambda: AsyncDynamoFace(fresh_corner(ministack_fleet), runner)

    test_whatever_is_lost_what_is_told_is_true = GuardLife.test_whatever_is_lost_what_is_told_is_true


def test_floors_that_cannot_be_read_admit_nobody_to_a_new_resource(corner: Corner) -> None:
    face = DynamoFace(corner)
    face.put_floors(b"nonsense")
    new = fencelock.guard(face.url, resource="new", lock=LOCK)
    new.protect()
    with pytest.raises(fencelock.SchemaError):
        new.seal(HandmadeLease(9))
    with pytest.raises(fencelock.SchemaError):
        guard_store(face.url).connect().perform(fencelock.protocol.InspectResources(None))
