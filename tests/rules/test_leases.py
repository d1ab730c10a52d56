"""The rules of leases and holders, H1 to H9, each on the real store; their names begin with the rule.

Tests with frozen, killed or forked processes are in `tests/process`, tests with a stopped clock in `tests/unit`.
"""

import asyncio
import gc
import inspect
import logging
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock._api.own_leases import MAX_OWN_LEASES
from fencelock._drivers.pool import Pool
from fencelock._drivers.sync import SyncDriver
from fencelock._flows.acquire import margin_ms
from fencelock.clock import boottime_ms, boottime_us
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.source.store import SQLiteSourceConnection
from fencelock.testing import lose
from tests.process.actors import Stage
from tests.support.helpers import wait_until
from tests.support.losses_at_release import LossesAtRelease
from tests.support.sources import LONG_MS, Client, rows

pytestmark = pytest.mark.reduced

TTL = 30.0
SHORT_MS = 150


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file that `source` and `stage` use."""
    return tmp_path / "locks.db"


@pytest.fixture
def client(path: Path) -> Iterator[Client]:
    the_client = Client(path)
    yield the_client
    the_client.close()


@pytest.fixture
def other(path: Path) -> Iterator[Client]:
    """Another process's view of the same file."""
    the_client = Client(path)
    yield the_client
    the_client.close()


@contextmanager
def locked_file(client: Client) -> Iterator[None]:
    """Hold the file's write lock, as a process does that is frozen inside a transaction."""
    database = client.connection.database
    database.begin()
    try:
        yield
    finally:
        database.rollback()


def expire(lease: fencelock.Lease) -> None:
    """Let the holder's own deadline of a lease pass."""
    lease._record.deadline_ms = boottime_ms() - 1


def in_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a thread that ends with it."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result(30)


def deadline_at_source(path: Path, lock: str = "lock") -> int:
    """Return the source's deadline of the lease."""
    ((deadline_ms,),) = rows(path, "SELECT deadline_ms FROM fencelock_lock WHERE name = ?", (lock,))
    return deadline_ms


def until_expired(path: Path, lock: str = "lock") -> None:
    wait_until(lambda: boottime_ms() > deadline_at_source(path, lock))


# --- H1: whose clock, and when it is read ---------------------------------------------------------
def test_h1_a_renewal_that_waited_for_the_file_past_the_expiry_is_refused(
    client: Client, other: Client, path: Path
) -> None:
    """The clock is read under the write lock: an earlier reading would show a running lease."""
    claim = draw_claim()
    client.token("lock", claim, ttl_ms=SHORT_MS)
    other.describe()
    with ThreadPoolExecutor(1) as executor:
        with locked_file(other):
            renewal = executor.submit(client.ask, ask.Renew((("lock", claim),)))
            until_expired(path)
            assert not renewal.done()
        reply = renewal.result(30)
    assert reply == ask.Renewed({}, {claim: "it expired at the source before it was renewed"})


def test_h1_an_acquire_that_waited_for_the_file_past_the_expiry_is_granted(
    client: Client, other: Client, path: Path
) -> None:
    first = other.token("lock", ttl_ms=SHORT_MS)
    client.describe()
    with ThreadPoolExecutor(1) as executor:
        with locked_file(other):
            acquire = executor.submit(client.acquire)
            until_expired(path)
            assert not acquire.done()
        assert acquire.result(30).token > first


def test_h1_a_time_left_greater_than_the_ttl_counts_as_the_ttl(client: Client, path: Path) -> None:
    claim, born_us = draw_claim(), boottime_us()
    client.acquire("lock", claim, ttl_ms=10_000, born_us=born_us)
    rows(path, "UPDATE fencelock_lock SET deadline_ms = deadline_ms + 3600000")
    assert client.ask(ask.Inspect("lock")).remaining == 10.0
    assert client.acquire("lock", claim, ttl_ms=10_000, born_us=born_us).remaining_ms == 10_000


@pytest.mark.usefixtures("early_beats")
def test_h1_the_holders_deadline_is_before_the_sources_by_the_margin(source: fencelock.Source, path: Path) -> None:
    with source.lock("lock", ttl=TTL) as lease:
        margin = margin_ms(int(TTL * 1000))
        assert lease.deadline_ms <= deadline_at_source(path) - margin
        first = lease.deadline_ms
        wait_until(lambda: lease.deadline_ms > first)
        assert lease.deadline_ms <= deadline_at_source(path) - margin


