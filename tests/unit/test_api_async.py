"""The async handles, over a real file: cancellation at every await, loss on the loop, the task for the thread."""

import asyncio
import copy
import gc
import itertools
import logging
import pickle
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import fencelock
import fencelock.aio
from fencelock.clock import boottime_ms
from tests.support.helpers import wait_until, wait_until_async

pytestmark = pytest.mark.reduced

TTL = 30.0


@pytest_asyncio.fixture
async def aio_source(tmp_path: Path) -> AsyncIterator[fencelock.aio.AsyncSource]:
    async with fencelock.aio.connect(f"sqlite:///{tmp_path / 'locks.db'}") as source:
        await source.install()
        yield source


async def until_waiters(source: fencelock.aio.AsyncSource, count: int) -> None:
    """Wait until this many waiters are queued."""
    async with asyncio.timeout(30):
        while len((await source.info("a")).waiters) != count:  # noqa: ASYNC110 - it happens at the source
            await asyncio.sleep(0.005)


def expire(lease: fencelock.aio.AsyncLease) -> None:
    """Let the deadline of a lease pass, for its holder."""
    lease._record.deadline_ms = boottime_ms() - 1


@pytest.mark.asyncio
async def test_examining_asks_the_store_in_a_thread(
    aio_source: fencelock.aio.AsyncSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio_source._store, "examine", lambda: [threading.get_ident()])
    assert await aio_source.examine() != [threading.get_ident()]


# --- the manners of the sync twins ----------------------------------------------------------------
@pytest.mark.asyncio
async def test_acquire_returns_the_lease_and_release_ends_it(aio_source: fencelock.aio.AsyncSource) -> None:
    lock = aio_source.lock("a", ttl=TTL)
    lease = await lock.acquire()
    assert lease is not None
    assert lock.current is lease
    assert await lock.locked()
    assert repr(lock).startswith("<locked fencelock.AsyncLock object 'a'")
    await lock.release()
    assert lock.current is None
    assert not await lock.locked()
    with pytest.raises(fencelock.NotHeldError):
        await lock.release()


@pytest.mark.asyncio
async def test_what_is_not_obtained_is_none(aio_source: fencelock.aio.AsyncSource) -> None:
    async with aio_source.lock("a"):
        assert await aio_source.lock("a").acquire(blocking=False) is None
        assert await aio_source.lock("a").acquire(timeout=0.05) is None
        assert await aio_source.lock("a", timeout=0.05).acquire() is None
        with pytest.raises(fencelock.AcquireTimeoutError):
            await aio_source.lock("a", timeout=0.05).__aenter__()
        assert (await aio_source.info("a")).waiters == ()


@pytest.mark.parametrize("kind", ["lock", "rlock"])
@pytest.mark.asyncio
async def test_wrong_arguments_are_refused_before_anything_happens(
    aio_source: fencelock.aio.AsyncSource, kind: str
) -> None:
    lock = getattr(aio_source, kind)("a")
    with pytest.raises(ValueError, match="can't specify a timeout"):
        await lock.acquire(False, 1)
    with pytest.raises(ValueError, match="non-negative"):
        await lock.acquire(True, -2)
    with pytest.raises(ValueError, match="timeout="):
        await lock.acquire(5)
    with pytest.raises(OverflowError):
        await lock.acquire(timeout=threading.TIMEOUT_MAX * 2)
    with pytest.raises(fencelock.NotHeldError):
        await lock.__aexit__(None, None, None)
    assert (await aio_source.info("a")).token is None


@pytest.mark.asyncio
async def test_release_is_idempotent_and_tells_whether_it_was_ours(aio_source: fencelock.aio.AsyncSource) -> None:
    lock = aio_source.lock("a", ttl=TTL)
    lease = await lock.acquire()
    assert lease is not None
    assert await lease.release() is True
    assert await lease.release() is False
    async with lock:
        assert await lease.release() is False
        assert await lock.locked()


