"""A source in documents, one request at a time: what it sends, what it makes of lost and late operations, and when it
refuses.
"""

import json
import os
import threading
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from fencelock.errors import OutcomeUnknownError, SchemaError, SourceError, SourceUnavailableError
from fencelock.model import EPOCH_STRIDE, digest_of_claim, one_way
from fencelock.protocol import source_requests as ask
from fencelock.stores import pauses
from fencelock.stores.document import grants, reading
from fencelock.stores.document.layout import decode_lock
from fencelock.stores.document.operations import (
    COUNTER,
    LOCK,
    MAX_WRITES,
    SOURCE_KEY,
    Document,
    Increment,
    Key,
    Operation,
    ReadDocuments,
    ReadLocation,
    ReadLocks,
    WriteDocument,
    WriteEach,
)
from fencelock.testing.clock import ManualClock
from tests.support.documents import LATE, REPLY, REQUEST, Documents, MemoryDocumentSource

TTL_MS = 10_000
FAULTS = (REQUEST, REPLY, LATE)
SILENT = OutcomeUnknownError("the source did not answer")


class Process:
    """A process of its own: a source object, and the connection of its one thread."""

    def __init__(self, documents: Documents, clock: ManualClock) -> None:
        self.source = MemoryDocumentSource(documents, clock.now_us)
        self.connection = self.source.connect(request_timeout_s=5.0)
        self._clock = clock

    def send(self, request: Any) -> Any:
        """Send one request."""
        return self.connection.perform(request)

    def acquire(self, claim: str, *, lock: str = "lock", may_wait: bool = False) -> Any:
        """Ask for a lock."""
        self._clock.advance(0.000_001)
        return self.send(ask.Acquire(lock, claim, f"holder of {claim}", TTL_MS, self._clock.now_us(), may_wait))

    def release(self, claim: str, *, lock: str = "lock") -> bool:
        """Release a lock, and return whether it was held."""
        return bool(self.send(ask.Release(lock, claim)).was_held)

    def renew(self, *claims: str) -> ask.Renewed:
        """Renew leases of locks with the names of their claims, or of `lock`."""
        return self.send(ask.Renew(tuple(("lock", claim) for claim in claims)))  # type: ignore[no-any-return]