def test_h1_the_clock_counts_suspend() -> None:
    assert abs(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 - boottime_ms()) < 10_000


def test_h1_the_deadline_is_compared_at_the_moment_of_asking(source: fencelock.Source) -> None:
    lease = source.lock("lock", ttl=TTL).acquire()
    assert lease is not None
    assert lease.is_valid
    expire(lease)
    assert not lease.is_valid
    assert lease.lost.is_set()
    with pytest.raises(fencelock.LeaseExpiredError):
        lease.check_valid()


# --- H2: the keeper -------------------------------------------------------------------------------
@pytest.mark.usefixtures("early_beats")
def test_h2_a_held_lease_is_renewed_and_keeps_its_token(source: fencelock.Source) -> None:
    with source.lock("lock", ttl=2.4) as lease:
        token, end = lease.token, time.monotonic() + 2.5
        while time.monotonic() < end:
            assert source.lock("lock").acquire(blocking=False) is None
            time.sleep(0.02)
        assert lease.is_valid
        assert lease.token == token == source.info("lock").token


@pytest.mark.usefixtures("early_beats")
def test_h2_a_definite_no_is_a_loss(source: fencelock.Source) -> None:
    def work() -> None:
        with source.lock("lock", ttl=TTL) as lease:
            source.break_lock("lock", reason="test")
            assert lease.lost.wait(30)

    with pytest.raises(fencelock.LeaseLostError, match="broke it: test"):
        work()