@pytest.mark.asyncio
async def test_each_task_releases_its_own_lease(aio_source: fencelock.aio.AsyncSource) -> None:
    lock = aio_source.lock("a", ttl=TTL)
    order: list[int] = []

    async def work(number: int) -> None:
        async with lock as lease:
            order.append(number)
            await asyncio.sleep(0.005)
            assert lease.is_valid
            order.append(number)

    await asyncio.gather(*(work(number) for number in range(6)))
    assert order[::2] == order[1::2], "two were inside at the same time"


@pytest.mark.asyncio
async def test_sync_and_async_exclude_each_other(
    aio_source: fencelock.aio.AsyncSource, source: fencelock.Source
) -> None:
    with source.lock("a") as mine:
        assert await aio_source.lock("a").acquire(blocking=False) is None
    async with aio_source.lock("a") as theirs:
        assert theirs.token > mine.token
        assert source.lock("a").acquire(blocking=False) is None


@pytest.mark.asyncio
async def test_outside_of_a_task_it_says_so(aio_source: fencelock.aio.AsyncSource) -> None:
    lock = aio_source.rlock("a")
    done: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def outside() -> None:
        try:
            _ = lock.current
        except RuntimeError as error:
            done.set_result(error)

    asyncio.get_running_loop().call_soon(outside)
    assert "inside a task" in str(await done)


def test_without_an_event_loop_of_asyncio_it_says_so(aio_source: fencelock.aio.AsyncSource) -> None:
    for lock in (aio_source.lock("a"), aio_source.rlock("a")):
        with pytest.raises(RuntimeError, match=r"needs the event loop of asyncio\. Under trio, .* in a thread"):
            lock.acquire().send(None)  # As an event loop of another library begins it.


# --- RLock: a holding for each task ---------------------------------------------------------------
@pytest.mark.asyncio
async def test_re_entry_is_the_same_lease(aio_source: fencelock.aio.AsyncSource) -> None:
    lock = aio_source.rlock("a")
    async with lock as outer:
        async with lock as inner:
            assert inner is outer
            assert await lock.acquire() is outer
            await lock.release()
        assert lock.current is outer
        assert outer.is_valid
    assert lock.current is None
    assert not await lock.locked()


@pytest.mark.asyncio
async def test_another_task_has_a_holding_of_its_own(aio_source: fencelock.aio.AsyncSource) -> None:
    lock = aio_source.rlock("a", ttl=TTL)

    async def other() -> Any:
        assert lock.current is None
        with pytest.raises(fencelock.NotHeldError):
            await lock.release()
        return await lock.acquire(blocking=False)

    async with lock:
        assert await asyncio.create_task(other()) is None


@pytest.mark.asyncio
async def test_after_a_loss_re_entry_and_the_inner_block_raise(aio_source: fencelock.aio.AsyncSource) -> None:
    lock = aio_source.rlock("a", ttl=TTL)
    reached: list[str] = []

    async def work() -> None:
        async with lock as lease:
            async with lock:
                expire(lease)
                with pytest.raises(fencelock.LeaseExpiredError):
                    await lock.acquire()
            reached.append("between")

    with pytest.raises(fencelock.LeaseExpiredError):
        await work()
    assert reached == []
    assert lock.current is None


@pytest.mark.asyncio
async def test_a_lease_of_a_task_that_is_gone_is_abandoned(aio_source: fencelock.aio.AsyncSource) -> None:
    lock = aio_source.rlock("a", ttl=TTL)
    await asyncio.create_task(lock.acquire())
    gc.collect()
    async with asyncio.timeout(30), aio_source.lock("a"):
        pass


