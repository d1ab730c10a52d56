"""What a guard has to live through at a store of keys, written once for etcd and ZooKeeper.

Requests and replies that are lost, holders that race, real processes that are frozen, killed and forked, operators and
their commands, a server that dies.
"""

import itertools
import json
import threading
from collections.abc import Callable
from copy import copy
from typing import Any

import pytest

import fencelock
from fencelock import (
    FencelockError,
    GuardError,
    OutcomeUnknownError,
    SourceUnavailableError,
    StaleTokenError,
    UnsupportedError,
    inspect_resources,
)
from fencelock._flows.tenure import Tenure
from tests.cli.program import Program
from tests.process.actors import Actor, Stage
from tests.support.guarded_keys import FLOWS, MAY_BE_UNKNOWN, Face, Loss
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource
from tests.support.helpers import meanwhile, wait_until

MAX_LOST = 30
"""More requests than any flow has."""
RACERS, TURNS = 4, 25
NEXT = 9
"""The token of whoever comes after."""


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
            error: FencelockError | None = None
            try:
                was_done = next(steps)
            except FencelockError as caught:
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

    def test_a_block_that_seals_takes_a_trip_less_than_a_seal_and_a_block(self, face: Face) -> None:
        """The mark that the seal has just written, or found, is not read again."""
        face.guard().seal(HandmadeLease(3))
        guard, lease = face.guard(), HandmadeLease(5)
        trips = face.trips(guard)
        face.write(lease, "x", guard)
        sealing = trips()
        face.write(lease, "x", guard)
        later = trips() - sealing
        assert sealing == later + 1
        another_process = copy(lease)
        another_process.tenure = Tenure()
        face.write(another_process, "x", guard)
        assert trips() - sealing - later == later

    def test_g2_a_block_that_seals_compares_the_mark_that_it_has_written(self, face: Face) -> None:
        """A successor that seals while it is open is met at its end."""
        face.write(HandmadeLease(3), "0")

        def work() -> None:
            with face.guard().transaction(HandmadeLease(5)) as txn:
                number = face.read_number(txn)
                meanwhile(lambda: face.write(HandmadeLease(6), "1"))
                face.put(txn, str(number + 100))

        with pytest.raises(StaleTokenError, match="its mark is 6"):
            work()
        assert face.value() == "1"

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
guard.mark()  # Imports what is imported late.
early_beats()
lease = source.lock("nightly-report", ttl=1.5).acquire()
try:
    with guard.transaction(lease) as txn:
        value = read(txn)
        say(value)
        hear()
        write(txn, "stale")
    say("written")
except fencelock.FencelockError as error:
    say(type(error).__name__)
""",
        )
        assert old.hear() == "initial"
        old.freeze()
        with fencelock.connect(stage.url) as source, source.lock(LOCK, timeout=20) as lease:
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
guard.mark()  # Imports what is imported late.
early_beats()
lease = source.lock("nightly-report", ttl=1.5).acquire()
with guard.transaction(lease) as txn:
    value = read(txn)
say(value)
hear()
def outcome(proof):
    while True:
        try:
            with guard.transaction(proof) as txn:
                write(txn, "stale")
            return "written"
        except (fencelock.SourceUnavailableError, fencelock.OutcomeUnknownError):
            time.sleep(0.01)  # Its connection may not have outlived the freeze.
        except fencelock.FencelockError as error:
            return type(error).__name__
for proof in (lease.sequencer, lease):
    say(outcome(proof))
""",
        )
        assert old.hear() == "initial"
        old.freeze()
        with fencelock.connect(stage.url) as source, source.lock(LOCK, timeout=20) as lease:
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
lease = source.lock("nightly-report", ttl=30.0).acquire()
with guard.transaction(lease) as txn:
    write(txn, "stale")
    say()
    hear()