@pytest.mark.usefixtures("early_beats")
def test_h2_an_outage_that_ends_before_the_deadline_loses_nothing(
    source: fencelock.Source, other: Client, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The keeper retries: it misses three beats, and the lease still exists."""

    def missed() -> int:
        return sum("could not be renewed now" in text and str(path) in text for text in caplog.messages)

    lost: list[str] = []
    with source.lock("lock", ttl=TTL, on_lost=lost.append) as lease:
        with locked_file(other):
            wait_until(lambda: missed() >= 3)
            assert lease.is_valid
            before = lease.deadline_ms
        wait_until(lambda: lease.deadline_ms > before)
    assert lost == []


def test_h2_an_outage_past_the_deadline_ends_the_lease_for_good(
    source: fencelock.Source, other: Client, path: Path
) -> None:
    """If the source still has the lease when it is back, or renews it late, the lease is released, not revived."""
    lost: list[str] = []
    lock = source.lock("lock", ttl=1.0, on_lost=lost.append)
    lease = lock.acquire()
    assert lease is not None
    with locked_file(other):
        # A process that is stopped inside its transaction keeps the file's clock from mattering.
        wait_until(lambda: lost)
        assert not lease.is_valid
        other.connection.database.execute("UPDATE fencelock_lock SET deadline_ms = deadline_ms + 60000")
        other.connection.database.commit()
        other.connection.database.begin()
    assert lost == ["its deadline passed without word from the source"]
    wait_until(lambda: not source.info("lock").is_held)
    assert not lease.is_valid
    with pytest.raises(fencelock.LeaseExpiredError):
        lease.check_valid()


@pytest.mark.usefixtures("early_beats")
def test_h2_all_leases_of_a_source_are_renewed_by_one_request(
    source: fencelock.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    perform = SQLiteSourceConnection.perform

    def counting(self: Any, request: Any) -> Any:
        if isinstance(request, ask.Renew):
            batches.append(len(request.leases))
        return perform(self, request)

    monkeypatch.setattr(SQLiteSourceConnection, "perform", counting)
    leases = [source.lock(f"lock{number}", ttl=TTL).acquire() for number in range(50)]
    # A beat that comes meanwhile renews those that are there.
    wait_until(lambda: 50 in batches)
    assert all(lease is not None and lease.release() for lease in leases)


def test_h2_a_collected_lease_is_abandoned(source: fencelock.Source) -> None:
    source.lock("lock", ttl=TTL).acquire()
    gc.collect()
    with source.lock("lock", timeout=10):
        pass


@pytest.mark.parametrize("kind", ["lock", "rlock"])
@pytest.mark.parametrize("connect", [fencelock.connect, fencelock.aio.connect], ids=["sync", "async"])
def test_h2_a_dropped_lease_does_not_wait_for_the_collector(
    path: Path, connect: Callable[[str], Any], kind: str
) -> None:
    async def acquired(lease: Any) -> Any:
        return await lease if inspect.isawaitable(lease) else lease

    gc.disable()
    try:
        assert asyncio.run(acquired(getattr(connect(f"sqlite:///{path}"), kind)("lock", ttl=TTL).acquire())) is not None
        with fencelock.connect(f"sqlite:///{path}") as source, source.lock("lock", timeout=10):
            pass
    finally:
        gc.enable()


# --- H3: loss stops the work ----------------------------------------------------------------------
def test_h3_a_good_body_ends_in_the_loss(source: fencelock.Source) -> None:
    with pytest.raises(fencelock.LeaseExpiredError, match="Stop writing"), source.lock("lock", ttl=TTL) as lease:
        expire(lease)


@pytest.mark.parametrize("error", [KeyError(), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_h3_the_bodys_own_exception_passes_with_a_note(
    source: fencelock.Source, kind: str, error: BaseException
) -> None:
    def work() -> None:
        with getattr(source, kind)("lock", ttl=TTL) as lease:
            expire(lease)
            raise error

    with pytest.raises(type(error)) as raised:
        work()
    assert raised.value is error
    (note,) = raised.value.__notes__
    assert note.startswith("fencelock: the lease on lock 'lock' with token 1 expired")
    del error.__notes__


@pytest.mark.usefixtures("early_beats")
@pytest.mark.parametrize("ending", ["expired", "lost"])
def test_h3_on_lost_runs_on_expiry_and_loss_alike(source: fencelock.Source, ending: str) -> None:
    lost: list[str] = []
    lease = source.lock("lock", ttl=TTL, on_lost=lost.append).acquire()
    assert lease is not None
    if ending == "lost":
        source.break_lock("lock", reason="test")
    else:
        expire(lease)
    wait_until(lambda: lost)
    assert lease.lost.is_set()
    assert isinstance(lease._record.problem(), fencelock.LeaseLostError if ending == "lost" else fencelock.LeaseError)


def test_h3_a_failed_release_after_a_good_body_is_logged_and_hooked(
    path: Path, other: Client, caplog: pytest.LogCaptureFixture
) -> None:
    released: list[fencelock.Event] = []
    source = fencelock.connect(f"sqlite:///{path}", hooks=fencelock.Hooks(on_released=released.append))
    source._driver = SyncDriver(source._store, request_timeout_s=0.05)
    with caplog.at_level(logging.WARNING, logger="fencelock"):
        lock = source.lock("lock", ttl=TTL)
        lock.__enter__()
        with locked_file(other):
            lock.__exit__(None, None, None)
    assert "released in the background" in caplog.text
    assert "locked by another connection" in (released[0].reason or "")
    wait_until(lambda: not source.info("lock").is_held)


class TestLossesAtRelease(LossesAtRelease):
    @pytest.fixture(params=["sqlite", "memory"])
    def installed_url(self, request: pytest.FixtureRequest, path: Path) -> str:
        return f"sqlite:///{path}" if request.param == "sqlite" else f"memory://{draw_claim()}"


def test_h3_the_bodys_own_exception_passes_with_a_note_of_the_loss_that_the_release_finds(
    source: fencelock.Source,
) -> None:
    error = KeyError()

    def work() -> None:
        with source.lock("lock", ttl=TTL):
            source.break_lock("lock", reason="test")
            raise error

    with pytest.raises(KeyError) as raised:
        work()
    assert raised.value is error
    (note,) = error.__notes__
    assert note.startswith("fencelock: the lease on lock 'lock' with token 1 was lost: the source had ended it before")


@pytest.mark.parametrize("is_taken", [False, True])
def test_h3_a_loss_that_the_release_finds_is_announced_once(path: Path, is_taken: bool) -> None:
    """Also if the program drops the lease at once; and it is no release."""
    told: list[str] = []
    events: list[fencelock.Event] = []
    hooks = fencelock.Hooks(on_lost=events.append, on_released=events.append)
    with fencelock.connect(f"sqlite:///{path}") as other, fencelock.connect(f"sqlite:///{path}", hooks=hooks) as source:
        lock = source.lock("lock", ttl=TTL, on_lost=told.append)
        lock.acquire()
        other.break_lock("lock", reason="test")
        successor = other.lock("lock", ttl=TTL, holder="the next one").acquire() if is_taken else None
        assert lock.release() is False
        gc.collect()
        wait_until(lambda: events)
        now = "with token 3, the next one holds" if is_taken else "nobody holds"
        assert told == [f"the source had ended it before it was released; {now} the lock now"]
        assert [(event.name, event.token, event.reason) for event in events] == [("lost", 1, told[0])]
        assert other.info("lock").is_held is is_taken
        del successor


def test_h3_a_loss_that_a_release_by_hand_finds_ends_the_block_too(source: fencelock.Source) -> None:
    def work() -> None:
        with source.lock("lock", ttl=TTL) as lease:
            source.break_lock("lock", reason="test")
            assert lease.release() is False
            assert lease.lost.is_set()

    with pytest.raises(fencelock.LeaseLostError, match="ended it before"):
        work()


def test_h3_a_loss_that_a_release_in_the_background_finds_is_announced(source: fencelock.Source) -> None:
    told: list[str] = []
    lease = source.lock("lock", ttl=TTL, on_lost=told.append).acquire()
    assert lease is not None
    source.break_lock("lock", reason="test")
    lease.release_soon()
    wait_until(lambda: told)
    assert lease.lost.is_set()


# --- H4: keyed by the claim -----------------------------------------------------------------------
def test_h4_release_is_idempotent_and_never_frees_another_holders_lock(client: Client, other: Client) -> None:
    mine, yours = draw_claim(), draw_claim()
    client.token("lock", mine)
    assert client.release("lock", mine) is True
    other.token("lock", yours)
    assert client.release("lock", mine) is False
    assert isinstance(client.acquire(), ask.Busy)
    assert other.release("lock", yours) is True


def test_h4_a_duplicate_of_an_acquire_after_its_release_is_refused(client: Client) -> None:
    client.one_token()
    claim, born_us = draw_claim(), boottime_us()
    assert isinstance(client.acquire("lock", claim, born_us=born_us), ask.Granted)
    client.release("lock", claim)
    assert isinstance(client.acquire("lock", claim, born_us=born_us), ask.ClaimEnded)
    assert isinstance(client.acquire("lock", claim, born_us=born_us, may_wait=True), ask.ClaimEnded)


def test_h4_a_release_that_overtakes_its_acquire_ends_it(client: Client) -> None:
    claim, born_us = draw_claim(), boottime_us()
    assert client.release("lock", claim) is False
    assert isinstance(client.acquire("lock", claim, born_us=born_us), ask.ClaimEnded)
    assert isinstance(client.acquire(), ask.Granted)


def test_h4_a_release_ends_a_claim_that_is_granted_meanwhile(
    client: Client, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled task's poll is still running in its thread when the keeper abandons its claim."""
    holder, waiting = draw_claim(), draw_claim()
    other.token("lock", holder)
    assert isinstance(other.acquire("lock", waiting, may_wait=True), ask.Queued)
    database = client.connection.database
    transact = database.transact

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(database, "transact", transact)
        other.release("lock", holder)
        assert isinstance(other.ask(ask.Poll("lock", waiting)), ask.Granted)
        return transact(*arguments, **options)

    client.describe()
    monkeypatch.setattr(database, "transact", meanwhile)
    client.release("lock", waiting)
    assert isinstance(client.acquire(), ask.Granted)


class Worker:
    """A thread that uses a handle when it is told to, and lives as long as the test."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor

    def do(self, call: Callable[..., Any], **arguments: Any) -> Any:
        return self._executor.submit(call, **arguments).result(30)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        yield [Worker(one), Worker(two)]


@pytest.mark.parametrize("ending", ["lost", "expired", "broken unseen"])
def test_h4_release_ends_the_threads_own_lease_though_it_is_over(
    source: fencelock.Source, workers: list[Worker], ending: str
) -> None:
    """A frozen holder's `finally: lock.release()` once freed the lock of the thread that came after it."""
    lock = source.lock("lock", ttl=TTL)
    first, second = workers
    old = first.do(lock.acquire)
    if ending == "expired":
        expire(old)
        wait_until(lambda: not source.info("lock").is_held)
    else:
        source.break_lock("lock", reason="test")
    if ending == "lost":
        lose(old)
    new = second.do(lock.acquire)
    assert lock.current is new
    assert first.do(lock.release) is False
    assert new.is_valid
    assert source.info("lock").token == new.token
    assert source.info("lock").is_held
    assert lock.current is new
    assert second.do(lock.release) is True


def test_h4_release_in_a_block_ends_the_blocks_lease(source: fencelock.Source, workers: list[Worker]) -> None:
    lock = source.lock("lock", ttl=TTL)
    first, second = workers
    first.do(lock.__enter__)
    source.break_lock("lock", reason="test")
    new = second.do(lock.acquire)
    assert first.do(lock.release) is False
    assert new.is_valid
    with pytest.raises(fencelock.LeaseLostError):
        first.do(lambda: lock.__exit__(None, None, None))
    assert second.do(lock.release) is True


def test_h4_a_block_that_ends_in_another_thread_ends_its_own_lease(
    source: fencelock.Source, workers: list[Worker]
) -> None:
    """Frameworks close a generator, and the block in it, in any thread of their pool."""
    lock = source.lock("lock", ttl=TTL)
    first, second = workers
    for _ in range(2):
        lease = first.do(lock.__enter__)
        second.do(lambda: lock.__exit__(None, None, None))
        with pytest.raises(fencelock.LeaseReleasedError):
            lease.check_valid()
        assert not source.info("lock").is_held
    with pytest.raises(fencelock.NotHeldError, match="acquire it first"):
        first.do(lambda: lock.__exit__(None, None, None))


def test_h4_a_thread_that_entered_no_block_ends_none_of_several(
    source: fencelock.Source, workers: list[Worker]
) -> None:
    lock = source.lock("lock", ttl=TTL)
    first, second = workers
    first.do(lock.__enter__)
    source.break_lock("lock", reason="test")
    new = second.do(lock.__enter__)
    with pytest.raises(fencelock.NotHeldError, match=r"2 others have\. Enter the lease itself"):
        lock.__exit__(None, None, None)
    assert new.is_valid
    with pytest.raises(fencelock.LeaseLostError):
        first.do(lambda: lock.__exit__(None, None, None))
    lock.__exit__(None, None, None)
    assert not source.info("lock").is_held


def test_h4_each_release_of_a_thread_ends_a_lease_of_its_own(source: fencelock.Source, workers: list[Worker]) -> None:
    """Two frames of one thread: the inner one's lease came after the outer one's was broken."""
    lock = source.lock("lock", ttl=TTL)
    first, second = workers
    for _ in range(2):
        first.do(lock.acquire)
        source.break_lock("lock", reason="test")
    new = second.do(lock.acquire)
    assert first.do(lock.release) is False
    assert first.do(lock.release) is False
    assert new.is_valid
    assert first.do(lock.release) is True, "it has none of its own now, and ends the last one acquired"
    assert not source.info("lock").is_held


def test_h4_a_released_lease_is_nobodys_own(source: fencelock.Source, workers: list[Worker]) -> None:
    """Two threads of a pool, crosswise: no lease is renewed for ever."""
    lock = source.lock("lock", ttl=TTL)
    first, second = workers
    for one, other in ((first, second), (second, first), (first, first), (first, second)):
        assert one.do(lock.acquire, timeout=10) is not None
        assert other.do(lock.release) is True
        assert not source.info("lock").is_held
    with pytest.raises(fencelock.NotHeldError):
        first.do(lock.release)


def test_h4_acquire_and_release_in_threads_of_a_pool_leave_no_lease(source: fencelock.Source) -> None:
    async def work() -> None:
        lock = source.lock("lock", ttl=TTL)
        for _ in range(20):
            assert await asyncio.to_thread(lock.acquire, timeout=10) is not None
            await asyncio.gather(*(asyncio.to_thread(source.info, "lock") for _ in range(2)))
            assert await asyncio.to_thread(lock.release) is True
            assert not source.info("lock").is_held

    asyncio.run(work())


def test_h4_a_new_thread_has_nothing_of_one_that_ended(source: fencelock.Source) -> None:
    """Though it may get its number: threads are told apart by themselves. And the handle forgets what they had."""
    lock = source.lock("lock", ttl=TTL)
    old = weakref.ref(in_thread(lock.acquire))
    source.break_lock("lock", reason="test")
    new = lock.acquire()
    gc.collect()
    assert old() is None
    assert in_thread(lock.release) is True
    assert new is not None
    assert not new.is_valid


def test_h4_a_handle_remembers_a_limited_number_of_leases(source: fencelock.Source) -> None:
    """A loop that never releases what it has lost."""
    lock = source.lock("lock", ttl=TTL)
    leases = []
    for _ in range(MAX_OWN_LEASES + 5):
        leases.append(weakref.ref(lock.acquire()))
        source.break_lock("lock", reason="test")
    gc.collect()
    remembered = [lease for one in leases if (lease := one()) is not None]
    assert len(remembered) == MAX_OWN_LEASES
    assert {lease.release() for lease in remembered} == {False}


async def in_task(work: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.create_task(work)


@pytest.mark.asyncio
async def test_h4_release_ends_the_tasks_own_lease_though_it_is_over(path: Path) -> None:
    async with fencelock.aio.connect(f"sqlite:///{path}") as source:
        lock = source.lock("lock", ttl=TTL)
        is_broken, has_released = asyncio.Event(), asyncio.Event()

        async def first() -> bool:
            await lock.acquire()
            await source.break_lock("lock", reason="test")
            is_broken.set()
            await has_acquired.wait()
            is_ours = await lock.release()
            has_released.set()
            return is_ours

        async def second() -> bool:
            await is_broken.wait()
            lease = await lock.acquire()
            has_acquired.set()
            await has_released.wait()
            assert lease is not None
            assert lease.is_valid
            assert (await source.info("lock")).is_held
            return await lock.release()

        has_acquired = asyncio.Event()
        assert await asyncio.gather(first(), second()) == [False, True]
        assert not await lock.locked()


@pytest.mark.asyncio
async def test_h4_a_released_lease_is_no_tasks_own(path: Path) -> None:
    async with fencelock.aio.connect(f"sqlite:///{path}") as source:
        lock = source.lock("lock", ttl=TTL)
        await lock.acquire()
        assert await in_task(lock.release()) is True
        assert await in_task(lock.acquire()) is not None
        assert await lock.release() is True
        with pytest.raises(fencelock.NotHeldError):
            await lock.release()


# --- H5: no orphan --------------------------------------------------------------------------------
@pytest.fixture
def lost_replies(source: fencelock.Source, monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """Lose the reply to each of these requests, after the source has executed it."""
    with source.lock("lock"):
        pass  # A block of tokens is reserved now.
    losing: list[type] = []
    perform = Pool.perform

    def losing_replies(self: Any, request: Any) -> Any:
        reply = perform(self, request)
        if type(request) in losing:
            losing.remove(type(request))
            raise fencelock.OutcomeUnknownError("the reply never came")
        return reply

    monkeypatch.setattr(Pool, "perform", losing_replies)
    return losing


@pytest.mark.parametrize("times", [1, 2])
def test_h5_a_lost_reply_to_an_acquire_costs_nothing(
    source: fencelock.Source, lost_replies: list[type], times: int
) -> None:
    """The repeated request is answered as the first one was: one token, one lease."""
    lost_replies += [ask.Acquire] * times
    with source.lock("lock", ttl=TTL) as lease:
        assert lease.token == 2 == source.info("lock").token
    assert not source.info("lock").is_held


def test_h5_replies_that_are_lost_again_and_again_leave_no_orphan(
    source: fencelock.Source, lost_replies: list[type]
) -> None:
    lost_replies += [ask.Acquire] * 3
    with pytest.raises(fencelock.OutcomeUnknownError) as raised:
        source.lock("lock", ttl=TTL).acquire()
    assert not raised.value.definite
    with source.lock("lock", timeout=10) as lease:
        assert lease.token == 3


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (ask.Acquire, lambda source: source.lock("lock").acquire()),
        (ask.Break, lambda source: source.break_lock("lock", reason="a test")),
        (ask.Purge, lambda source: source.purge()),
    ],
    ids=["acquire", "break", "purge"],
)
def test_what_a_lost_reply_may_have_told_stays_in_doubt_while_the_source_is_away(
    source: fencelock.Source,
    lost_replies: list[type],
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    call: Callable[[fencelock.Source], object],
) -> None:
    lost_replies.append(kind)
    perform = Pool.perform

    def away_once_lost(self: Any, request: Any) -> Any:
        if type(request) is kind and not lost_replies:
            raise fencelock.SourceUnavailableError("the source is away")
        return perform(self, request)

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "perform", away_once_lost)
        with pytest.raises(fencelock.OutcomeUnknownError, match=r"the reply never came.*the source is away") as raised:
            call(source)
    assert not raised.value.definite
    with source.lock("lock", timeout=10):
        pass


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_h3_a_release_that_is_repeated_in_doubt_is_no_loss(
    source: fencelock.Source, lost_replies: list[type], kind: str, times: int
) -> None:
    """The second answer is "not held", because the first request was done; after the third, the keeper goes on."""
    told: list[str] = []
    lock = getattr(source, kind)("lock", ttl=TTL, on_lost=told.append)
    with lock:
        lost_replies += [ask.Release] * times
    lock.acquire()
    lost_replies += [ask.Release] * times
    assert lock.release() is True
    wait_until(lambda: not lost_replies)
    lease = source.lock("lock", ttl=TTL).acquire(timeout=10)
    assert lease is not None
    assert lease.release() is True
    assert told == []