# --- cancellation at every await ------------------------------------------------------------------
class Stepped:
    """Awaits a coroutine, and cancels its task at the `number`th suspension: when that begins, or when its result is
    there but the task has not gone on yet.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, *, with_result: bool) -> None:
        self._coroutine = coroutine
        self._number = number
        self._with_result = with_result
        self.was_cancelled = False

    async def run(self) -> Any:
        return await self

    def __await__(self) -> Generator[Any, Any, Any]:
        iterator = self._coroutine.__await__()
        step: Callable[[], Any] = iterator.__next__
        for number in itertools.count():
            try:
                suspended = step()
            except StopIteration as done:
                return done.value
            if number == self._number:
                self._cancel(suspended)
            try:
                step = partial(iterator.send, (yield suspended))
            except BaseException as error:
                step = partial(iterator.throw, error)
        return None

    def _cancel(self, suspended: Any) -> None:
        self.was_cancelled = True
        task = asyncio.current_task()
        assert task is not None
        if self._with_result and suspended is not None:
            suspended.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


Make = Callable[[], Coroutine[Any, Any, Coroutine[Any, Any, Any]]]


async def at_every_await(make: Make, check: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Cancel a fresh coroutine of `make` at its first suspension, at its second, and so on until it ends earlier.

    Call `check` after each, and return the number of suspensions.
    """
    for with_result in (False, True):
        for number in range(100):
            stepped = Stepped(await make(), number, with_result=with_result)
            task = asyncio.create_task(stepped.run())
            await asyncio.wait([task])
            assert task.cancelled() is stepped.was_cancelled, f"suspension {number}: {task}"
            if not stepped.was_cancelled:
                task.result()
            del task
            await check()
            if not stepped.was_cancelled:
                break
    return number


async def is_free(source: fencelock.aio.AsyncSource, path: Path) -> None:
    """Check that nothing is left: no lease, no queue entry, no pipe; the keeper may need a moment."""
    async with asyncio.timeout(30):
        async with source.lock("a", ttl=TTL):
            pass
    await until_waiters(source, 0)
    wake = path / "locks.db-wake"
    await wait_until_async(lambda: not wake.exists() or not list(wake.iterdir()))


@pytest.mark.parametrize("kind", ["lock", "rlock"])
@pytest.mark.asyncio
async def test_a_cancelled_acquire_leaves_nothing_behind(
    aio_source: fencelock.aio.AsyncSource, tmp_path: Path, kind: str
) -> None:
    async def make() -> Coroutine[Any, Any, Any]:
        async def acquire_and_release() -> None:
            lock = getattr(aio_source, kind)("a", ttl=TTL)
            await lock.acquire()
            await lock.release()

        return acquire_and_release()

    assert await at_every_await(make, partial(is_free, aio_source, tmp_path)) >= 2


@pytest.mark.parametrize("kind", ["lock", "rlock"])
@pytest.mark.asyncio
async def test_a_cancelled_block_leaves_nothing_behind(
    aio_source: fencelock.aio.AsyncSource, tmp_path: Path, kind: str
) -> None:
    async def make() -> Coroutine[Any, Any, Any]:
        async def block() -> None:
            async with getattr(aio_source, kind)("a", ttl=TTL):
                await asyncio.sleep(0)

        return block()

    assert await at_every_await(make, partial(is_free, aio_source, tmp_path)) >= 3


@pytest.mark.asyncio
async def test_a_cancelled_wait_leaves_nothing_behind(aio_source: fencelock.aio.AsyncSource, tmp_path: Path) -> None:
    """Another holder has the lock, and releases it once the waiter is queued."""
    holder = aio_source.lock("a", ttl=TTL)
    handovers: list[asyncio.Task[None]] = []

    async def hand_over() -> None:
        await until_waiters(aio_source, 1)
        await holder.release()

    async def make() -> Coroutine[Any, Any, Any]:
        await holder.acquire()
        handovers.append(asyncio.create_task(hand_over()))

        async def wait() -> None:
            async with aio_source.lock("a", ttl=TTL):
                pass

        return wait()

    async def check() -> None:
        handovers[-1].cancel()
        await asyncio.wait(handovers)
        if holder.current is not None:
            await holder.release()
        await is_free(aio_source, tmp_path)

    # One less where the lock is released before the waiter, which stands in line, looks for the first time.
    assert await at_every_await(make, check) >= 3


