"""What a guard has to live through at a store of keys, written once for etcd and ZooKeeper: see `GuardLife`.

Real processes that are frozen and killed, requests and replies that are lost, operators and their commands, and locks
that are elsewhere.
"""

import asyncio
import dataclasses
import itertools
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fenceline
import fenceline.aio
from fenceline import (
    FencelineError,
    GuardError,
    OutcomeUnknownError,
    SchemaError,
    SourceUnavailableError,
    StaleTokenError,
    UnsupportedError,
    WrongLockError,
)
from fenceline._api.guard import look_at
from fenceline.model import draw_claim
from fenceline.stores.registry import source_store
from tests.cli.program import Program
from tests.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource
from tests.helpers import wait_until
from tests.process.actors import Actor, Stage

MAX_LOST = 30
"""More requests than any flow has."""
RACERS, TURNS = 4, 25
NEXT = 9
"""The token of whoever comes after."""


class Face(ABC):
    """One guarded resource with one value, and how it is spoken to."""

    url: str
    READ: str
    """An expression that reads the value in an actor's block: `txn` and `KEY` are there."""
    WRITE: str
    """One that writes `value`."""
    key: str

    @abstractmethod
    def put(self, txn: Any, value: str) -> None:
        """Write the value in a block."""

    @abstractmethod
    def read_number(self, txn: Any) -> int:
        """Return the value, which is a number, as a block reads it."""

    @abstractmethod
    def value(self) -> str | None:
        """Return the value, as somebody who knows no guard."""

    @abstractmethod
    def watch(self, guard: Any, loss: "Loss") -> "Loss":
        """Have the guard's requests pass through the loss, and return it."""

    def trips(self, guard: Any) -> Callable[[], int]:
        """Return what tells how many trips a guard has made since now."""
        return self.watch(guard, Loss(-1, is_done=True)).count

    @abstractmethod
    def entries(self) -> list[dict[str, Any]]:
        """Return the audit entries, oldest first."""

    def guard(self, lock: str = LOCK) -> Any:
        return fenceline.guard(self.url, resource=RESOURCE, lock=lock)

    def write(self, lease: Any, value: str, guard: Any = None) -> None:
        with (guard or self.guard()).transaction(lease) as txn:
            self.put(txn, value)

    def script(self, body: str) -> str:
        """Return an actor's script, whose functions `read` and `write` take the block's transaction."""
        return f"""
KEY = {self.key!r}
guard = fenceline.guard({self.url!r}, resource={RESOURCE!r}, lock={LOCK!r})

def read(txn):
    return {self.READ}

def write(txn, value):
    {self.WRITE}

{body}
"""


class Loss:
    """Loses one of the requests that pass through a call, the `number`-th from 0, or its reply if it `is_done`."""

    def __init__(self, number: int, *, is_done: bool) -> None:
        self.number = number
        self.is_done = is_done
        self.seen = 0

    def __call__(self, call: Callable[[], Any], error: Exception) -> Any:
        """Make the call; if its turn has come raise the error, and perhaps do not make it."""
        self.seen += 1
        if self.seen - 1 != self.number:
            return call()
        if self.is_done:
            call()
        raise error

    def has_happened(self) -> bool:
        return self.seen > self.number

    def count(self) -> int:
        return self.seen


# --- what may be cut off ----------------------------------------------------------------------------------------------
def seal(face: Face, guard: Any) -> Iterator[bool]:
    yield False
    guard.seal(HandmadeLease(5))
    yield face.guard().mark().token == 5


def seal_over_an_older_one(face: Face, guard: Any) -> Iterator[bool]:
    face.guard().seal(HandmadeLease(3))
    yield from seal(face, guard)


def first_block(face: Face, guard: Any) -> Iterator[bool]:
    yield False
    face.write(HandmadeLease(5), "done", guard)
    yield face.value() == "done"


def later_block(face: Face, guard: Any) -> Iterator[bool]:
    lease = HandmadeLease(5)
    face.write(lease, "before")
    yield False
    face.write(lease, "done", guard)
    yield face.value() == "done"


def close(face: Face, guard: Any) -> Iterator[bool]:
    lease = HandmadeLease(5)
    face.guard().seal(lease)
    yield False
    guard.close(lease)
    yield face.guard().mark().is_closed