@pytest.mark.parametrize("request_kind", [ask.Poll, ask.Release])
def test_h5_a_lost_reply_while_waiting_costs_nothing(
    source: fencelock.Source, lost_replies: list[type], request_kind: type
) -> None:
    holder = source.lock("lock", ttl=TTL)
    holder.acquire()
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(source.lock("lock", ttl=TTL).acquire)
        wait_until(lambda: source.info("lock").waiters)
        lost_replies.append(request_kind)
        holder.release()
        lease = waiting.result(30)
    assert lease.token == source.info("lock").token == 3
    assert lease.release()


def test_h5_a_timeout_leaves_no_place_in_the_queue(source: fencelock.Source) -> None:
    with source.lock("lock", ttl=TTL):
        assert source.lock("lock", ttl=TTL).acquire(timeout=0.03) is None
        assert source.info("lock").waiters == ()


@pytest.mark.parametrize("error", [KeyboardInterrupt, fencelock.SourceUnavailableError])
@pytest.mark.parametrize("kind", [ask.Acquire, ask.Poll])
def test_h5_an_acquire_that_is_interrupted_leaves_nothing(
    source: fencelock.Source, monkeypatch: pytest.MonkeyPatch, kind: type, error: type[BaseException]
) -> None:
    holder = source.lock("lock", ttl=TTL)
    holder.acquire()
    perform = Pool.perform

    def interrupted(self: Any, request: Any) -> Any:
        reply = perform(self, request)
        if type(request) is kind:
            raise error("now")
        return reply

    waiter = source.lock("lock", ttl=TTL)
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "perform", interrupted)
        with pytest.raises(error):
            waiter.acquire(timeout=1.0)  # For so long a waiter looks for a source that cannot be asked.
    wait_until(lambda: source.info("lock").waiters == ())
    holder.release()
    with source.lock("lock", timeout=10):
        pass