@pytest.mark.asyncio
async def test_a_task_that_is_cancelled_during_its_release_gives_the_lock_back(
    aio_source: fencelock.aio.AsyncSource, tmp_path: Path
) -> None:
    async def make() -> Coroutine[Any, Any, Any]:
        lease = await aio_source.lock("a", ttl=TTL).acquire()
        assert lease is not None
        return lease.release()

    assert await at_every_await(make, partial(is_free, aio_source, tmp_path)) >= 1


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["lock", "rlock"])
async def test_a_cancelled_release_leaves_the_handle_without_the_lease(
    aio_source: fencelock.aio.AsyncSource, kind: str
) -> None:
    """An RLock once kept the frame, and each later acquire of the task raised."""
    lock = getattr(aio_source, kind)("a", ttl=TTL)
    old = await lock.acquire()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await lock.release()
    assert lock.current is None
    with pytest.raises(fencelock.NotHeldError):
        await lock.release()
    assert (await lock.acquire(timeout=10)).token > old.token
    assert await lock.release() is True


@pytest.mark.asyncio
async def test_a_generator_that_the_loop_closes_releases_its_lock(aio_source: fencelock.aio.AsyncSource) -> None:
    """The loop closes it in a task of its own."""
    lock = aio_source.lock("a", ttl=TTL)

    async def numbers() -> AsyncIterator[int]:
        async with lock:
            yield 1

    async for _ in numbers():
        break
    gc.collect()
    async with asyncio.timeout(10):
        assert await lock.acquire() is not None


@pytest.mark.asyncio
async def test_the_bodys_cancellation_and_its_exceptions_are_never_replaced(
    aio_source: fencelock.aio.AsyncSource,
) -> None:
    for error in (asyncio.CancelledError("mine"), KeyError("mine")):
        with pytest.raises(type(error)) as raised:
            await lose_in_body(aio_source, error)
        assert raised.value is error
        assert "fencelock: the lease on lock 'a'" in raised.value.__notes__[0]


async def lose_in_body(source: fencelock.aio.AsyncSource, error: BaseException | None) -> None:
    async with source.lock("a", ttl=TTL) as lease:
        expire(lease)
        if error is not None:
            raise error


@pytest.mark.asyncio
async def test_a_good_body_ends_in_the_loss(aio_source: fencelock.aio.AsyncSource) -> None:
    with pytest.raises(fencelock.LeaseExpiredError):
        await lose_in_body(aio_source, None)


@pytest.mark.parametrize("delay_ms", range(10))
@pytest.mark.asyncio
async def test_wait_for_neither_swallows_nor_orphans(aio_source: fencelock.aio.AsyncSource, delay_ms: int) -> None:
    """Python 3.11's `wait_for` runs the acquire in a task of its own, and cancels that."""
    lock = aio_source.lock("a", ttl=TTL)
    try:
        lease = await asyncio.wait_for(lock.acquire(), delay_ms / 2000)
    except TimeoutError:
        del lock  # It may have got the lease at that moment; nobody else refers to it.
    else:
        assert lease is not None
        await lock.release()
    async with asyncio.timeout(30), aio_source.lock("a"):
        pass


@pytest.mark.asyncio
async def test_a_failing_task_group_takes_its_waiters_along(aio_source: fencelock.aio.AsyncSource) -> None:
    async def wait() -> None:
        async with aio_source.lock("a"):
            raise AssertionError

    async def fail() -> None:
        await until_waiters(aio_source, 3)
        raise KeyError

    async with aio_source.lock("a", ttl=TTL):
        with pytest.raises(ExceptionGroup) as raised:
            await group_of(wait(), wait(), wait(), fail())
        assert raised.group_contains(KeyError)
        await until_waiters(aio_source, 0)


