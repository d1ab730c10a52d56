"""The sync handles, over a real file: they behave like threading's locks, and leases report their end."""

import copy
import gc
import logging
import pickle
import signal
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import fencelock
from fencelock._api.guard import inspect_resources
from fencelock._api.own_leases import OwnLeases
from fencelock._drivers.sync import SyncDriver
from fencelock._keeper.lifecycle import keeper
from fencelock._keeper.record import LeaseRecord
from fencelock.clock import boottime_ms
from tests.support.helpers import wait_until

pytestmark = pytest.mark.reduced

TTL = 30.0


def in_thread(function: Any) -> Any:
    """Run a function in another thread, and return its result."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return results[0]


@contextmanager
def locked_file(source: fencelock.Source) -> Iterator[None]:
    """Hold the file's write lock, like a process that is frozen inside a transaction."""
    path = source.url.removeprefix("sqlite:///")
    native = sqlite3.connect(path, isolation_level=None)
    native.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        native.execute("ROLLBACK")
        native.close()


def expire(lease: fencelock.Lease) -> None:
    """Let the deadline of a lease pass, for its holder."""
    lease._record.deadline_ms = boottime_ms() - 1


# --- acquire and release --------------------------------------------------------------------------
def test_acquire_returns_the_lease_and_release_ends_it(source: fencelock.Source) -> None:
    lock = source.lock("a", ttl=TTL)
    lease = lock.acquire()
    assert lease is not None
    assert lock.current is lease
    assert lease.is_valid
    lock.release()
    assert lock.current is None
    assert not lease.is_valid
    assert not lock.locked()


def test_acquire_without_blocking_is_none_when_somebody_holds_the_lock(source: fencelock.Source) -> None:
    holder, other = source.lock("a"), source.lock("a")
    holder.acquire()
    assert other.acquire(blocking=False) is None
    assert other.current is None
    assert source.info("a").waiters == ()
    holder.release()
    assert other.acquire(False) is not None
    other.release()


def test_acquire_with_a_timeout_is_none_when_it_passes(source: fencelock.Source) -> None:
    holder = source.lock("a")
    with holder:
        started = time.monotonic()
        assert source.lock("a").acquire(timeout=0.15) is None
        assert time.monotonic() - started >= 0.14
    assert source.info("a").waiters == ()


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_acquire_without_a_timeout_waits_though_the_handle_would_give_up(source: fencelock.Source, kind: str) -> None:
    with source.lock("a", ttl=TTL) as lease:
        waiter = getattr(source, kind)("a", ttl=TTL, timeout=0)
        assert waiter.acquire() is None
        timer = threading.Timer(0.1, lease.release)
        timer.start()
        assert waiter.acquire(timeout=None) is not None
        timer.join()
    waiter.release()
    with pytest.raises(ValueError, match="non-blocking"):
        waiter.acquire(blocking=False, timeout=None)


def test_a_timeout_of_zero_is_an_attempt(source: fencelock.Source) -> None:
    lock = source.lock("a")
    assert lock.acquire(timeout=0) is not None
    assert source.lock("a", timeout=0).acquire() is None
    lock.release()


def test_a_second_acquire_by_the_holder_waits_as_threading_does(source: fencelock.Source) -> None:
    lock = source.lock("a")
    lease = lock.acquire()
    assert lock.acquire(timeout=0.05) is None
    assert lock.current is lease
    lock.release()


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_releasing_what_is_not_held_is_a_runtime_error(source: fencelock.Source, kind: str) -> None:
    lock = getattr(source, kind)("a")
    with pytest.raises(RuntimeError, match=r"'a' cannot be released: this handle holds nothing") as raised:
        lock.release()
    assert isinstance(raised.value, fencelock.NotHeldError)
    with pytest.raises(fencelock.NotHeldError):
        lock.__exit__(None, None, None)


@pytest.mark.parametrize(("arguments", "error"), [((False, 1), ValueError), ((True, -2), ValueError)])
def test_wrong_arguments_are_refused_before_anything_happens(
    source: fencelock.Source, arguments: Any, error: type[Exception]
) -> None:
    for lock in (source.lock("a"), source.rlock("a")):
        with pytest.raises(error):
            lock.acquire(*arguments)
    with pytest.raises(OverflowError):
        source.lock("a").acquire(timeout=threading.TIMEOUT_MAX * 2)
    assert source.info("a").token is None