# --- H6: fork -------------------------------------------------------------------------------------
def test_h6_a_forked_child_inherits_no_lease(stage: Stage) -> None:
    actor = stage.actor("""
        lease = source.lock("lock", ttl=30.0).acquire()
        child = os.fork()
        if not child:
            try:
                lease.check_valid()
            except fencelock.LeaseInheritedError as error:
                say([lease.token, lease.sequencer.token, str(error)])
            with source.lock("another") as mine:
                say(mine.token)
            os._exit(0)
        os.waitpid(child, 0)
        say(lease.is_valid)
    """)
    token, same, message = actor.hear()
    assert token == same == 1
    assert "belongs to the parent process" in message
    assert actor.hear() == 2
    assert actor.hear() is True


# --- H7: first in, first out ----------------------------------------------------------------------
def test_h7_waiters_are_served_in_the_order_of_their_coming(source: fencelock.Source) -> None:
    """Over threads and sources alike; each waits until the one before is queued."""
    served: list[int] = []
    holder = source.lock("lock", ttl=TTL)
    holder.acquire()

    def wait(number: int) -> None:
        with fencelock.connect(source.url).lock("lock", ttl=TTL):
            served.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(8)]
    for count, thread in enumerate(threads):
        thread.start()
        wait_until(lambda count=count: len(source.info("lock").waiters) == count + 1)
    holder.release()
    for thread in threads:
        thread.join(60)
    assert served == list(range(8))