async def group_of(*work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for coroutine in work:
            group.create_task(coroutine)


# --- loss -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_coroutine", [False, True])
@pytest.mark.asyncio
@pytest.mark.usefixtures("early_beats")
async def test_on_lost_runs_on_the_loop(aio_source: fencelock.aio.AsyncSource, is_coroutine: bool) -> None:
    heard: asyncio.Future[tuple[str, threading.Thread]] = asyncio.get_running_loop().create_future()

    def on_lost(reason: str) -> None:
        heard.set_result((reason, threading.current_thread()))

    async def on_lost_later(reason: str) -> None:
        await asyncio.sleep(0)
        on_lost(reason)

    lock = aio_source.lock("a", ttl=TTL, on_lost=on_lost_later if is_coroutine else on_lost)
    lease = await lock.acquire()
    await aio_source.break_lock("a", reason="test")
    async with asyncio.timeout(30):
        reason, thread = await heard
    assert reason.endswith("broke it: test")
    assert thread is threading.current_thread()
    assert lease is not None
    assert lease.lost.is_set()


@pytest.mark.asyncio
@pytest.mark.usefixtures("early_beats")
async def test_an_on_lost_that_raises_is_logged(
    aio_source: fencelock.aio.AsyncSource, caplog: pytest.LogCaptureFixture
) -> None:
    def on_lost(reason: str) -> None:
        raise KeyError(reason)

    lease = await aio_source.lock("a", ttl=TTL, on_lost=on_lost).acquire()
    with caplog.at_level(logging.ERROR, logger="fencelock"):
        await aio_source.break_lock("a", reason="test")
        await wait_until_async(lambda: "on_lost raised" in caplog.text)
    del lease


@pytest.mark.asyncio
@pytest.mark.usefixtures("early_beats")
async def test_cancel_on_lost_cancels_the_block(aio_source: fencelock.aio.AsyncSource) -> None:
    async def work() -> None:
        async with aio_source.lock("a", ttl=TTL) as lease:
            lease.cancel_on_lost()
            await aio_source.break_lock("a", reason="test")
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError, match=r"lock 'a' with token 1 was lost: .* broke it: test") as raised:
        await task
    assert "was lost" in raised.value.__notes__[0]


@pytest.mark.asyncio
async def test_cancel_on_lost_of_a_lease_that_is_lost_already_cancels_too(
    aio_source: fencelock.aio.AsyncSource,
) -> None:
    async def work() -> None:
        async with aio_source.lock("a", ttl=TTL) as lease:
            expire(lease)
            lease.cancel_on_lost()
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())


@pytest.mark.asyncio
async def test_a_task_that_has_left_its_block_is_not_cancelled_any_more(
    aio_source: fencelock.aio.AsyncSource,
) -> None:
    async with aio_source.lock("a", ttl=TTL) as lease:
        lease.cancel_on_lost()
    lease._cancel(asyncio.current_task(), "late")  # type: ignore[arg-type]
    await asyncio.sleep(0)
    with pytest.raises(fencelock.LeaseReleasedError):
        lease.check_valid()


@pytest.mark.asyncio
async def test_a_lease_that_would_cancel_its_task_is_abandoned_when_nobody_holds_it(
    aio_source: fencelock.aio.AsyncSource,
) -> None:
    lease = await aio_source.lock("a", ttl=TTL).acquire()
    assert lease is not None
    lease.cancel_on_lost()
    is_alive = weakref.ref(lease)
    del lease
    gc.collect()
    assert is_alive() is None
    async with asyncio.timeout(30), aio_source.lock("a"):
        pass


@pytest.mark.asyncio
@pytest.mark.usefixtures("early_beats")
async def test_waiting_for_the_loss_ends_with_it_and_with_the_release(aio_source: fencelock.aio.AsyncSource) -> None:
    lock = aio_source.lock("a", ttl=TTL)
    lease = await lock.acquire()
    assert lease is not None
    assert await lease.lost.wait(0.01) is False
    waiting = asyncio.create_task(lease.lost.wait(30))
    await asyncio.sleep(0)
    await aio_source.break_lock("a", reason="test")
    assert await waiting is True
    again = await lock.acquire()
    assert again is not None
    waiting = asyncio.create_task(again.lost.wait())
    await asyncio.sleep(0)
    await again.release()
    assert await waiting is False


@pytest.mark.asyncio
async def test_release_soon_may_be_called_from_another_thread(aio_source: fencelock.aio.AsyncSource) -> None:
    lease = await aio_source.lock("a", ttl=TTL).acquire()
    assert lease is not None
    waiting = asyncio.create_task(lease.lost.wait(30))
    await asyncio.sleep(0)
    await asyncio.to_thread(lease.release_soon)
    assert await waiting is False
    assert not lease.is_valid