class World:
    """An installed source and two processes."""

    def __init__(self, *, has_dates: bool = True) -> None:
        self.clock = ManualClock()
        self.documents = Documents(self.clock.now_us, has_dates=has_dates)
        self.one, self.two = self.process(), self.process()
        self.one.source.install()
        self.documents.performed.clear()

    def process(self) -> Process:
        """Return a process that has seen nothing yet."""
        return Process(self.documents, self.clock)

    def pass_ms(self, milliseconds: int) -> None:
        """Let time pass."""
        self.clock.advance(milliseconds / 1000)

    def kinds(self) -> list[str]:
        """Return the kinds of the operations that were performed since the last call."""
        performed, self.documents.performed = self.documents.performed, []
        return [type(operation).__name__ for operation in performed]

    def meanwhile(self, kind: type, action: Callable[[], object]) -> None:
        """Do something right before the next operation of this kind."""

        def before(operation: Operation) -> None:
            if isinstance(operation, kind):
                self.documents.before = lambda _: None
                action()

        self.documents.before = before


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def slept_s(world: World, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every pause passes in the world's time, and is the longest that it may be."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        world.clock.advance(seconds)

    monkeypatch.setattr(pauses, "time", SimpleNamespace(sleep=sleep))
    for process in (world.one, world.two):
        monkeypatch.setattr(process.source.state, "random", lambda: 1.0)
    return slept


# --- what a request costs ---------------------------------------------------------------------------------------------
def test_a_grant_reads_draws_and_writes(world: World) -> None:
    world.one.acquire("first")
    world.one.release("first")
    world.kinds()
    assert world.one.acquire("second").token == 2
    assert world.kinds() == ["ReadDocuments", "Increment", "WriteDocument"]
    world.one.release("second")
    assert world.kinds() == ["ReadDocuments", "WriteDocument"]


def test_a_new_lock_gets_a_document_first(world: World) -> None:
    """The grant replaces a version that was drawn at random, so no late one fits a document that was purged since."""
    world.one.acquire("first")
    written = [operation for operation in world.documents.performed if isinstance(operation, WriteDocument)]
    assert [write.seen is None for write in written] == [True, False]
    assert json.loads(written[0].body)["holder"] is None


def test_a_waiter_writes_only_to_keep_its_place(world: World) -> None:
    world.one.acquire("holder")
    world.two.acquire("waiter", may_wait=True)
    world.kinds()
    for _ in range(3):
        assert isinstance(world.two.send(ask.Poll("lock", "waiter", keeps_place=False)), ask.Queued)
    assert world.kinds() == ["ReadDocuments"] * 3
    assert isinstance(world.two.send(ask.Poll("lock", "waiter", keeps_place=True)), ask.Queued)
    assert world.kinds() == ["ReadDocuments", "WriteDocument"]


def test_h8_a_place_that_was_only_read_expires(world: World) -> None:
    world.one.acquire("holder")
    world.two.acquire("waiter", may_wait=True)
    for _ in range(4):
        world.pass_ms(TTL_MS // 4)
        reply = world.two.send(ask.Poll("lock", "waiter", keeps_place=False))
    assert reply == ask.ClaimEnded()


def test_h2_a_beat_reads_once_and_writes_in_batches(world: World) -> None:
    names = [f"lock-{number}" for number in range(2 * MAX_WRITES + 1)]
    for name in names:
        world.one.acquire(name, lock=name)
    world.kinds()
    renewed = world.one.send(ask.Renew(tuple((name, name) for name in names)))
    assert renewed == ask.Renewed(dict.fromkeys(names, TTL_MS), {})
    assert world.kinds() == ["ReadDocuments", "WriteEach", "WriteEach", "WriteEach"]


def test_waiters_sleep_longer_each_time_and_wake_at_the_end_of_the_lease() -> None:
    world = World()
    source = MemoryDocumentSource(world.documents, world.clock.now_us, longest_wait_ms=1000)
    source.state.random = lambda: 0.0
    connection = source.connect(request_timeout_s=5.0)
    world.one.acquire("holder")
    first = connection.perform(ask.Acquire("lock", "waiter", "me", TTL_MS, world.clock.now_us(), may_wait=True))
    waits = [first.wait_ms]
    waits += [connection.perform(ask.Poll("lock", "waiter", keeps_place=False)).wait_ms for _ in range(7)]
    assert waits == [20, 40, 80, 160, 320, 640, 1000, 1000]
    world.pass_ms(TTL_MS - 5)
    connection.perform(ask.Poll("lock", "waiter"))
    world.pass_ms(TTL_MS // 2)
    assert isinstance(connection.perform(ask.Poll("lock", "waiter")), ask.Granted)


@pytest.mark.parametrize("others_ttl_ms", [TTL_MS, 9 * TTL_MS], ids=["with the others", "before the others"])
def test_h8_a_place_that_expires_at_any_reading_of_the_clock_is_written_or_over(others_ttl_ms: int) -> None:
    """A process may be frozen at any line; one that is told that it waits has a place in the queue."""
    answers = set()
    for number in range(1, 15):
        world = World()
        world.one.send(ask.Acquire("lock", "holder", "one", 9 * TTL_MS, world.clock.now_us(), may_wait=False))
        world.two.acquire("waiter", may_wait=True)
        world.one.send(ask.Acquire("lock", "other", "one", others_ttl_ms, world.clock.now_us(), may_wait=True))
        freeze_at_reading(world, number)
        reply = world.two.send(ask.Poll("lock", "waiter", keeps_place=True))
        stored = world.documents.documents[Key(LOCK, "lock")].body
        assert (digest_of_claim("waiter") in stored) or reply == ask.ClaimEnded()
        answers.add(type(reply))
    assert answers == {ask.Queued, ask.ClaimEnded}


@pytest.mark.parametrize("ask_anything", [ask.Inspect("lock"), ask.ListLocks(None)])
def test_h1_a_lease_that_ends_at_any_reading_of_the_clock_has_time_left_or_no_holder(ask_anything: Any) -> None:
    for number in range(1, 10):
        world = World()
        world.one.acquire("holder")
        world.two.send(ask.Inspect("lock"))
        freeze_at_reading(world, number)
        reply = world.two.send(ask_anything)
        (info,) = reply if isinstance(reply, tuple) else (reply,)
        assert (info.holder is None) == (not info.remaining), f"frozen at reading {number}: {info}"


def freeze_at_reading(world: World, number: int) -> None:
    """Freeze the second process for a ttl right before its clock is read for the n-th time from now on."""
    readings = count(1)

    def now_us() -> int:
        if next(readings) == number:
            world.pass_ms(TTL_MS)
        return world.clock.now_us()

    world.two.source.state.now_us = now_us


# --- deadlines (H1) ---------------------------------------------------------------------------------------------------
def test_h1_a_repeated_acquire_counts_from_the_write_whose_reply_was_lost(world: World) -> None:
    world.one.acquire("earlier")
    world.one.release("earlier")
    world.documents.lose(WriteDocument, REPLY)
    with pytest.raises(OutcomeUnknownError):
        world.one.acquire("claim")
    world.pass_ms(3000)
    granted = world.one.acquire("claim")
    assert (granted.token, granted.remaining_ms) == (2, TTL_MS - 3000)
    world.pass_ms(TTL_MS - 3000)
    assert world.one.acquire("claim") == ask.ClaimEnded()


def test_h1_a_grant_by_somebody_else_is_none(world: World) -> None:
    """What this process reads of its claim, and has not written itself, gives it no lease: nobody knows since when."""
    world.one.acquire("claim")
    assert world.two.acquire("claim") == ask.ClaimEnded()
    assert world.one.renew("claim").remaining_ms == {"claim": TTL_MS}


def test_h1_a_lease_is_over_when_its_date_is_older_than_the_ttl_by_a_margin(world: World) -> None:
    world.one.acquire("claim")
    world.pass_ms(TTL_MS + 1000)
    assert world.process().acquire("too early") == ask.Busy()
    world.pass_ms(2000)
    assert isinstance(world.process().acquire("in time"), ask.Granted)
    assert "holds the lock now" in world.one.renew("claim").lost["claim"]


def test_h1_a_thread_that_reads_a_document_hides_no_lease_from_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.one.acquire("claim")
    holder = decode_lock(world.documents.documents[Key(LOCK, "lock")], "").holder
    assert holder is not None
    sightings, found, askers = world.one.source.state.sightings, [], []
    remember = sightings._remember

    def ask_meanwhile(*arguments: Any) -> None:
        askers.append(thread := threading.Thread(target=lambda: found.append(sightings.is_own(holder))))
        thread.start()
        thread.join(0.1)  # It may have to wait for this thread.
        remember(*arguments)

    monkeypatch.setattr(sightings, "_remember", ask_meanwhile)
    world.one.send(ask.Inspect("lock"))
    askers[0].join()
    assert found == [True]


def test_h1_without_dates_a_lease_is_over_once_it_was_seen_unchanged_for_its_ttl() -> None:
    world = World(has_dates=False)
    world.one.acquire("claim")
    world.pass_ms(100 * TTL_MS)
    assert world.two.acquire("first look") == ask.Busy()
    world.pass_ms(TTL_MS - 1)
    assert world.two.acquire("too early") == ask.Busy()
    world.pass_ms(1)
    assert isinstance(world.two.acquire("in time"), ask.Granted)


def test_h1_a_renewal_begins_the_watch_anew() -> None:
    world = World(has_dates=False)
    world.one.acquire("claim")
    world.two.acquire("first look")
    world.pass_ms(TTL_MS - 1)
    world.one.renew("claim")
    world.pass_ms(TTL_MS - 1)
    assert world.two.acquire("second look") == ask.Busy()


def test_h1_a_holder_that_is_taken_over_between_reading_and_writing_gets_nothing(world: World) -> None:
    world.one.acquire("holder")

    def take_over() -> None:
        world.pass_ms(TTL_MS + 3000)
        assert world.two.acquire("other").token == 2

    world.meanwhile(WriteEach, take_over)
    assert "holder of other holds the lock now, with token 2" in world.one.renew("holder").lost["holder"]


@pytest.mark.parametrize("offset_ms", [3_600_000, -3_600_000])
def test_h1_dates_that_jump_end_no_lease_whose_holder_renews_it(world: World, offset_ms: int) -> None:
    world.one.acquire("claim")
    world.two.acquire("waiter", may_wait=True)
    world.documents.date_offset_ms = offset_ms
    assert world.one.renew("claim").remaining_ms == {"claim": TTL_MS}
    assert isinstance(world.two.send(ask.Poll("lock", "waiter", keeps_place=True)), ask.Queued)
    assert world.process().acquire("newcomer") == ask.Busy()
    assert world.one.release("claim")
    assert world.two.send(ask.Poll("lock", "waiter", keeps_place=False)).token == 2


def test_h1_a_date_that_jumps_ahead_costs_exclusion_and_the_holder_is_told(world: World) -> None:
    world.one.acquire("holder")
    world.documents.date_offset_ms = 3_600_000
    assert world.two.acquire("other").token == 2
    assert "holder of other holds the lock now, with token 2" in world.one.renew("holder").lost["holder"]


def test_check_states_no_more_time_than_is_certain(world: World) -> None:
    world.one.acquire("claim")
    info = world.one.send(ask.ReadSource())
    proof = ask.Check("lock", info.history_id, one_way("claim"))
    assert world.one.send(proof).remaining_ms == TTL_MS
    world.pass_ms(2500)
    assert world.two.send(proof).remaining_ms <= TTL_MS - 2500
    assert world.two.send(proof).remaining_ms >= TTL_MS - 2500 - 2000 - 1000
    assert world.two.send(proof._replace(history_id="another")).remaining_ms == 0


def test_check_is_certain_of_nothing_that_no_date_tells() -> None:
    world = World(has_dates=False)
    world.one.acquire("claim")
    info = world.one.send(ask.ReadSource())
    proof = ask.Check("lock", info.history_id, one_way("claim"))
    world.pass_ms(TTL_MS - 1)
    assert world.two.send(proof).remaining_ms == 0
    assert world.one.send(proof).remaining_ms == 1


def test_a_process_that_was_frozen_before_its_write_decides_again(world: World) -> None:
    world.one.acquire("earlier")
    world.one.release("earlier")

    def go_on_without_it() -> None:
        world.pass_ms(reading.DECISIONS_MS + 1)
        world.two.acquire("other")
        world.two.release("other")

    world.meanwhile(WriteDocument, go_on_without_it)
    assert world.one.acquire("claim").token > 2


# --- lost and late (H4, H5) -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", FAULTS)
def test_t3_an_acquire_in_doubt_is_granted_once_when_it_is_asked_again(world: World, fault: str) -> None:
    world.one.acquire("earlier")
    world.one.release("earlier")
    world.documents.lose(WriteDocument, fault)
    with pytest.raises(OutcomeUnknownError):
        world.one.acquire("claim")
    granted = world.one.acquire("claim")
    assert isinstance(granted, ask.Granted)
    assert world.documents.deliver() == ([False] if fault == LATE else [])
    assert world.one.send(ask.Inspect("lock")).token == granted.token


def test_h4_a_write_in_doubt_that_comes_after_its_release_is_refused(world: World) -> None:
    world.one.acquire("earlier")
    world.one.release("earlier")
    world.documents.lose(WriteDocument, LATE)
    with pytest.raises(OutcomeUnknownError):
        world.one.acquire("claim")
    assert world.one.release("claim") is False
    assert world.documents.deliver() == [False]
    assert not world.one.send(ask.Inspect("lock")).is_held


def fail() -> None:
    """Stand for a server that cannot be reached."""
    raise SourceUnavailableError("refused on purpose")


@pytest.mark.parametrize("is_refused", [True, False])
def test_h5_a_write_in_doubt_is_not_forgotten_when_the_next_one_was_certainly_not_done(
    world: World, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """S3 also refuses a write because another one is under way."""
    world.one.acquire("earlier")
    world.one.release("earlier")
    world.documents.lose(WriteDocument, LATE)
    with pytest.raises(OutcomeUnknownError):
        world.one.acquire("claim")
    with monkeypatch.context() as patch:
        if is_refused:
            patch.setattr(Documents, "_writedocument", lambda *_: False)
        else:
            world.meanwhile(WriteDocument, fail)
        with pytest.raises(SourceUnavailableError):
            world.one.acquire("claim")
    assert world.one.release("claim") is False
    assert world.documents.deliver() == [False]
    assert not world.one.send(ask.Inspect("lock")).is_held


def test_h4_a_claim_whose_write_was_carried_out_and_undone_is_not_granted_again(world: World) -> None:
    world.one.acquire("earlier")
    world.one.release("earlier")
    world.documents.lose(WriteDocument, REPLY)
    with pytest.raises(OutcomeUnknownError):
        world.one.acquire("claim")
    world.two.send(ask.Break("lock", "breaker", "an operator", "a test"))
    assert world.one.acquire("claim") == ask.ClaimEnded()
    assert not world.one.send(ask.Inspect("lock")).is_held


def test_h4_a_claim_in_doubt_is_over_when_others_have_written_since(world: World) -> None:
    world.one.acquire("holder")
    world.documents.lose(WriteDocument, LATE)
    with pytest.raises(OutcomeUnknownError):
        world.two.acquire("waiter", may_wait=True)
    world.one.renew("holder")
    assert world.two.acquire("waiter", may_wait=True) == ask.ClaimEnded()
    assert world.documents.deliver() == [False]


def test_h4_a_release_while_an_acquire_is_between_reading_and_writing_ends_it(world: World) -> None:
    world.one.acquire("earlier")
    world.one.release("earlier")
    for kind in (Increment, WriteDocument):
        claim = f"released before the {kind.__name__}"
        world.meanwhile(kind, lambda claim=claim: world.one.release(claim))
        assert world.one.acquire(claim) == ask.ClaimEnded()
        assert not world.one.send(ask.Inspect("lock")).is_held


@pytest.mark.parametrize("fault", FAULTS)
def test_g10_a_break_in_doubt_is_done_once(world: World, fault: str) -> None:
    world.one.acquire("holder")
    world.documents.lose(WriteDocument, fault)
    request = ask.Break("lock", "breaker", "an operator", "a test")
    with pytest.raises(OutcomeUnknownError):
        world.two.send(request)
    broken = world.two.send(request)
    assert broken.holder == "holder of holder"
    assert world.documents.deliver() == ([False] if fault == LATE else [])
    granted = world.one.acquire("next")
    assert granted.token > broken.token
    assert world.two.send(request) == broken
    assert world.one.renew("next").remaining_ms


@pytest.mark.parametrize("fault", FAULTS)
def test_a_number_of_the_counter_that_was_lost_is_skipped(world: World, fault: str) -> None:
    world.documents.lose(Increment, fault)
    with pytest.raises(OutcomeUnknownError):
        world.one.acquire("claim")
    granted = world.one.acquire("claim")
    world.documents.deliver()
    world.one.release("claim")
    assert world.one.acquire("next").token > granted.token


def test_h2_a_renewal_in_doubt_is_an_error_and_the_next_beat_finds_out(world: World) -> None:
    world.one.acquire("claim")
    for fault in FAULTS:
        world.documents.lose(WriteEach, fault)
        with pytest.raises(OutcomeUnknownError):
            world.one.renew("claim")
        assert world.one.renew("claim").remaining_ms == {"claim": TTL_MS}
    world.documents.deliver()
    assert world.one.renew("claim").remaining_ms == {"claim": TTL_MS}


def test_h2_a_store_that_answers_for_some_leases_leaves_the_others_in_doubt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        world.one.acquire(name, lock=name)
    both = ask.Renew((("a", "a"), ("b", "b")))
    with monkeypatch.context() as patch:
        patch.setattr(Documents, "_writeeach", lambda self, request: (self._writedocument(request.writes[0]), SILENT))
        assert world.one.send(both) == ask.Renewed({"a": TTL_MS}, {}, frozenset({"b"}))
        patch.setattr(Documents, "_writeeach", lambda *_: (SILENT, SILENT))
        with pytest.raises(OutcomeUnknownError, match="the source did not answer"):
            world.one.send(both)
    assert world.one.send(both) == ask.Renewed({"a": TTL_MS, "b": TTL_MS}, {})


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "the document of lock 'b' is not one of fencelock's"),
        ("{}", "the document of lock 'b' is not one of fencelock's"),
        ("[]", "the document of lock 'b' is not one of fencelock's"),
        ('{"schema": 99}', "newer version"),
    ],
)
def test_h2_a_document_that_another_program_has_changed_ends_the_leases_of_no_other_lock(
    world: World, body: str, problem: str
) -> None:
    for name in ("a", "b", "c"):
        world.one.acquire(name, lock=name)
    world.documents.documents[Key(LOCK, "b")] = Document(Key(LOCK, "b"), "changed", body)
    replied = world.one.send(ask.Renew((("a", "a"), ("b", "b"), ("c", "c"))))
    assert replied == ask.Renewed({"a": TTL_MS, "c": TTL_MS}, {}, frozenset({"b"}))
    with pytest.raises(OutcomeUnknownError, match=problem):
        world.one.send(ask.Renew((("b", "b"),)))


def test_h2_a_changed_document_costs_no_further_reading(world: World) -> None:
    names = [f"lock {number}" for number in range(16)]
    for name in names:
        world.one.acquire(name, lock=name)
    world.documents.documents[Key(LOCK, names[5])] = Document(Key(LOCK, names[5]), "changed", "{}")
    world.documents.performed.clear()
    replied = world.one.send(ask.Renew(tuple(zip(names, names, strict=True))))
    assert replied == ask.Renewed(dict.fromkeys([*names[:5], *names[6:]], TTL_MS), {}, frozenset({names[5]}))
    assert world.kinds().count("ReadDocuments") == 1


def test_h2_a_lock_that_others_write_all_the_time_ends_the_leases_of_no_other_lock(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        world.one.acquire(name, lock=name)
    written = Documents._writedocument
    monkeypatch.setattr(Documents, "_writedocument", lambda self, one: one.key.name != "b" and written(self, one))
    assert world.one.send(ask.Renew((("a", "a"), ("b", "b")))) == ask.Renewed({"a": TTL_MS}, {}, frozenset({"b"}))


def test_a_renewal_is_decided_again_when_somebody_queues_meanwhile(world: World) -> None:
    world.one.acquire("holder")
    world.meanwhile(WriteEach, lambda: world.two.acquire("waiter", may_wait=True))
    assert world.one.renew("holder").remaining_ms == {"holder": TTL_MS}
    assert world.one.send(ask.Inspect("lock")).waiters == ("holder of waiter",)


PAUSES_S = pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0])
"""Until four seconds are over."""