def test_a_handle_can_be_released_by_another_thread(source: fencelock.Source) -> None:
    lock = source.lock("a")
    lock.acquire()
    assert in_thread(lock.release) is True
    assert not lock.locked()


def test_locked_asks_the_source(source: fencelock.Source) -> None:
    mine, yours = source.lock("a"), source.lock("a")
    with yours:
        assert mine.locked()
        assert mine.current is None
    assert not mine.locked()


def test_the_handle_tells_its_terms_without_opening_anything(tmp_path: Any) -> None:
    source = fencelock.connect(f"sqlite:///{tmp_path / 'not-made.db'}")
    lock = source.lock("a", ttl=2.5, timeout=3)
    assert (lock.name, lock.ttl, lock.timeout) == ("a", 2.5, 3)
    assert repr(lock).startswith("<unlocked fencelock.Lock object 'a' at 0x")
    assert repr(source.rlock("a")).startswith("<unlocked fencelock.RLock object 'a' at 0x")
    assert not (tmp_path / "not-made.db").exists()


def test_repr_says_whether_this_handle_holds_the_lock(source: fencelock.Source) -> None:
    lock, rlock = source.lock("a"), source.rlock("b")
    lease = lock.acquire()
    rlock.acquire()
    assert repr(lock).startswith("<locked")
    assert repr(rlock).startswith("<locked")
    assert repr(lease) == "<Lease lock='a' token=1 held>"
    lock.release()
    rlock.release()
    assert repr(lock).startswith("<unlocked")
    assert repr(lease) == "<Lease lock='a' token=1 released>"


@pytest.mark.usefixtures("early_beats")
def test_after_the_source_is_closed_it_says_so_and_leases_are_still_kept(source: fencelock.Source) -> None:
    lock = source.lock("a", ttl=TTL)
    lease = lock.acquire()
    assert lease is not None
    source.close()
    with pytest.raises(fencelock.ConfigError, match="was closed: connect"):
        source.lock("b").acquire()
    first = lease.deadline_ms
    wait_until(lambda: lease.deadline_ms > first)
    assert lease.release()
    again = fencelock.connect(source.url)
    wait_until(lambda: not again.info("a").is_held)


# --- with -----------------------------------------------------------------------------------------
def test_with_yields_the_lease_and_releases_it(source: fencelock.Source) -> None:
    lock = source.lock("a")
    with lock as lease:
        assert isinstance(lease, fencelock.Lease)
        assert lock.current is None, "`current` belongs to acquire()"
    assert not lock.locked()


def test_with_raises_when_the_handles_timeout_passes(source: fencelock.Source) -> None:
    with source.lock("a"):
        with pytest.raises(fencelock.AcquireTimeoutError, match=r"'a' was not obtained within 0.05 s") as raised:
            source.lock("a", timeout=0.05).__enter__()
        assert isinstance(raised.value, TimeoutError)
        with pytest.raises(fencelock.AcquireTimeoutError):
            source.rlock("a", timeout=0).__enter__()


def test_with_releases_its_own_lease_and_no_other(source: fencelock.Source) -> None:
    """One handle, used by two threads: the second one came when the first one's lease was over."""
    lock = source.lock("a", ttl=TTL)
    entered, may_leave = threading.Event(), threading.Event()

    def overstay() -> None:
        with lock:
            entered.set()
            may_leave.wait(30)

    ends: list[Any] = []
    first = threading.Thread(target=lambda: ends.append(in_thread(overstay)))
    first.start()
    assert entered.wait(30)
    source.break_lock("a", reason="test")
    with lock as second:
        may_leave.set()
        first.join(30)
        assert isinstance(ends[0], fencelock.LeaseLostError)
        assert second.is_valid
        assert source.info("a").token == second.token
        assert source.info("a").is_held
    assert not lock.locked()


def test_a_handle_can_be_entered_again_by_the_same_thread_for_another_lease(source: fencelock.Source) -> None:
    lock = source.lock("a", ttl=TTL)
    with lock as outer:
        outer.release()
        with lock as inner:
            assert inner.token > outer.token
        assert not lock.locked()


def test_a_block_over_a_lease_that_was_released_by_hand_ends_well(source: fencelock.Source) -> None:
    with source.lock("a") as lease:
        assert lease.release()