def test_h7_no_claim_overtakes_a_waiter_also_without_blocking(client: Client, other: Client) -> None:
    """Neither while the lock is free and the head has not polled yet, nor after an expiry."""
    holder, waiting = draw_claim(), draw_claim()
    client.token("lock", holder)
    client.acquire("lock", waiting, may_wait=True)
    client.release("lock", holder)
    assert isinstance(other.acquire(may_wait=False), ask.Busy)
    assert isinstance(other.acquire(may_wait=True), ask.Queued)
    assert isinstance(client.ask(ask.Poll("lock", waiting)), ask.Granted)


def test_h7_the_second_in_line_waits_for_the_first_to_look(client: Client, other: Client) -> None:
    holder, first, second = draw_claim(), draw_claim(), draw_claim()
    client.token("lock", holder)
    client.acquire("lock", first, may_wait=True)
    other.acquire("lock", second, may_wait=True)
    client.release("lock", holder)
    assert isinstance(other.ask(ask.Poll("lock", second)), ask.Queued)
    assert isinstance(client.ask(ask.Poll("lock", first)), ask.Granted)
    client.release("lock", first)
    assert isinstance(other.ask(ask.Poll("lock", second)), ask.Granted)


def test_h7_a_dead_waiter_blocks_the_queue_no_longer_than_its_own_ttl(client: Client, other: Client) -> None:
    """The lock is free; the first waiter never polls again."""
    holder, dead, second = draw_claim(), draw_claim(), draw_claim()
    client.token("lock", holder)
    client.acquire("lock", dead, may_wait=True, ttl_ms=SHORT_MS)
    other.acquire("lock", second, may_wait=True)
    client.release("lock", holder)
    waited = time.monotonic()
    while isinstance(reply := other.ask(ask.Poll("lock", second)), ask.Queued):
        assert reply.wait_ms <= SHORT_MS
        time.sleep(reply.wait_ms / 1000)
        assert time.monotonic() - waited < 30
    assert isinstance(reply, ask.Granted)
    assert isinstance(client.ask(ask.Poll("lock", dead)), ask.ClaimEnded)