@pytest.fixture
def others_write(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.one.acquire("holder")
    monkeypatch.setattr(Documents, "_writedocument", lambda *_: False)


@pytest.mark.usefixtures("others_write")
def test_a_lock_that_others_write_all_the_time_is_given_up(world: World, slept_s: list[float]) -> None:
    with pytest.raises(SourceUnavailableError, match="others have changed lock 'lock'"):
        world.two.acquire("waiter", may_wait=True)
    assert slept_s == PAUSES_S


@pytest.mark.usefixtures("others_write")
def test_a_lease_whose_lock_others_write_all_the_time_is_left_in_doubt(world: World, slept_s: list[float]) -> None:
    with pytest.raises(OutcomeUnknownError, match="others wrote first"):
        world.one.renew("holder")
    assert slept_s == PAUSES_S


# --- tokens, purges, restores -----------------------------------------------------------------------------------------
def test_t7_a_lock_of_a_later_history_than_the_source_that_was_read_is_not_purged(world: World) -> None:
    """Otherwise the purge would delete a lock that is held, and a second holder would get it at once."""
    world.one.acquire("earlier")
    world.one.release("earlier")
    history_id = world.one.send(ask.ReadSource()).history_id

    def raise_and_take() -> None:
        world.two.send(ask.RaiseEpoch(history_id, "a test"))
        assert isinstance(world.two.acquire("holder"), ask.Granted)

    world.meanwhile(ReadLocks, raise_and_take)
    with pytest.raises(SourceUnavailableError, match="the epoch was raised meanwhile"):
        world.one.send(ask.Purge())
    assert world.one.send(ask.Purge()) == 0
    assert world.one.acquire("other") == ask.Busy()


@pytest.mark.parametrize("is_known", [True, False])
def test_t6_a_grant_that_was_decided_before_a_purge_is_refused_after_it(world: World, is_known: bool) -> None:
    """Otherwise it would be granted under a token below those that were issued and purged since."""
    if is_known:
        world.one.acquire("earlier")
        world.one.release("earlier")

    def take_and_purge() -> None:
        for number in range(3):
            assert isinstance(world.two.acquire(f"other {number}"), ask.Granted)
            world.two.release(f"other {number}")
        assert world.two.send(ask.Purge()) == 1

    world.meanwhile(WriteDocument, take_and_purge)
    highest = 5 if is_known else 3
    assert world.one.acquire("claim").token == highest + 1


def test_t6_a_document_that_somebody_deletes_costs_its_lease_and_no_token(world: World) -> None:
    world.one.acquire("claim")
    del world.documents.documents[Key(LOCK, "lock")]
    assert world.one.renew("claim").lost == {"claim": "the source no longer knows the lock"}
    assert world.two.acquire("next").token == 2


def test_t6_a_counter_that_is_gone_grants_nothing_until_the_epoch_is_raised(world: World) -> None:
    world.one.acquire("claim")
    history_id = world.one.send(ask.ReadSource()).history_id
    del world.documents.counters[Key(COUNTER, history_id)]
    with pytest.raises(SourceError, match=r"the counter of tokens is gone.*fencelock epoch --raise"):
        world.one.acquire("other", lock="other")
    info = world.one.send(ask.RaiseEpoch(history_id, "the counter was deleted"))
    assert world.one.acquire("other", lock="other").token == info.last_token + 1


def test_t7_a_counter_that_went_back_is_refused(world: World) -> None:
    for number in range(3):
        world.one.acquire(str(number), lock=str(number))
    (counter,) = world.documents.counters
    world.documents.counters[counter] = 1
    with pytest.raises(SourceError, match="issued token 2 after 3"):
        world.one.acquire("claim", lock="new")
    world.documents.counters[counter] = 0
    world.pass_ms(2 * TTL_MS)
    with pytest.raises(SourceError, match="the counter of tokens is at 1, and lock '0' has had token 1"):
        world.process().acquire("claim", lock="0")


def test_t7_a_source_that_went_back_an_epoch_is_refused(world: World) -> None:
    before = world.documents.documents[SOURCE_KEY]
    info = world.one.send(ask.ReadSource())
    world.one.send(ask.RaiseEpoch(info.history_id, "a test"))
    world.one.acquire("claim")
    world.documents.documents[SOURCE_KEY] = before
    with pytest.raises(SourceError, match="went back from epoch 2"):
        world.one.acquire("next", lock="other")


def test_t7_a_restored_copy_is_refused_until_its_epoch_is_raised(world: World) -> None:
    token = world.one.acquire("claim").token
    world.documents.location = "location-2"
    with pytest.raises(SourceError, match="installed in location-1, and this is location-2"):
        world.process().acquire("other", lock="other")
    world.pass_ms(60_000)  # A process that had looked before looks again.
    with pytest.raises(SourceError, match="restored copy"):
        world.one.acquire("other", lock="other")
    operator = world.process()
    info = operator.send(ask.ReadSource())
    raised = operator.send(ask.RaiseEpoch(info.history_id, "restored"))
    assert raised.last_token % EPOCH_STRIDE == 0
    assert raised.last_token > token
    assert world.process().acquire("other", lock="other").token == raised.last_token + 1


def test_the_location_is_looked_at_once_a_minute(world: World) -> None:
    world.one.acquire("claim")
    for _ in range(12):
        world.pass_ms(5000)
        world.one.renew("claim")
    assert [type(one) for one in world.documents.performed].count(ReadLocation) == 2


def test_t7_of_two_operators_one_raises_the_epoch(world: World) -> None:
    history_id = world.one.send(ask.ReadSource()).history_id
    world.meanwhile(WriteDocument, lambda: world.two.send(ask.RaiseEpoch(history_id, "the other")))
    assert world.one.send(ask.RaiseEpoch(history_id, "the one")) is None


def test_t7_an_epoch_whose_raise_arrives_twice_is_raised_once_and_says_so(world: World) -> None:
    history_id = world.one.send(ask.ReadSource()).history_id
    world.documents.double(WriteDocument)
    raised = world.one.send(ask.RaiseEpoch(history_id, "a test"))
    assert raised == world.two.send(ask.ReadSource())
    assert raised.epoch == 2
    assert world.one.send(ask.ReadSource()).epoch == 2


def test_t7_a_grant_of_the_old_epoch_that_comes_late_ends_at_its_first_renewal(world: World) -> None:
    world.one.acquire("earlier")
    world.one.release("earlier")
    history_id = world.one.send(ask.ReadSource()).history_id
    world.meanwhile(WriteDocument, lambda: world.two.send(ask.RaiseEpoch(history_id, "moved")))
    old = world.one.acquire("claim")
    assert old.history_id == history_id
    new = world.two.acquire("next")
    assert new.token > old.token
    assert "holder of next holds the lock now" in world.one.renew("claim").lost["claim"]


# --- what is stored, and by whom --------------------------------------------------------------------------------------
def test_a_source_that_is_not_installed_names_the_command() -> None:
    clock = ManualClock()
    with pytest.raises(SchemaError, match="fencelock install --source documents://test"):
        Process(Documents(clock.now_us), clock).acquire("claim")


def test_install_keeps_what_is_there(world: World) -> None:
    world.one.acquire("claim")
    before = world.one.send(ask.ReadSource())
    world.two.source.install()
    assert world.two.send(ask.ReadSource()) == before
    assert world.one.source.examine() == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("{}", "not one of fencelock's"),
        ("no JSON", "not one of fencelock's"),
        ("[]", "not one of fencelock's"),
        ('{"schema": 99}', "newer version"),
    ],
)
def test_a_document_of_another_program_is_refused(world: World, body: str, problem: str) -> None:
    key = Key(LOCK, "lock")
    world.documents.documents[key] = Document(key, "version", body)
    with pytest.raises(SourceError, match=problem):
        world.one.acquire("claim")
    assert world.documents.documents[key].version == "version"


