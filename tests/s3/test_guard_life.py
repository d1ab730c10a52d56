"""What the S3 guard survives: lost requests, frozen and killed holders, forks, operators and their commands."""

import asyncio
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import UnsupportedError
from fencelock.errors import OutcomeUnknownError
from fencelock_lab.servers.seaweedfs import SeaweedFleet
from tests.cli.program import program
from tests.s3.fake_bucket import LOST
from tests.s3.fix_s3 import Corner, new_corner
from tests.s3.scene import Scene
from tests.support.guard_life import GuardLife
from tests.support.guarded_keys import Face, Loss
from tests.support.guards import LOCK, RESOURCE, Blocking, HandmadeLease, HandmadeSource

__all__ = ["program"]


class S3Face(Face):
    """One guarded key."""

    READ = "txn.get(KEY).decode()"
    WRITE = "txn.put(KEY, value)"
    key = "value"

    def __init__(self, corner: Corner) -> None:
        self.corner = corner
        self.url = corner.url
        fencelock.guard(self.url, resource=RESOURCE, lock=LOCK).protect(source=HandmadeSource(0).info)
        corner.put_alone(RESOURCE, self.key, "initial")

    def put(self, txn: Any, value: str) -> None:
        txn.put(self.key, value)

    def read_number(self, txn: Any) -> int:
        return int(txn.get(self.key))

    def value(self) -> str | None:
        return self.corner.value(RESOURCE, self.key)

    def put_floors(self, value: bytes) -> None:
        raise NotImplementedError("no floors are kept at S3")

    def watch(self, guard: Any, loss: Loss) -> Loss:
        self.lose(guard._core.store.client, loss)
        return loss

    def lose(self, client: Any, loss: Loss) -> None:
        make_client = client.make_client

        class Client:
            def __init__(self, timeout_s: float) -> None:
                self.client = make_client(timeout_s)

            def call(self, call: Any) -> Any:
                return loss(lambda: self.client.call(call), OutcomeUnknownError("lost on purpose"))

        client.make_client = Client

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries after the one of `protect`."""
        return self.corner.entries(RESOURCE)[1:]


class AtSeaweed:
    @pytest.fixture
    def new_face(self, seaweed_fleet: SeaweedFleet) -> Callable[[], Face]:
        return lambda: S3Face(new_corner(seaweed_fleet.shared().url))

    @pytest.fixture
    def face(self, new_face: Callable[[], Face]) -> Face:
        return new_face()


class TestProcesses(AtSeaweed):
    """What real processes meet at a real server; the rest of it is in the campaigns, and in memory below."""

    play = GuardLife.play
    test_g3_a_holder_frozen_inside_its_block_writes_nothing = (
        GuardLife.test_g3_a_holder_frozen_inside_its_block_writes_nothing
    )
    test_h6_a_forked_child_writes_by_the_sequencer_and_the_parent_goes_on = (
        GuardLife.test_h6_a_forked_child_writes_by_the_sequencer_and_the_parent_goes_on
    )
    test_h6_a_block_that_a_child_has_inherited_is_written_by_its_parent_alone = (
        GuardLife.test_h6_a_block_that_a_child_has_inherited_is_written_by_its_parent_alone
    )
    test_commands_show_and_move_marks = GuardLife.test_commands_show_and_move_marks


class OneUploadMore(GuardLife):
    """Where a store without floors, whose blocks upload, differs."""

    def test_a_seal_takes_two_trips_and_a_block_two(self, face: Face) -> None:
        """And a block one more for each value that it uploads."""
        guard, lease = face.guard(), HandmadeLease(5)
        trips = face.trips(guard)
        guard.seal(lease)
        assert trips() == 2
        for number in (1, 2):
            face.write(lease, "x", guard)
            assert trips() == 2 + 3 * number

    def test_g9_raising_to_a_source_that_has_issued_nothing_is_kept_too(self, face: Face) -> None:
        face.guard().raise_to(HandmadeSource(0), reason="restored")
        assert [one["action"] for one in face.entries()] == ["raise-to"]

    def test_g6_the_store_protects_no_table_and_says_what_to_do(self, face: Face) -> None:
        with pytest.raises(UnsupportedError, match=r"has no triggers.*the store's own access control"):
            face.guard().protect("reports")


@pytest.mark.campaign
class TestS3Guard(AtSeaweed, OneUploadMore):
    pass


class MemoryFace(S3Face):
    """The same at a bucket in memory."""

    def __init__(self) -> None:
        self.scene = Scene(is_sealed=False)
        self.url = self.scene.store.url
        self.scene.put_alone(self.key, "initial")

    def guard(self, lock: str = LOCK) -> Any:
        return self.scene.guard(self.scene.bucket.guard_store())

    def value(self) -> str | None:
        return self.scene.value(self.key)

    def watch(self, guard: Any, loss: Loss) -> Loss:
        client = guard._core.store.client = copy.copy(self.scene.bucket)
        client.on_call = lambda _, answer: loss(answer, LOST)
        return loss

    def entries(self) -> list[dict[str, Any]]:
        return self.scene.entries()[1:]


class TestInMemory:
    """What needs no process of its own."""

    @pytest.fixture
    def new_face(self) -> Callable[[], Face]:
        return MemoryFace

    @pytest.fixture
    def face(self) -> Face:
        return MemoryFace()

    test_whatever_is_lost_what_is_told_is_true = GuardLife.test_whatever_is_lost_what_is_told_is_true
    test_g3_no_update_is_lost_among_holders_that_race = GuardLife.test_g3_no_update_is_lost_among_holders_that_race
    test_a_seal_takes_two_trips_and_a_block_two = OneUploadMore.test_a_seal_takes_two_trips_and_a_block_two
    test_g6_the_store_protects_no_table_and_says_what_to_do = (
        OneUploadMore.test_g6_the_store_protects_no_table_and_says_what_to_do
    )
    test_g9_raising_to_a_source_that_has_issued_nothing_is_kept_too = (
        OneUploadMore.test_g9_raising_to_a_source_that_has_issued_nothing_is_kept_too
    )


class AsyncS3Face(S3Face):
    """The same through the async guard."""

    def __init__(self, corner: Corner, runner: asyncio.Runner) -> None:
        super().__init__(corner)
        self.runner = runner

    def guard(self, lock: str = LOCK) -> Any:
        return Blocking(fencelock.aio.guard(self.url, resource=RESOURCE, lock=lock), self.runner.run)

    def lose(self, client: Any, loss: Loss) -> None:
        make_client = client.make_async_client

        class Client:
            def __init__(self, timeout_s: float) -> None:
                self.client = make_client(timeout_s)

            async def call(self, call: Any) -> Any:
                """Lose a request before it is sent, or its reply when it has come."""
                error = OutcomeUnknownError("lost on purpose")
                if not loss.is_done:
                    loss(lambda: None, error)
                    return await self.client.call(call)
                answer = await self.client.call(call)
                return loss(lambda: answer, error)

        client.make_async_client = Client


@pytest.mark.campaign
class TestAsyncS3Guard:
    @pytest.fixture
    def new_face(self, seaweed_fleet: SeaweedFleet) -> Iterator[Callable[[], Face]]:
        with asyncio.Runner() as runner:
            yield lambda: AsyncS3Face(new_corner(seaweed_fleet.shared().url), runner)

    test_whatever_is_lost_what_is_told_is_true = GuardLife.test_whatever_is_lost_what_is_told_is_true