# --- loops ----------------------------------------------------------------------------------------
def test_two_loops_in_two_threads_share_a_source(tmp_path: Path) -> None:
    source = fencelock.aio.connect(f"sqlite:///{tmp_path / 'locks.db'}")
    inside: list[int] = []
    most: list[int] = []

    async def work() -> None:
        for _ in range(10):
            async with source.lock("a", ttl=TTL):
                inside.append(1)
                most.append(len(inside))
                await asyncio.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 20
    asyncio.run(source.close())


@pytest.mark.usefixtures("early_beats")
def test_a_lease_outlives_its_loop_and_can_be_given_back(tmp_path: Path) -> None:
    """Its loss reaches no listener then, which does no harm."""
    source = fencelock.aio.connect(f"sqlite:///{tmp_path / 'locks.db'}")
    told: list[str] = []

    async def take() -> fencelock.aio.AsyncLease:
        lease = await source.lock("a", ttl=TTL, on_lost=told.append).acquire()
        assert lease is not None
        lease.cancel_on_lost()
        return lease

    lease = asyncio.run(take())
    first = lease.deadline_ms
    wait_until(lambda: lease.deadline_ms > first)
    asyncio.run(source.break_lock("a", reason="test"))  # type: ignore[arg-type]
    wait_until(lambda: not lease.is_valid)
    assert asyncio.run(lease.release()) is False  # type: ignore[arg-type]
    assert told == []
    asyncio.run(source.close())  # type: ignore[arg-type]


# --- with lease -----------------------------------------------------------------------------------
@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["lock", "rlock"])
async def test_a_block_over_a_lease_releases_it(aio_source: fencelock.aio.AsyncSource, kind: str) -> None:
    async with await getattr(aio_source, kind)("a", ttl=TTL).acquire() as lease:
        assert lease.is_valid
    assert not (await aio_source.info("a")).is_held
    with pytest.raises(fencelock.LeaseReleasedError):
        await lease.__aenter__()


@pytest.mark.asyncio
async def test_a_block_over_a_lease_raises_its_loss(aio_source: fencelock.aio.AsyncSource) -> None:
    lease = await aio_source.lock("a", ttl=TTL).acquire(blocking=False)
    assert lease is not None
    with pytest.raises(fencelock.LeaseLostError):
        async with lease:
            await aio_source.break_lock("a", reason="test")


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["lock", "rlock"])
async def test_acquire_without_a_timeout_waits_though_the_handle_would_give_up(
    aio_source: fencelock.aio.AsyncSource, kind: str
) -> None:
    waiter = getattr(aio_source, kind)("a", ttl=TTL, timeout=0)
    async with aio_source.lock("a", ttl=TTL):
        assert await waiter.acquire() is None
        waiting = asyncio.create_task(waiter.acquire(timeout=None))
        await until_waiters(aio_source, 1)
    assert await waiting is not None


@pytest.mark.asyncio
async def test_a_timeout_that_is_no_number_is_a_config_error(aio_source: fencelock.aio.AsyncSource) -> None:
    timeout: Any = "5"
    for lock in (aio_source.lock("b"), aio_source.rlock("b")):
        with pytest.raises(fencelock.ConfigError, match="number of seconds"):
            await lock.acquire(timeout=timeout)
    async with aio_source.lock("a") as lease:
        with pytest.raises(fencelock.ConfigError, match="number of seconds"):
            await lease.lost.wait(timeout)
        with pytest.raises(OverflowError, match=r"larger than threading.TIMEOUT_MAX"):
            await lease.lost.wait(threading.TIMEOUT_MAX * 2)


@pytest.mark.asyncio
@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda attempt: attempt.__name__)
async def test_what_has_leases_or_connections_is_neither_copied_nor_pickled(
    aio_source: fencelock.aio.AsyncSource, attempt: Callable[[object], object]
) -> None:
    guard = fencelock.aio.guard("sqlite:///app.db", resource="r", lock="a")
    lock, rlock = aio_source.lock("a"), aio_source.rlock("a")
    async with lock as lease:
        for one in (lease, lock, rlock, aio_source, guard, lease.lost, guard.transaction(lease)):
            with pytest.raises(TypeError, match=f"^{type(one).__name__} objects cannot be copied or pickled: "):
                attempt(one)