@pytest.mark.parametrize("entry", [[], ["digest"], ["digest", "holder", "ttl", "beat", None], [1, 2, 3, 4, 5]])
def test_an_entry_of_another_program_is_refused(world: World, entry: list[Any]) -> None:
    world.one.acquire("claim")
    key = Key(LOCK, "lock")
    before = world.documents.documents[key]
    body = json.dumps(json.loads(before.body) | {"queue": [entry]})
    world.documents.documents[key] = before._replace(body=body)
    with pytest.raises(SourceError, match="not one of fencelock's"):
        world.two.acquire("other")


def test_a_source_of_another_program_is_refused(world: World) -> None:
    world.documents.documents[SOURCE_KEY] = Document(SOURCE_KEY, "version", "{}")
    with pytest.raises(SchemaError, match="the source's document is not one of fencelock's"):
        world.one.acquire("claim")
    (finding,) = world.one.source.examine()
    assert finding.code == "source-refused"


def test_g12_a_document_holds_digests_alone(world: World) -> None:
    world.one.acquire("claim")
    world.two.acquire("waiter", may_wait=True)
    stored = "".join(document.body for document in world.documents.documents.values())
    assert digest_of_claim("claim") in stored
    assert digest_of_claim("waiter") in stored
    assert one_way("claim") not in stored


