"""Guards in the same store as their lock, whose URLs say where that is: written once for etcd and ZooKeeper."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import GuardError, SchemaError, WrongLockError, inspect_resources
from fencelock.model import draw_claim, one_way
from fencelock.stores.registry import source_store
from tests.process.actors import Stage
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import wait_until


class BesideLocks:
    """A guard in the same store as its lock, whose URL says where that is. A subclass has the fixture `face`, whose
    `source_url` is the lock's.
    """

    @pytest.fixture
    def source(self, face: Any) -> Iterator[fencelock.Source]:
        source_store(face.source_url).install()
        with fencelock.connect(face.source_url) as source:
            yield source

    def test_a_holder_writes(self, face: Any, source: fencelock.Source) -> None:
        with source.lock(LOCK, ttl=face.ttl) as lease:
            face.write(lease, "mine")
            face.write(lease.sequencer, "my child's")
        assert face.value() == "my child's"

    def test_a_block_takes_a_few_trips_more(self, face: Any, source: fencelock.Source) -> None:
        with source.lock(LOCK, ttl=face.ttl) as lease:
            guard = face.guard()
            guard.seal(lease)
            trips = face.trips(guard)
            face.write(lease, "x", guard)
            assert trips() == 4  # The lock's own key was searched for.
            face.write(lease, "x", guard)
            assert trips() == 4 + 3

    @pytest.mark.parametrize("end", ["release", "break"])
    def test_g10_a_lease_that_is_over_writes_nothing_though_nobody_has_sealed_since(
        self, face: Any, source: fencelock.Source, end: str
    ) -> None:
        lease = source.lock(LOCK, ttl=face.ttl).acquire()
        face.write(lease, "mine")
        with pytest.raises(GuardError, match=r"the (key|node) by which this lease held"):
            self.write_late(face, lease.sequencer, lambda: self.end_lease(source, lease, end))
        with pytest.raises(GuardError, match=rf"the lease with token {lease.token} on lock '{LOCK}' is over"):
            face.write(lease.sequencer, "late")
        assert face.value() == "mine"
        with source.lock(LOCK, ttl=face.ttl) as following:
            face.write(following, "next")
        assert face.value() == "next"

    def write_late(self, face: Any, lease: Any, meanwhile: Callable[[], Any]) -> None:
        with face.guard().transaction(lease) as txn:
            face.put(txn, "late")
            meanwhile()

    def end_lease(self, source: fencelock.Source, lease: Any, end: str) -> None:
        if end == "release":
            lease.release()
        else:
            source.break_lock(LOCK, reason="a test")

    def test_t7_a_raised_epoch_ends_a_block(self, face: Any, source: fencelock.Source) -> None:
        lease = source.lock(LOCK, ttl=face.ttl).acquire()
        with pytest.raises(GuardError, match="the record of the source"):
            self.write_late(face, lease, lambda: source.raise_epoch(reason="a test"))
        with pytest.raises(GuardError, match="is over"):
            face.write(lease.sequencer, "late")
        assert face.value() == "initial"
        with source.lock(LOCK, ttl=face.ttl) as following:
            face.write(following, "next")

    def test_a_waiter_is_no_holder(self, face: Any, source: fencelock.Source) -> None:
        """Its token was minted when it queued up; nobody shows it before the lock is its own."""
        with source.lock(LOCK, ttl=face.ttl) as lease:
            face.write(lease, "mine")
            wrong = dataclasses.replace(lease.sequencer, token=lease.token + 1)
            with pytest.raises(GuardError, match="is over"):
                face.write(wrong, "late")
            wrong = dataclasses.replace(lease.sequencer, token=lease.token + 2, proof=one_way(draw_claim()))
            with pytest.raises(GuardError, match="is over"):
                face.write(wrong, "late")

    def test_g5_a_lock_of_another_source_is_refused(self, face: Any, source: fencelock.Source, tmp_path: Path) -> None:
        elsewhere = f"sqlite:///{tmp_path}/locks.db"
        with (
            fencelock.connect(elsewhere) as other,
            other.lock(LOCK) as lease,
            pytest.raises(WrongLockError, match="this guard's URL says that its locks are at"),
        ):
            face.write(lease, "strange")
        assert face.value() == "initial"

    def test_data_are_not_guarded_where_the_locks_are(self, face: Any, source: fencelock.Source) -> None:
        guard = fencelock.guard(face.source_url, resource=RESOURCE, lock=LOCK)
        with source.lock(LOCK, ttl=face.ttl) as lease, pytest.raises(GuardError, match="place of a source of locks"):
            guard.seal(lease)
        assert inspect_resources(face.source_url).marks == ()

    def test_without_a_source_there_nobody_writes(self, face: Any) -> None:
        with pytest.raises(SchemaError):
            face.write(HandmadeLease(5), "late")
        assert face.value() == "initial"

    @pytest.mark.process
    def test_h3_a_holder_frozen_past_its_ttl_writes_nothing_though_nobody_has_sealed_since(
        self, face: Any, source: fencelock.Source, stage: Stage
    ) -> None:
        old = stage.actor(
            face.script(f"""
locks = fencelock.connect({face.source_url!r})
lease = locks.lock({LOCK!r}, ttl={face.shortest_ttl}).acquire()
try:
    with guard.transaction(lease) as txn:
        say(read(txn))
        hear()
        write(txn, "stale")
    say("written")
except fencelock.FencelockError as error:
    say(str(error))
os._exit(0)
""")
        )
        assert old.hear() == "initial"
        old.freeze()
        wait_until(lambda: not source.lock(LOCK).locked())
        old.thaw()
        old.say()
        assert "by which this lease held" in old.hear()
        assert face.value() == "initial"

    @pytest.mark.asyncio
    async def test_tasks_too(self, face: Any, source: fencelock.Source) -> None:
        guard = fencelock.aio.guard(face.url, resource=RESOURCE, lock=LOCK)
        lease = await asyncio.to_thread(source.lock(LOCK, ttl=face.ttl).acquire)
        assert lease is not None

        async def write() -> None:
            async with guard.transaction(lease.sequencer) as txn:
                face.put(txn, "mine")

        await write()
        assert face.value() == "mine"
        await asyncio.to_thread(lease.release)
        with pytest.raises(GuardError, match="is over"):
            await write()
