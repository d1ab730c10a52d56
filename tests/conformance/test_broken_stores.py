"""Negative controls: the kit rejects a store that breaks a rule, by the check that is named after it."""

import threading
from contextlib import suppress

import pytest

from fencelock.errors import SourceError
from fencelock.model import draw_claim
from fencelock.protocol import Acquire, ClaimEnded
from fencelock.stores.memory.reference_model import ReferenceModel
from fencelock.stores.memory.source import MemoryConnection, MemorySource
from fencelock.testing.conformance import (
    AsyncGuardConformance,
    AsyncSourceConformance,
    GuardConformance,
    SourceConformance,
    failure,
    failures,
)
from fencelock.testing.conformance.rig import Rig
from tests.conformance.asyncio_guard import InTaskTarget, OneReplyBehind
from tests.conformance.broken_guards import (
    BROKEN_DECISIONS,
    BROKEN_GUARDS,
    CarelessTenure,
    ClosingByAnybody,
    admit_other_locks,
    close_anything,
)
from tests.conformance.broken_sources import BROKEN, LastInFirstOut
from tests.conformance.memory_guard import InTarget
from tests.conformance.test_created_marks import BROKEN as BROKEN_DECLARATIONS
from tests.conformance.test_memory import InMemory
from tests.conformance.thread_sources import BROKEN_BY_A_THREAD

PATIENCE_S = 30.0


def kit_of(model):
    """Return the kit over a source in memory that uses this model."""

    class Store(MemorySource):
        model_type = model

    class Kit(InMemory, SourceConformance):
        def make_store(self, url):
            return Store(url, now_us=self.clock.now_us)

    return Kit


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    """Shorten the time that threads may wait: a broken source may let them wait for ever."""
    monkeypatch.setattr("fencelock.testing.runners.REQUEST_TIMEOUT_S", 1.0)


@pytest.fixture
def full_patience(monkeypatch, short_patience):
    """Let threads and tasks take their time: here none waits for ever, and a busy machine may stand still."""
    monkeypatch.setattr("fencelock.testing.runners.REQUEST_TIMEOUT_S", PATIENCE_S)


@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_source_is_rejected(broken, check):
    error = failure(kit_of(broken), check)
    assert isinstance(error, AssertionError), f"{broken.__name__} passed {check}: {error!r}"


class WaryAfterPurge(ReferenceModel):
    """Refuses the first claim after a purge, like a source that cannot tell it from a forgotten one."""

    is_wary = False

    def _purge(self, request, now_us):
        self.is_wary = True
        return super()._purge(request, now_us)

    def _acquire(self, request, now_us):
        if self.is_wary:
            self.is_wary = False
            return ClaimEnded()
        return super()._acquire(request, now_us)


def test_a_source_that_asks_for_a_fresh_claim_after_a_purge_passes():
    assert failure(kit_of(WaryAfterPurge), "test_purge_keeps_the_counter") is None


OVERTAKEN_S = 0.05
"""How long the first request waits for another one to overtake it, where none should."""
TURNS = "test_acquires_of_one_tick_are_served_in_the_order_of_their_calls"


@pytest.mark.usefixtures("full_patience")
def test_a_source_that_serves_tasks_in_another_order_is_rejected():
    class Store(MemorySource):
        model_type = LastInFirstOut

    class Kit(InMemory, AsyncSourceConformance):
        def make_store(self, url):
            return Store(url, now_us=self.clock.now_us)

    assert isinstance(failure(Kit, TURNS), AssertionError)


@pytest.mark.usefixtures("full_patience")
def test_a_driver_whose_requests_overtake_each_other_is_rejected(monkeypatch):
    is_overtaken = threading.Event()
    waits_s = OVERTAKEN_S

    class Overtaking(MemoryConnection):
        def perform(self, request):
            if not isinstance(request, Acquire) or not request.holder.startswith("task-"):
                return super().perform(request)
            if request.holder == "task-0":
                is_overtaken.wait(waits_s)
                return super().perform(request)
            reply = super().perform(request)
            is_overtaken.set()
            return reply

    class Store(MemorySource):
        def connect(self, *, request_timeout_s):
            return Overtaking(self, self._now_us)

    class Kit(InMemory, AsyncSourceConformance):
        def make_store(self, url):
            return Store(url, now_us=self.clock.now_us)

    async def go_at_once(turn, timeout_ms):
        return timeout_ms

    assert failure(Kit, TURNS) is None
    is_overtaken.clear()
    waits_s = PATIENCE_S
    monkeypatch.setattr("fencelock._drivers.turns.Turn.wait", go_at_once)
    assert isinstance(failure(Kit, TURNS), AssertionError)


def test_a_source_that_does_not_ring_is_rejected(monkeypatch):
    class Silent(InMemory, SourceConformance):
        pass

    monkeypatch.setattr("fencelock.stores.memory.source.MemoryWakeup.notify", lambda wakeup: None)
    monkeypatch.setattr("fencelock.testing.conformance.waiting.REQUEST_TIMEOUT_S", 0.01)
    assert isinstance(failure(Silent, "test_the_head_of_the_queue_is_told_of_a_release"), AssertionError)