def lower(face: Face, guard: Any) -> Iterator[bool]:
    face.guard().seal(HandmadeLease(5))
    yield True
    guard.lower(2, reason="a test")
    yield face.guard().mark().token == 2


def raise_to(face: Face, guard: Any) -> Iterator[bool]:
    face.guard().seal(HandmadeLease(3))
    yield True
    guard.raise_to(HandmadeSource(5), reason="a test")
    yield face.guard().mark().token == 5


def outrank(face: Face, guard: Any) -> Iterator[bool]:
    face.guard().seal(HandmadeLease(3))
    yield True
    guard.outrank(HandmadeLease(5), reason="a test")
    yield face.guard().mark().token == 5


FLOWS = (seal, seal_over_an_older_one, first_block, later_block, close, lower, raise_to, outrank)
"""Each prepares, yields whether a lost reply may leave its outcome unknown, acts, and yields whether it was done."""
MAY_BE_UNKNOWN = {first_block, later_block}
"""A seal looks again; only the user's own work may be unknown, and what an operator asked for."""


class GuardLife:
    """The tests. A subclass has the fixture `face`."""

    # --- lost ---
    @pytest.mark.parametrize("is_done", [True, False], ids=["reply", "request"])
    @pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.__name__)
    def test_whatever_is_lost_what_is_told_is_true(
        self, new_face: Callable[[], Face], flow: Any, is_done: bool
    ) -> None:
        for number in range(MAX_LOST):
            face = new_face()
            guard = face.guard()
            steps = flow(face, guard)
            may_be_unknown = next(steps) or flow in MAY_BE_UNKNOWN
            loss = face.watch(guard, Loss(number, is_done=is_done))
            error: FencelineError | None = None
            try:
                was_done = next(steps)
            except FencelineError as caught:
                error, was_done = caught, None
            if not loss.has_happened():
                assert error is None
                assert was_done, "nothing was lost, and all of it was done"
                assert number > 0
                return
            if error is None:
                assert was_done, f"request {number}: what is told as done was done"
            elif error.definite:
                assert isinstance(error, SourceUnavailableError)
                assert face.value() != "done"
            else:
                assert isinstance(error, OutcomeUnknownError)
                assert may_be_unknown, f"request {number}: the flow finds out by itself"
            face.write(HandmadeLease(NEXT), "next")
            assert face.value() == "next"
        raise AssertionError("the flow has no end")

    def test_a_seal_takes_two_trips_and_a_block_two(self, face: Face) -> None:
        """Of which the first is one more when a mark is made: somebody has to look whether there are locks."""
        face.guard().seal(HandmadeLease(3))
        guard, lease = face.guard(), HandmadeLease(5)
        trips = face.trips(guard)
        guard.seal(lease)
        assert trips() == 2
        for number in (1, 2):
            face.write(lease, "x", guard)
            assert trips() == 2 + 2 * number

    def test_g3_no_update_is_lost_among_holders_that_race(self, new_face: Callable[[], Face]) -> None:
        """Each turn takes a higher token, reads a number and writes the next; whoever is overtaken wrote nothing."""
        face = new_face()
        face.write(HandmadeLease(1), "0")
        tokens = itertools.count(2)
        written: list[int] = []

        def race() -> None:
            guard = face.guard()
            for _ in range(TURNS):
                try:
                    with guard.transaction(HandmadeLease(next(tokens))) as txn:
                        number = face.read_number(txn)
                        face.put(txn, str(number + 1))
                    written.append(number + 1)
                except StaleTokenError:
                    pass

        threads = [threading.Thread(target=race, daemon=True) for _ in range(RACERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert sorted(written) == list(range(1, len(written) + 1))
        assert face.value() == str(len(written))
        assert len(written) > 1

    # --- processes ---
    @pytest.mark.process
    def test_g3_a_holder_frozen_inside_its_block_writes_nothing(self, face: Face, stage: Stage) -> None:
        """Its lock is in a file; nobody waits for it, and what it computed is never written."""
        old = self.play(
            stage,
            face,
            """
lease = source.lock("nightly-report", ttl=1.0).acquire()
try:
    with guard.transaction(lease) as txn:
        value = read(txn)
        say(value)
        hear()
        write(txn, "stale")
    say("written")
except fenceline.FencelineError as error:
    say(type(error).__name__)
""",
        )
        assert old.hear() == "initial"
        old.freeze()
        with fenceline.connect(stage.url) as source, source.lock(LOCK, timeout=20) as lease:
            face.write(lease, "new")
            old.thaw()
            old.say()
            assert old.hear() == "StaleTokenError"
            assert face.value() == "new"
            face.write(lease, "newer")
        assert face.value() == "newer"

    @pytest.mark.process
    def test_g2_a_holder_frozen_before_its_block_is_refused_by_its_sequencer_too(
        self, face: Face, stage: Stage
    ) -> None:
        old = self.play(
            stage,
            face,
            """
lease = source.lock("nightly-report", ttl=1.0).acquire()
with guard.transaction(lease) as txn:
    value = read(txn)
say(value)
hear()
for proof in (lease.sequencer, lease):
    try:
        with guard.transaction(proof) as txn:
            write(txn, "stale")
        say("written")
    except fenceline.FencelineError as error:
        say(type(error).__name__)
""",
        )
        assert old.hear() == "initial"
        old.freeze()
        with fenceline.connect(stage.url) as source, source.lock(LOCK, timeout=20) as lease:
            face.write(lease, "new")
            old.thaw()
            old.say()
            assert old.hear() == "StaleTokenError"
            assert old.hear() in ("LeaseExpiredError", "LeaseLostError")
        assert face.value() == "new"

    @pytest.mark.process
    def test_a_holder_killed_inside_its_block_leaves_nothing(self, face: Face, stage: Stage) -> None:
        old = self.play(
            stage,
            face,
            """
lease = source.lock("nightly-report", ttl=1.0).acquire()
with guard.transaction(lease) as txn:
    write(txn, "stale")
    say()
    hear()
""",
        )
        old.hear()
        old.kill()
        with fenceline.connect(stage.url) as source, source.lock(LOCK, timeout=20) as lease:
            assert face.value() == "initial"
            face.write(lease, "new")
        assert face.value() == "new"

    @pytest.mark.process
    def test_h6_a_forked_child_writes_by_the_sequencer_and_the_parent_goes_on(self, face: Face, stage: Stage) -> None:
        both = self.play(
            stage,
            face,
            """
lease = source.lock("nightly-report", ttl=20.0).acquire()
with guard.transaction(lease) as txn:
    write(txn, "parent")
child = os.fork()
if child == 0:
    with guard.transaction(lease.sequencer) as txn:
        write(txn, read(txn) + " child")
    os._exit(0)
_, status = os.waitpid(child, 0)
with guard.transaction(lease) as txn:
    value = read(txn)
    write(txn, value + " parent")
say([status, value])
""",
        )
        assert both.hear() == [0, "parent child"]
        assert both.wait() == 0
        assert both.errors == ""
        assert face.value() == "parent child parent"

    @pytest.mark.process
    def test_h6_a_block_that_a_child_has_inherited_is_written_by_its_parent_alone(
        self, face: Face, stage: Stage
    ) -> None:
        both = self.play(
            stage,
            face,
            """
lease = source.lock("nightly-report", ttl=20.0).acquire()
block = guard.transaction(lease.sequencer)
txn = block.__enter__()
value = read(txn)
child = os.fork()
write(txn, "child" if child == 0 else "parent")
try:
    block.__exit__(None, None, None)
    said = "written"
except fenceline.FencelineError as error:
    said = type(error).__name__
if child == 0:
    say(said)
    os._exit(0)
os.waitpid(child, 0)
say(said)
""",
        )
        assert [both.hear(), both.hear()] in (["UnsupportedError", "written"], ["written", "UnsupportedError"])
        assert face.value() == "parent"

    def play(self, stage: Stage, face: Face, body: str) -> Actor:
        return stage.actor(face.script(body))

    # --- operators ---
    def test_g8_whatever_an_operator_does_to_a_mark_is_kept_with_its_reason(self, face: Face) -> None:
        guard = face.guard()
        guard.seal(HandmadeLease(5))
        guard.lower(3, reason="poisoned")
        guard.raise_to(7, reason="restored")
        guard.outrank(HandmadeLease(8), reason="it hangs")
        guard.rebind("another", source=HandmadeSource(8), reason="moved")
        kept = [(one["action"], one["from_token"], one["to_token"], one["reason"]) for one in face.entries()]
        assert kept == [
            ("lower", "5", "3", "poisoned"),
            ("raise-to", "3", "7", "restored"),
            ("break", "7", "8", "it hangs"),
            ("rebind", "8", "8", f"moved (from lock {LOCK!r} to 'another')"),
        ]
        assert all(
            one["at"].endswith("+00:00") and one["who"] and one["resource"] == RESOURCE for one in face.entries()
        )

    def test_g9_raising_to_a_source_that_has_issued_nothing_is_kept_too(self, face: Face) -> None:
        face.guard().raise_to(HandmadeSource(0), reason="restored")
        assert [one["action"] for one in face.entries()] == ["raise-to"]
        assert look_at(face.url).marks == ()

    def test_g6_the_store_protects_no_table_and_says_what_to_do(self, face: Face) -> None:
        with pytest.raises(UnsupportedError, match=r"knows no triggers.*the store's own access control"):
            face.guard().protect("reports")
        with pytest.raises(GuardError, match="protects no table"):
            face.guard().unprotect(reason="a test")
        assert look_at(face.url).marks == ()

    def test_commands_show_and_move_marks(self, face: Face, program: Program) -> None:
        with fenceline.connect(program.url) as source:
            lease = source.lock(LOCK).acquire()
            face.write(lease, "mine")
            (shown,) = program.json("marks", face.url)
            assert (shown["resource"], shown["lock"], shown["token"]) == (RESOURCE, LOCK, str(lease.token))
            assert (shown["held"], shown["closed"], shown["tables"]) == (True, False, [])
            assert lease.sequencer.claim not in json.dumps(shown)
            broken = program("break", LOCK, "--reason", "a test", "--guard", face.url)
            assert broken.returncode == 0, broken.stderr
            with pytest.raises(FencelineError):
                face.write(lease.sequencer, "late")
            (shown,) = program.json(
                "marks", face.url, "--resource", RESOURCE, "--raise-to", program.url, "--reason", "a test"
            )
            assert int(shown["token"]) > lease.token
            assert not shown["held"]
            (shown,) = program.json("rebind", face.url, "--resource", RESOURCE, "--lock", "next", "--reason", "a test")
            assert shown["lock"] == "next"
            (shown,) = program.json("marks", face.url, "--resource", RESOURCE, "--lower", "1", "--reason", "a test")
            assert shown["token"] == "1"
        refused = program("protect", face.url, "--resource", RESOURCE, "--lock", "next", "--table", "t")
        assert refused.returncode == 69
        assert "knows no triggers" in refused.stderr
        assert [one["action"] for one in face.entries()] == ["break", "raise-to", "rebind", "lower"]

    def test_the_doctor_says_that_anybody_may_write(self, face: Face, program: Program) -> None:
        with fenceline.connect(program.url) as source, source.lock(LOCK) as lease:
            face.write(lease, "mine")
        done = program("doctor", "--guard", face.url)
        assert done.returncode == 1, done.stdout
        assert "open-to-all: " in done.stdout

    def test_run_closes_the_guard_at_its_end(self, face: Face, program: Program) -> None:
        with fenceline.connect(program.url) as source, source.lock(LOCK) as lease:
            face.write(lease, "mine")
        done = program("run", LOCK, "--guard", face.url, "--", "true")
        assert done.returncode == 0, done.stderr
        assert face.guard().mark().is_closed
        with pytest.raises(StaleTokenError):
            face.write(lease.sequencer, "late")


class BesideLocks:
    """A guard in the same store as its lock, whose URL says where that is. A subclass has the fixture `face`, whose
    `source_url` is the lock's.
    """

    @pytest.fixture
    def source(self, face: Any) -> Iterator[fenceline.Source]:
        source_store(face.source_url).install()
        with fenceline.connect(face.source_url) as source:
            yield source

    def test_a_holder_writes(self, face: Any, source: fenceline.Source) -> None:
        with source.lock(LOCK, ttl=face.ttl) as lease:
            face.write(lease, "mine")
            face.write(lease.sequencer, "my child's")
        assert face.value() == "my child's"

    def test_a_block_takes_a_few_trips_more(self, face: Any, source: fenceline.Source) -> None:
        with source.lock(LOCK, ttl=face.ttl) as lease:
            guard = face.guard()
            guard.seal(lease)
            trips = face.trips(guard)
            face.write(lease, "x", guard)
            assert trips() == face.trips_of_a_block

    @pytest.mark.parametrize("end", ["release", "break"])
    def test_g10_a_lease_that_is_over_writes_nothing_though_nobody_has_sealed_since(
        self, face: Any, source: fenceline.Source, end: str
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

    def end_lease(self, source: fenceline.Source, lease: Any, end: str) -> None:
        if end == "release":
            lease.release()
        else:
            source.break_lock(LOCK, reason="a test")

    def test_t7_a_raised_epoch_ends_a_block(self, face: Any, source: fenceline.Source) -> None:
        lease = source.lock(LOCK, ttl=face.ttl).acquire()
        with pytest.raises(GuardError, match="the record of the source"):
            self.write_late(face, lease, lambda: source.raise_epoch(reason="a test"))
        with pytest.raises(GuardError, match="is over"):
            face.write(lease.sequencer, "late")
        assert face.value() == "initial"
        with source.lock(LOCK, ttl=face.ttl) as following:
            face.write(following, "next")

    def test_a_waiter_is_no_holder(self, face: Any, source: fenceline.Source) -> None:
        """Its token was minted when it queued up; nobody shows it before the lock is its own."""
        with source.lock(LOCK, ttl=face.ttl) as lease:
            face.write(lease, "mine")
            wrong = dataclasses.replace(lease.sequencer, token=lease.token + 1)
            with pytest.raises(GuardError, match="is over"):
                face.write(wrong, "late")
            wrong = dataclasses.replace(lease.sequencer, token=lease.token + 2, claim=draw_claim())
            with pytest.raises(GuardError, match="is over"):
                face.write(wrong, "late")

    def test_g5_a_lock_of_another_source_is_refused(self, face: Any, source: fenceline.Source, tmp_path: Path) -> None:
        elsewhere = f"sqlite:///{tmp_path}/locks.db"
        with (
            fenceline.connect(elsewhere) as other,
            other.lock(LOCK) as lease,
            pytest.raises(WrongLockError, match="this guard's URL says that its locks are at"),
        ):
            face.write(lease, "strange")
        assert face.value() == "initial"

    def test_data_are_not_guarded_where_the_locks_are(self, face: Any, source: fenceline.Source) -> None:
        guard = fenceline.guard(face.source_url, resource=RESOURCE, lock=LOCK)
        with source.lock(LOCK, ttl=face.ttl) as lease, pytest.raises(GuardError, match="place of a source of locks"):
            guard.seal(lease)
        assert look_at(face.source_url).marks == ()

    def test_without_a_source_there_nobody_writes(self, face: Any) -> None:
        with pytest.raises(SchemaError):
            face.write(HandmadeLease(5), "late")
        assert face.value() == "initial"

    @pytest.mark.process
    def test_h3_a_holder_frozen_past_its_ttl_writes_nothing_though_nobody_has_sealed_since(
        self, face: Any, source: fenceline.Source, stage: Stage
    ) -> None:
        old = stage.actor(
            face.script(f"""
locks = fenceline.connect({face.source_url!r})
lease = locks.lock({LOCK!r}, ttl={face.shortest_ttl}).acquire()
try:
    with guard.transaction(lease) as txn:
        say(read(txn))
        hear()
        write(txn, "stale")
    say("written")
except fenceline.FencelineError as error:
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
    async def test_tasks_too(self, face: Any, source: fenceline.Source) -> None:
        guard = fenceline.aio.guard(face.url, resource=RESOURCE, lock=LOCK)
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


def outlive_an_outage(face: Face, kill: Callable[[], Any], start: Callable[[], Any]) -> None:
    """Have the server killed inside a block: nothing of it is written, and the same guard goes on afterwards."""
    guard, lease = face.guard(), HandmadeLease(5)
    face.write(lease, "before", guard)

    def write_and_kill() -> None:
        with guard.transaction(lease) as txn:
            face.put(txn, "during")
            kill()

    with pytest.raises((SourceUnavailableError, OutcomeUnknownError)):
        write_and_kill()
    with pytest.raises(SourceUnavailableError):
        face.write(lease, "down", guard)
    start()
    assert guard.mark().token == lease.sequencer.token
    face.write(lease, "after", guard)
    assert face.value() == "after"