def test_a_queue_that_is_full_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "MAX_WAITERS", 2)
    world.one.acquire("holder")
    for number in range(2):
        world.one.acquire(f"waiter {number}", may_wait=True)
    with pytest.raises(SourceError, match="has 2 waiters, the most"):
        world.two.acquire("one more", may_wait=True)
    monkeypatch.setattr(grants, "MAX_BODY_BYTES", 100)
    with pytest.raises(SourceError, match="would exceed 100 bytes"):
        world.two.send(ask.Break("other", "claim", "me", "why")) and world.two.acquire("claim", lock="other")


def test_h6_a_forked_child_forgets_its_parents_claims(world: World) -> None:
    world.one.acquire("claim")
    child = os.fork()
    if child == 0:
        state = world.one.source.state
        world.one.send(ask.Inspect("lock"))
        is_right = not state.own and world.one.acquire("claim") == ask.ClaimEnded()
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_reading_a_lock_that_is_not_there_creates_nothing(world: World) -> None:
    for request in (ask.Inspect("lock"), ask.Release("lock", "claim"), ask.Poll("lock", "claim"), ask.Purge()):
        world.one.send(request)
    assert {type(operation) for operation in world.documents.performed} & {WriteDocument, WriteEach, Increment} == set()
    assert isinstance(world.documents.performed[0], ReadDocuments)