def test_a_source_that_begins_anew_for_each_client_is_rejected():
    class Forgetful(InMemory, SourceConformance):
        def make_store(self, url):
            return super().make_store(f"{url}-{draw_claim()}")

    assert isinstance(failure(Forgetful, "test_tokens_rise_for_a_source_opened_again"), AssertionError)


@pytest.mark.parametrize("broken", BROKEN_BY_A_THREAD)
def test_a_source_that_is_broken_for_good_by_a_thread_that_did_not_start_is_rejected(monkeypatch, broken):
    class Kit(InMemory, SourceConformance):
        def make_store(self, url):
            return broken(url, now_us=self.clock.now_us)

    check = "test_a_thread_that_did_not_start_is_started_later"
    monkeypatch.setattr("fencelock.testing.conformance.waiting.REQUEST_TIMEOUT_S", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr("fencelock.testing.runners.REQUEST_TIMEOUT_S", PATIENCE_S)
        patch.setattr("tests.conformance.thread_sources.OneThread.submit", submit_again)
        assert failure(Kit, check) is None
    assert isinstance(failure(Kit, check), AssertionError)


def submit_again(thread, function):
    """Do as `OneThread.submit`, but start the thread until that succeeds."""
    thread.work.put(function)
    while not thread.is_running:
        with suppress(RuntimeError):
            threading.Thread(target=thread._serve, daemon=True).start()
            thread.is_running = True


def test_every_check_rejects_some_broken_source():
    """A check that rejects nothing may check nothing. Some have their negative controls above."""
    checks = {name for name in dir(AsyncSourceConformance) if name.startswith("test_")}
    above = {
        "test_a_thread_that_did_not_start_is_started_later",
        "test_the_head_of_the_queue_is_told_of_a_release",
        "test_tokens_rise_for_a_source_opened_again",
        TURNS,
    }
    assert checks == above | {check for _, check in BROKEN}


@pytest.mark.parametrize(("broken", "check"), BROKEN_GUARDS, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_guard_is_rejected(broken, check):
    class Kit(InTarget, GuardConformance):
        session_type = broken

    error = failure(Kit, check)
    assert error is not None, f"{broken.__name__} passed {check}"


CANCELLED = "test_a_cancelled_block_leaves_the_next_one_in_order"


def test_a_guard_that_is_one_reply_behind_a_cancelled_task_is_rejected():
    class Kit(InTaskTarget, AsyncGuardConformance):
        task_session_type = OneReplyBehind

    assert isinstance(failure(Kit, CANCELLED), AssertionError)


@pytest.mark.parametrize(("broken", "check"), BROKEN_DECISIONS, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_decision_is_rejected(monkeypatch, broken, check):
    class Kit(InTarget, GuardConformance):
        pass

    assert failure(Kit, check) is None
    monkeypatch.setattr("fencelock._flows.guarding.admit", broken)
    assert failure(Kit, check) is not None


def test_a_tenure_that_forgets_that_it_has_read_is_rejected(monkeypatch):
    class Kit(InTarget, GuardConformance):
        pass

    monkeypatch.setattr("fencelock._api.credentials.Tenure", CarelessTenure)
    assert isinstance(failure(Kit, "test_a_guard_opened_after_another_was_read_is_refused"), AssertionError)


def test_a_guard_that_ignores_its_lock_is_rejected(monkeypatch):
    class Kit(InTarget, GuardConformance):
        pass

    for check in ("check_lock", "check_bound"):
        monkeypatch.setattr(f"fencelock._flows.guarding.{check}", lambda *_: None)
    monkeypatch.setattr("fencelock._flows.guarding.admit", admit_other_locks)
    assert isinstance(failure(Kit, "test_another_locks_lease_is_refused"), AssertionError)


def test_a_late_close_that_takes_the_mark_is_rejected(monkeypatch):
    class Kit(InTarget, GuardConformance):
        session_type = ClosingByAnybody

    monkeypatch.setattr("fencelock._flows.guarding._may_close", close_anything)
    assert failure(Kit, "test_closing_does_not_disturb_a_newer_holder") is not None


def test_a_break_that_spares_its_equal_is_rejected(monkeypatch):
    class Kit(InTarget, GuardConformance):
        pass

    monkeypatch.setattr("fencelock._flows.admin.admit", lambda *_, **__: None)
    assert isinstance(failure(Kit, "test_outranking_a_holder_of_the_same_token_is_a_collision"), AssertionError)


def test_every_check_rejects_some_broken_guard():
    checks = {name for name in dir(GuardConformance) if name.startswith("test_")}
    above = {
        "test_a_guard_opened_after_another_was_read_is_refused",
        CANCELLED,
        "test_another_locks_lease_is_refused",
        "test_closing_does_not_disturb_a_newer_holder",
        "test_outranking_a_holder_of_the_same_token_is_a_collision",
    }
    beside = {check for *_, check in (*BROKEN_GUARDS, *BROKEN_DECISIONS, *BROKEN_DECLARATIONS)}
    assert checks == above | beside


def test_failures_reports_each_failed_check():
    class Kit(Rig):
        def test_good(self):
            pass

        def test_bad(self):
            raise SourceError("no")

    assert {name: str(error) for name, error in failures(Kit).items()} == {"test_bad": "no"}