# --- RLock ----------------------------------------------------------------------------------------
def test_re_entry_is_the_same_lease_and_costs_no_round_trip(
    source: fencelock.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = source.rlock("a")
    with lock as outer:
        monkeypatch.setattr(source, "take", None)
        with lock as inner:
            assert inner is outer
            assert lock.acquire() is outer
            lock.release()
        assert outer.is_valid
        assert lock.current is outer
    assert lock.current is None
    assert not outer.is_valid


def test_each_thread_has_a_holding_of_its_own(source: fencelock.Source) -> None:
    lock = source.rlock("a", ttl=TTL)
    with lock:
        assert in_thread(lambda: lock.current) is None
        assert in_thread(lambda: lock.acquire(blocking=False)) is None
        assert isinstance(in_thread(lock.release), fencelock.NotHeldError)
    assert isinstance(in_thread(lock.acquire), fencelock.Lease)


def test_two_rlock_handles_are_two_holders(source: fencelock.Source) -> None:
    with source.rlock("a"):
        assert source.rlock("a").acquire(blocking=False) is None


def test_after_a_loss_re_entry_raises_until_the_outer_frames_have_ended(source: fencelock.Source) -> None:
    lock = source.rlock("a", ttl=TTL)
    lease = lock.acquire()
    assert lease is not None
    expire(lease)
    for _ in range(2):
        with pytest.raises(fencelock.LeaseExpiredError):
            lock.acquire()
    lock.release()
    fresh = lock.acquire()
    assert fresh is not None
    assert fresh.token > lease.token
    lock.release()


def test_the_inner_block_raises_the_loss_too(source: fencelock.Source) -> None:
    """The code between the two ends must not go on as if it were protected (H3)."""
    lock = source.rlock("a", ttl=TTL)
    reached: list[str] = []

    def work() -> None:
        with lock as lease:
            with lock:
                expire(lease)
            reached.append("between")

    with pytest.raises(fencelock.LeaseExpiredError) as raised:
        work()
    assert reached == []
    assert not hasattr(raised.value, "__notes__"), "the same loss is told once"
    assert lock.current is None


def test_an_rlock_counts_frames_that_end_by_exceptions(source: fencelock.Source) -> None:
    lock = source.rlock("a")
    with lock as lease:
        with pytest.raises(KeyError), lock:
            raise KeyError
        assert lease.is_valid
    assert not lock.locked()


# --- Lease ----------------------------------------------------------------------------------------
def test_a_lease_tells_what_it_is(source: fencelock.Source) -> None:
    with source.lock("a", ttl=4.0, holder="me") as lease:
        assert (lease.lock, lease.holder, lease.ttl) == ("a", "me", 4.0)
        assert lease.token == 1
        assert 0 < lease.remaining() <= 3.6
        assert lease.deadline_ms > boottime_ms()
        assert not lease.is_inherited
        assert not lease.lost.is_set()
        lease.check_valid()
        assert (lease.sequencer.lock, lease.sequencer.token) == ("a", 1)


def test_release_is_idempotent_and_tells_whether_it_was_ours(source: fencelock.Source) -> None:
    lock = source.lock("a")
    lease = lock.acquire()
    assert lease is not None
    assert lease.release() is True
    assert lease.release() is False
    with lock as other:
        assert lease.release() is False
        assert other.is_valid
        assert source.info("a").is_held


def test_a_released_lease_says_so(source: fencelock.Source) -> None:
    lease = source.lock("a").acquire()
    assert lease is not None
    lease.release()
    assert lease.remaining() == 0
    assert not lease.lost.is_set(), "released is not lost"
    with pytest.raises(fencelock.LeaseReleasedError, match="token 1 was released before: acquire lock 'a' again"):
        lease.check_valid()
    assert lease.token == 1
    assert lease.sequencer.token == 1


def test_an_expired_lease_says_so_at_the_moment_of_asking(source: fencelock.Source) -> None:
    lease = source.lock("a").acquire()
    assert lease is not None
    expire(lease)
    assert lease.lost.is_set()
    assert not lease.is_valid
    assert lease.remaining() == 0
    with pytest.raises(fencelock.LeaseExpiredError, match=r"expired 0\.\d+ s ago, its ttl of 30 s"):
        lease.check_valid()
    assert lease.release() is False


@pytest.mark.usefixtures("early_beats")
def test_waiting_for_the_loss_ends_with_it(source: fencelock.Source) -> None:
    lease = source.lock("a", ttl=TTL).acquire()
    assert lease is not None
    assert lease.lost.wait(0.01) is False
    assert lease.lost.wait(-1) is False
    with pytest.raises(OverflowError, match=r"larger than threading.TIMEOUT_MAX"):
        lease.lost.wait(threading.TIMEOUT_MAX * 2)
    source.break_lock("a", reason="test")
    assert lease.lost.wait(30) is True
    assert lease.lost.wait() is True
    with pytest.raises(fencelock.LeaseLostError, match="broke it: test") as raised:
        lease.check_valid()
    assert raised.value.reason.endswith("broke it: test")


def test_waiting_for_the_loss_ends_with_the_release(source: fencelock.Source) -> None:
    lease = source.lock("a").acquire()
    assert lease is not None
    timer = threading.Timer(0.05, lease.release)
    timer.start()
    assert lease.lost.wait(30) is False
    timer.join()


@pytest.mark.parametrize("line", range(0, 24, 2))
def test_the_wait_for_the_loss_does_not_stand_in_the_way_of_a_signal_handler(
    source: fencelock.Source, line: int
) -> None:
    """The pattern of every service: wait for the loss, and release the lease on a signal, at any line."""
    lease = source.lock("a").acquire()
    assert lease is not None
    lines = iter(range(10**6))

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_code.co_name == "wait" and next(lines) == line:
            signal.raise_signal(signal.SIGUSR1)
        return trace

    before = signal.signal(signal.SIGUSR1, lambda number, frame: lease.release_soon())
    tracer = sys.gettrace()  # That of a measurement of coverage, for one.
    try:
        sys.settrace(trace)
        assert lease.lost.wait(0.1) is False
    finally:
        sys.settrace(tracer)
        signal.signal(signal.SIGUSR1, before)
    assert lease.is_valid is (next(lines) <= line)
    lease.release()


def test_release_soon_ends_the_lease_at_once_and_tells_the_source_later(source: fencelock.Source) -> None:
    lock = source.lock("a", ttl=TTL)
    lease = lock.acquire()
    assert lease is not None
    lease.release_soon()
    assert not lease.is_valid
    lease.release_soon()
    wait_until(lambda: not lock.locked())


def test_a_release_that_the_source_cannot_be_told_of_is_done_in_the_background(
    source: fencelock.Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    impatient(source, monkeypatch)
    lock = source.lock("a", ttl=TTL)
    lease = lock.acquire()
    assert lease is not None
    with locked_file(source), caplog.at_level(logging.WARNING, logger="fencelock"):
        assert lease.release() is True
        assert "lock 'a' is released in the background" in caplog.text
    wait_until(lambda: not lock.locked())


def impatient(source: fencelock.Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time that the source's callers wait for a locked file."""
    monkeypatch.setattr(source, "_driver", SyncDriver(source._store, request_timeout_s=0.05))


def test_an_acquire_on_a_locked_file_is_unavailable_and_leaves_nothing_behind(
    source: fencelock.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.install()
    impatient(source, monkeypatch)
    lock = source.lock("a", ttl=TTL)
    with locked_file(source):
        with pytest.raises(fencelock.SourceUnavailableError, match="locked by another connection") as raised:
            lock.acquire()
        assert raised.value.definite
    with source.lock("a", timeout=10):
        pass


def test_a_lease_that_nobody_holds_any_more_is_abandoned(source: fencelock.Source) -> None:
    lease = source.lock("a", ttl=TTL).acquire()
    is_alive = weakref.ref(lease)
    del lease
    gc.collect()
    assert is_alive() is None
    wait_until(lambda: not source.info("a").is_held)


@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda attempt: attempt.__name__)
def test_what_has_leases_or_connections_is_neither_copied_nor_pickled(
    source: fencelock.Source, attempt: Callable[[object], object]
) -> None:
    """A copy of a lease that was dropped once ended the lease."""
    with source.lock("a") as lease:
        guard = fencelock.guard(source.url, resource="r", lock="a")
        for one, remedy in (
            (lease, "send its sequencer to other processes"),
            (source.lock("a"), "Make another handle"),
            (source.rlock("a"), "Make another handle"),
            (source, r"call connect\(\) in other processes"),
            (guard, "make another one in other processes"),
            (lease.lost, "belongs to its lease"),
            (guard.transaction(lease), "Make another one for each transaction"),
        ):
            refusal = f"^{type(one).__name__} objects cannot be copied or pickled: .*{remedy}"
            with pytest.raises(TypeError, match=refusal):
                attempt(one)
        gc.collect()
        assert lease.is_valid
        assert source.info("a").is_held


@pytest.mark.parametrize(
    "attempt",
    [
        lambda source, _: source.lock("b").acquire(timeout="5"),
        lambda source, _: source.rlock("b").acquire(timeout="5"),
        lambda _, lease: lease.lost.wait("5"),
        lambda source, _: fencelock.connect(source.url, hooks="on_lost"),
        lambda source, _: fencelock.guard(source.url, resource="r", lock="a", hooks="on_lost"),
        lambda source, _: fencelock.guard(source.url, resources=5, lock="a"),
        lambda source, _: inspect_resources(source.url, 5),
    ],
)
def test_an_argument_of_another_type_is_a_config_error(
    source: fencelock.Source, attempt: Callable[[fencelock.Source, fencelock.Lease], object]
) -> None:
    with source.lock("a") as lease, pytest.raises(fencelock.ConfigError, match="not "):
        attempt(source, lease)


# --- with lease -----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_a_block_over_a_lease_releases_it(source: fencelock.Source, kind: str) -> None:
    with getattr(source, kind)("a", ttl=TTL).acquire() as lease:
        assert lease.is_valid
        assert source.info("a").is_held
    assert not source.info("a").is_held
    with pytest.raises(fencelock.LeaseReleasedError), lease:
        raise AssertionError


def test_a_block_over_a_lease_raises_its_loss(source: fencelock.Source) -> None:
    def work(error: Exception | None) -> None:
        lock = source.lock("a", ttl=TTL)
        if lease := lock.acquire(blocking=False):
            with lease:
                source.break_lock("a", reason="test")
                if error is not None:
                    raise error

    with pytest.raises(fencelock.LeaseLostError):
        work(None)
    with pytest.raises(KeyError) as raised:
        work(KeyError())
    assert "was lost" in raised.value.__notes__[0]


def test_a_block_over_a_lease_that_is_over_does_not_begin(source: fencelock.Source) -> None:
    lease = source.lock("a", ttl=TTL).acquire()
    assert lease is not None
    expire(lease)
    with pytest.raises(fencelock.LeaseExpiredError), lease:
        raise AssertionError


# --- on_lost --------------------------------------------------------------------------------------
@pytest.mark.usefixtures("early_beats")
def test_on_lost_runs_once_with_the_reason(source: fencelock.Source) -> None:
    reasons: list[str] = []
    lease = source.lock("a", ttl=TTL, on_lost=reasons.append).acquire()
    assert lease is not None
    source.break_lock("a", reason="test")
    wait_until(lambda: reasons)
    lease.release()
    assert len(reasons) == 1
    assert reasons[0].endswith("broke it: test")


def test_on_lost_does_not_run_for_a_lease_that_was_released(source: fencelock.Source) -> None:
    reasons: list[str] = []
    heard = threading.Event()
    with source.lock("a", ttl=0.9, on_lost=reasons.append):  # It would be over before the first beat of the other one.
        pass
    other = source.lock("b", ttl=3.0, on_lost=lambda reason: heard.set()).acquire()
    source.break_lock("b", reason="test")
    assert heard.wait(30)
    assert reasons == []
    del other


def test_on_lost_runs_for_a_lease_that_its_holder_released_too_late(source: fencelock.Source) -> None:
    """The holder may wake from a freeze before the keeper does: it is told all the same."""
    reasons: list[str] = []
    lock = source.lock("a", ttl=TTL, on_lost=reasons.append)
    with pytest.raises(fencelock.LeaseExpiredError), lock as lease:
        expire(lease)
    wait_until(lambda: reasons)
    lease = lock.acquire()
    assert lease is not None
    expire(lease)
    lease.release_soon()
    wait_until(lambda: len(reasons) == 2)


def test_an_owner_with_a_callback_of_its_own_is_collected_with_its_lease(source: fencelock.Source) -> None:
    class Worker:
        def __init__(self) -> None:
            self.source = fencelock.connect(source.url, hooks=fencelock.Hooks(on_lost=self.told))
            self.lease = self.source.lock("a", ttl=TTL, on_lost=self.on_lost).acquire()

        def told(self, event: fencelock.Event) -> None:
            raise AssertionError

        def on_lost(self, reason: str) -> None:
            raise AssertionError

    worker = Worker()
    is_alive = weakref.ref(worker)
    del worker
    gc.collect()
    assert is_alive() is None
    wait_until(lambda: not source.info("a").is_held)


# --- what goes wrong at the last moment -----------------------------------------------------------
@pytest.mark.usefixtures("early_beats")
def test_a_hook_that_ends_the_program_leaves_no_lease_behind(source: fencelock.Source) -> None:
    reasons: list[str] = []

    def leave(event: fencelock.Event) -> None:
        raise SystemExit(3)

    hooked = fencelock.connect(source.url, hooks=fencelock.Hooks(on_acquired=leave))
    with pytest.raises(SystemExit) as raised:
        hooked.lock("a", ttl=TTL, on_lost=reasons.append).acquire()
    wait_until(lambda: not source.info("a").is_held)
    # The traceback keeps the frames of the acquire alive, and what is in them; nobody is told that it was lost.
    assert raised.value.code == 3
    with source.lock("b", ttl=TTL) as lease:
        first = lease.deadline_ms
        wait_until(lambda: lease.deadline_ms > first)
    assert reasons == []


@pytest.mark.parametrize(
    ("kind", "way"),
    [("lock", "with lock"), ("rlock", "with lock"), ("lock", "release"), ("rlock", "release"), ("lock", "with lease")],
)
@pytest.mark.parametrize("moment", ["check_own", "remaining_ms", "begin_release", "leave_held"])
def test_a_release_that_is_interrupted_anywhere_is_done_by_the_keeper(
    source: fencelock.Source, monkeypatch: pytest.MonkeyPatch, kind: str, moment: str, way: str
) -> None:
    lock = getattr(source, kind)("a", ttl=TTL)
    lease = lock.__enter__() if way == "with lock" else lock.acquire()
    ends = {
        "with lock": lambda: lock.__exit__(None, None, None),
        "release": lock.release,
        "with lease": lambda: lease.__exit__(None, None, None),
    }
    interrupt_once(monkeypatch, moment)
    with pytest.raises(KeyboardInterrupt):
        ends[way]()
    wait_until(lambda: not source.info("a").is_held)
    assert not lease.is_valid
    with lock as again:
        assert again.token > lease.token


@pytest.mark.parametrize("moment", ["begin_release", "leave_held"])
def test_a_release_that_comes_too_late_and_is_interrupted_is_told_as_a_loss(
    source: fencelock.Source, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    reasons: list[str] = []
    lease = source.lock("a", ttl=TTL, on_lost=reasons.append).acquire()
    assert lease is not None
    lease._record.deadline_ms = 0
    interrupt_once(monkeypatch, moment)
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    wait_until(lambda: reasons)
    assert len(reasons) == 1


@pytest.mark.parametrize(("end", "moment"), [("__exit__", "innermost_block"), ("release", "newest")])
def test_a_release_that_is_interrupted_in_search_of_its_lease_is_done_by_the_keeper(
    source: fencelock.Source, monkeypatch: pytest.MonkeyPatch, end: str, moment: str
) -> None:
    lock = source.lock("a", ttl=TTL)
    lease = lock.__enter__() if end == "__exit__" else lock.acquire()
    search = getattr(OwnLeases, moment)

    def interrupted(own: OwnLeases[fencelock.Lease]) -> None:
        monkeypatch.setattr(OwnLeases, moment, search)
        raise KeyboardInterrupt

    monkeypatch.setattr(OwnLeases, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.__exit__(None, None, None) if end == "__exit__" else lock.release()
    assert lease is not None
    assert not lease.is_valid
    wait_until(lambda: not source.info("a").is_held)
    with pytest.raises(fencelock.NotHeldError):
        lock.release()


def interrupt_once(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Interrupt the next call of a record's method after its work, like a signal handler that raises."""
    original = getattr(LeaseRecord, moment)

    def interrupted(self: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(LeaseRecord, moment, original)
        original(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(LeaseRecord, moment, interrupted)


@pytest.mark.usefixtures("early_beats")
def test_the_keeper_serves_every_source_of_the_process(source: fencelock.Source, tmp_path: Any) -> None:
    other = fencelock.connect(f"sqlite:///{tmp_path / 'other.db'}")
    with source.lock("a", ttl=TTL) as first, other.lock("a", ttl=TTL) as second:
        deadlines = first.deadline_ms, second.deadline_ms
        wait_until(lambda: first.deadline_ms > deadlines[0] and second.deadline_ms > deadlines[1])
        assert first.token == second.token == 1
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("fencelock-keeper") >= 1
        assert keeper()._background.is_running