""",
        )
        old.hear()
        old.kill()
        with fencelock.connect(stage.url) as source:
            source.break_lock(LOCK, reason="its process was killed")
            with source.lock(LOCK, timeout=20) as lease:
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
except fencelock.FencelockError as error:
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
        assert inspect_resources(face.url).marks == ()

    def test_g6_the_store_protects_no_table_and_says_what_to_do(self, face: Face) -> None:
        with pytest.raises(UnsupportedError, match=r"has no triggers.*the store's own access control"):
            face.guard().protect("reports")
        with pytest.raises(GuardError, match="protects no table"):
            face.guard().unprotect(reason="a test")
        assert inspect_resources(face.url).marks == ()

    def test_commands_show_and_move_marks(self, face: Face, program: Program) -> None:
        with fencelock.connect(program.url) as source:
            lease = source.lock(LOCK).acquire()
            face.write(lease, "mine")
            (shown,) = program.json("marks", face.url)["resources"]
            assert (shown["resource"], shown["lock"], shown["token"]) == (RESOURCE, LOCK, str(lease.token))
            assert (shown["set_by"], shown["closed"], shown["tables"]) == ("lease", False, [])
            assert lease.sequencer.proof not in json.dumps(shown)
            broken = program("break", LOCK, "--reason", "a test", "--guard", face.url)
            assert broken.returncode == 0, broken.stderr
            with pytest.raises(FencelockError):
                face.write(lease.sequencer, "late")
            (shown,) = program.json(
                "marks", face.url, "--resource", RESOURCE, "--raise-to", program.url, "--reason", "a test"
            )["resources"]
            assert int(shown["token"]) > lease.token
            assert shown["set_by"] == "operator"
            (shown,) = program.json("rebind", face.url, "--resource", RESOURCE, "--lock", "next", "--reason", "a test")
            assert shown["lock"] == "next"
            (shown,) = program.json("marks", face.url, "--resource", RESOURCE, "--lower", "1", "--reason", "a test")[
                "resources"
            ]
            assert shown["token"] == "1"
        refused = program("protect", face.url, "--resource", RESOURCE, "--lock", "next", "--table", "t")
        assert refused.returncode == 69
        assert "has no triggers" in refused.stderr
        assert [one["action"] for one in face.entries()] == ["break", "raise-to", "rebind", "lower"]

    def test_the_doctor_says_that_anybody_may_write(self, face: Face, program: Program) -> None:
        with fencelock.connect(program.url) as source, source.lock(LOCK) as lease:
            face.write(lease, "mine")
        done = program("doctor", "--guard", face.url)
        assert done.returncode == 1, done.stdout
        assert "open-to-all: " in done.stdout, done.stdout
        assert "no-marks: " not in done.stdout, done.stdout

    MISTYPED = "no-marks: "
    """What the doctor finds behind another prefix than the marks'."""

    def test_the_doctor_says_that_no_mark_is_where_a_mistyped_url_leads(self, face: Face, program: Program) -> None:
        with fencelock.connect(program.url) as source, source.lock(LOCK) as lease:
            face.write(lease, "mine")
        base, mark, query = face.url.partition("?")
        done = program("doctor", "--guard", f"{base}-mistyped{mark}{query}")
        assert done.returncode == 1, done.stdout
        assert self.MISTYPED in done.stdout, done.stdout

    def test_run_closes_the_guard_at_its_end(self, face: Face, program: Program) -> None:
        with fencelock.connect(program.url) as source, source.lock(LOCK) as lease:
            face.write(lease, "mine")
        done = program("run", LOCK, "--guard", face.url, "--", "true")
        assert done.returncode == 0, done.stderr
        assert face.guard().mark().is_closed
        with pytest.raises(StaleTokenError):
            face.write(lease.sequencer, "late")


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
    # A client that was just refused looks for the server again a moment later.
    assert wait_until(lambda: _mark_if_there(guard)) == lease.sequencer.token
    # On a busy machine, a server that has just started may lose a brief session once more.
    wait_until(lambda: _is_written(face, lease, guard))
    assert face.value() == "after"


def _is_written(face: Face, lease: HandmadeLease, guard: Any) -> bool:
    try:
        face.write(lease, "after", guard)
    except (SourceUnavailableError, OutcomeUnknownError):
        return False
    return True


def _mark_if_there(guard: Any) -> int:
    try:
        return int(guard.mark().token)
    except (SourceUnavailableError, OutcomeUnknownError):
        return 0