# --- H8: a waiter whose place ended ---------------------------------------------------------------
@pytest.mark.parametrize("is_free", [True, False])
def test_h8_a_waiter_that_slept_past_its_ttl_does_not_get_the_lock_by_its_old_place(
    client: Client, path: Path, is_free: bool
) -> None:
    holder, sleeper = draw_claim(), draw_claim()
    client.token("lock", holder)
    client.acquire("lock", sleeper, may_wait=True, ttl_ms=SHORT_MS)
    ((until_ms,),) = rows(path, "SELECT deadline_ms FROM fencelock_waiter")
    wait_until(lambda: boottime_ms() > until_ms)
    if is_free:
        client.release("lock", holder)
    assert isinstance(client.ask(ask.Poll("lock", sleeper)), ask.ClaimEnded)
    assert isinstance(client.ask(ask.Poll("lock", sleeper)), ask.ClaimEnded)


def test_h8_a_waiter_that_polls_in_time_keeps_its_entry(client: Client, path: Path) -> None:
    holder, waiting = draw_claim(), draw_claim()
    client.token("lock", holder)
    client.acquire("lock", waiting, may_wait=True)
    for _ in range(3):
        # As if most of its ttl were over.
        rows(path, "UPDATE fencelock_waiter SET deadline_ms = ?", (boottime_ms() + LONG_MS // 4,))
        assert isinstance(client.ask(ask.Poll("lock", waiting)), ask.Queued)
        ((until_ms,),) = rows(path, "SELECT deadline_ms FROM fencelock_waiter")
        assert until_ms > boottime_ms() + LONG_MS // 2
    client.release("lock", holder)
    assert isinstance(client.ask(ask.Poll("lock", waiting)), ask.Granted)


# --- H9: two claims of one process are two --------------------------------------------------------
def test_h9_two_claims_over_one_connection_are_two_holders(client: Client) -> None:
    first, second = draw_claim(), draw_claim()
    client.token("lock", first)
    assert isinstance(client.acquire("lock", second), ask.Busy)
    assert client.release("lock", second) is False
    assert isinstance(client.acquire("lock", first), ask.Granted | ask.ClaimEnded)


@pytest.mark.parametrize("sharing", ["the handle", "the source", "nothing"])
def test_h9_threads_on_one_lock_are_never_inside_together(source: fencelock.Source, sharing: str) -> None:
    """Two acquisitions stay two, though they share a handle, a source and a holder's name."""
    inside: list[int] = []
    most: list[int] = []
    tokens: list[int] = []
    shared = source.lock("lock", ttl=TTL, holder="one")
    start = threading.Barrier(6)

    def handle() -> fencelock.Lock:
        if sharing == "the handle":
            return shared
        origin = source if sharing == "the source" else fencelock.connect(source.url)
        return origin.lock("lock", ttl=TTL, holder="one")

    def work() -> None:
        lock = handle()
        start.wait()
        for _ in range(25):
            with lock as lease:
                inside.append(1)
                most.append(len(inside))
                tokens.append(lease.token)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert most == [1] * 150
    assert tokens == sorted(set(tokens))
