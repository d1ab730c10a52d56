"""The drivers: the requests that they answer themselves, their connections, and interruptions."""

import asyncio
import gc
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import pytest

from fencelock._drivers import aio, sync
from fencelock._drivers.aio import MAX_THREADS, AsyncDriver, Threads
from fencelock._drivers.pool import MAX_IDLE_CONNECTIONS, BoundedPool, Pool
from fencelock._drivers.shutdown import SHUTDOWN, Shutdown
from fencelock._drivers.sync import REQUEST_TIMEOUT_S, SyncDriver
from fencelock.errors import ConfigError, SourceError, SourceUnavailableError
from fencelock.protocol.source_requests import Acquire, Draw, Listen, Now, Purge, Wait
from tests.support.helpers import DEADLINE_S, wait_until, wait_until_async
from tests.unit.fakes import FakeSource

pytestmark = pytest.mark.reduced

LOCK, CLAIM = "the-lock", "c1"


class Pipe:
    """A channel that a test can notify."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self.drained = 0
        self.is_closed = False

    def ring(self) -> None:
        os.write(self._writer, b"!")

    def fileno(self) -> int:
        return self._reader

    def drain(self) -> None:
        self.drained += 1
        with suppress(BlockingIOError):
            while True:
                os.read(self._reader, 100)

    def close(self) -> None:
        self.is_closed = True
        os.close(self._reader)
        os.close(self._writer)


class Ringing(FakeSource):
    """A source whose channels are pipes."""

    def __init__(self, answer: Callable[[Any], Any] | None = None) -> None:
        super().__init__(answer)
        self.channels: list[Pipe] = []

    def listen(self, lock: str, claim: str) -> Pipe:
        assert (lock, claim) == (LOCK, CLAIM)
        self.channels.append(Pipe())
        return self.channels[-1]


def asking(*requests: Any) -> Generator[Any, Any, list[Any]]:
    """A flow that yields requests one after another, and returns the replies."""
    replies = []
    for request in requests:
        replies.append((yield request))
    return replies


def catching(request: Any) -> Generator[Any, Any, BaseException]:
    """A flow that returns the error that was thrown into it."""
    try:
        yield request
    except BaseException as error:
        return error
    raise AssertionError


def run_async(flow: Any, source: FakeSource) -> Any:
    async def main() -> Any:
        driver = AsyncDriver(source, now_us=lambda: 7_999)
        try:
            return await driver.run(flow)
        finally:
            await driver.close()

    return asyncio.run(main())


def run_sync(flow: Any, source: FakeSource) -> Any:
    driver = SyncDriver(source, now_us=lambda: 7_999)
    try:
        return driver.run(flow)
    finally:
        driver.close()


both = pytest.mark.parametrize("run", [run_sync, run_async])
Run = Callable[[Any, FakeSource], Any]


# --- alike in both --------------------------------------------------------------------------------
@both
def test_the_clock_is_rounded_down_to_milliseconds(run: Run) -> None:
    assert run(asking(Now()), FakeSource()) == [7]


@both
def test_a_claim_is_drawn_with_its_birth_and_never_twice(run: Run) -> None:
    (first, born_us), (second, _) = run(asking(Draw(), Draw()), FakeSource())
    assert born_us == 7_999
    assert first != second


@both
def test_a_source_answers_and_its_reply_is_sent_back(run: Run) -> None:
    source = FakeSource(lambda request: 42)
    assert run(asking(Purge(), Purge()), source) == [42, 42]
    assert source.asked == [Purge(), Purge()]


@both
def test_one_connection_serves_one_request_after_another_with_the_drivers_patience(run: Run) -> None:
    source = FakeSource()
    run(asking(Purge(), Purge(), Purge()), source)
    assert len(source.connections) == 1
    assert source.connections[0].request_timeout_s == REQUEST_TIMEOUT_S
    assert source.connections[0].is_closed, "closed with the driver"


@both
@pytest.mark.parametrize("error", [SourceUnavailableError("busy"), ZeroDivisionError()])
def test_what_a_source_raises_is_thrown_into_the_flow_and_its_connection_is_closed(run: Run, error: Exception) -> None:
    def fail(request: Any) -> Any:
        raise error

    source = FakeSource(fail)
    assert run(catching(Purge()), source) is error
    assert [connection.is_closed for connection in source.connections] == [True]


def test_an_error_keeps_nothing_alive_once_it_was_dealt_with() -> None:
    """Connections and pipes in its frames must be closed at that moment, not by the garbage collector."""

    class Held:
        """An object in a frame that the error passed through."""

    class FailingError(SourceError):
        """An error that can be referred to weakly."""

    held: list[weakref.ref[Held]] = []

    def fail(request: Any) -> Any:
        on_the_way = Held()
        held.append(weakref.ref(on_the_way))
        raise FailingError

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(FailingError):
            run_sync(asking(Purge()), FakeSource(fail))
        assert held[0]() is None
    finally:
        gc.enable()


@both
def test_what_a_flow_raises_passes(run: Run) -> None:
    def failing() -> Any:
        yield Now()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(failing(), FakeSource())


@both
def test_waiting_ends_when_the_channel_rings_and_forgets_the_ring(run: Run) -> None:
    source = Ringing()

    def flow() -> Any:
        yield Listen(LOCK, CLAIM)
        source.channels[0].ring()
        yield Wait(60_000)
        yield Wait(1)

    run(flow(), source)
    assert source.channels[0].drained == 2


@both
def test_waiting_ends_at_its_time_without_a_ring(run: Run) -> None:
    started = time.monotonic()
    run(asking(Listen(LOCK, CLAIM), Wait(30)), Ringing())
    assert time.monotonic() - started > 0.02


@both
def test_waiting_without_a_channel_is_sleeping(run: Run) -> None:
    assert run(asking(Wait(1)), FakeSource()) == [False]


@both
@pytest.mark.parametrize("ending", ["result", "error"])
def test_channels_are_closed_however_the_flow_ends(run: Run, ending: str) -> None:
    source = Ringing()

    def flow() -> Any:
        yield Listen(LOCK, CLAIM)
        yield Listen(LOCK, CLAIM)
        if ending == "error":
            raise KeyError(ending)

    if ending == "error":
        with pytest.raises(KeyError):
            run(flow(), source)
    else:
        run(flow(), source)
    assert [channel.is_closed for channel in source.channels] == [True, True]


@both
def test_a_channel_that_cannot_be_made_is_an_error_of_the_flow(run: Run) -> None:
    class Deaf(FakeSource):
        def listen(self, lock: str, claim: str) -> Any:
            raise SourceUnavailableError("no pipe")

    assert isinstance(run(catching(Listen(LOCK, CLAIM)), Deaf()), SourceUnavailableError)


# --- the pool -------------------------------------------------------------------------------------
def test_connections_are_used_by_one_thread_at_a_time_and_a_few_are_kept() -> None:
    barrier = threading.Barrier(MAX_IDLE_CONNECTIONS + 3)
    source = FakeSource(lambda request: barrier.wait(30))
    pool = Pool(source, 1.0)
    threads = [threading.Thread(target=pool.perform, args=(Purge(),)) for _ in range(barrier.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(source.connections) == barrier.parties
    assert sum(not connection.is_closed for connection in source.connections) == MAX_IDLE_CONNECTIONS
    pool.close()
    assert all(connection.is_closed for connection in source.connections)


class InterruptedHereError(Exception):
    """The exception that a signal handler raises."""


def test_a_connection_is_free_again_whose_taker_was_interrupted_before_he_could_say_so() -> None:
    """The interruption comes between two lines. After eight of them no thread could ask that source again."""
    pool = BoundedPool(FakeSource(lambda request: None), 0.1, 1)
    permits: Any = pool._permits

    class Interrupting:
        def get(self, timeout: float) -> None:
            permits.get(timeout=timeout)
            raise InterruptedHereError

    pool._permits = Interrupting()  # type: ignore[assignment]
    with pytest.raises(InterruptedHereError):
        pool.perform(Purge())
    pool._permits = permits
    assert pool.perform(Purge()) is None


def test_a_closed_pool_says_so_and_closes_what_comes_back_later() -> None:
    source = FakeSource()
    pool = Pool(source, 1.0)
    source.answer = lambda request: pool.close()
    pool.perform(Purge())
    assert source.connections[0].is_closed
    with pytest.raises(ConfigError, match="was closed: connect"):
        pool.perform(Purge())


def test_a_pool_that_is_closed_while_a_connection_comes_back_closes_it() -> None:
    class Idle(deque[Any]):
        def append(self, connection: Any) -> None:
            pool.close()
            super().append(connection)

    source = FakeSource(lambda request: None)
    pool = Pool(source, 1.0)
    pool._idle = Idle()
    pool.perform(Purge())
    assert source.connections[0].is_closed


@pytest.mark.asyncio
async def test_the_loop_goes_on_while_a_connection_that_was_used_in_a_thread_is_closed() -> None:
    """Its end may wait for a server."""
    source, went_on = FakeSource(lambda request: None), threading.Event()
    driver = AsyncDriver(source)
    await driver.in_thread(lambda: driver._pool.perform(Purge()))
    (connection,) = source.connections
    ended: list[bool] = []
    connection.close = lambda: ended.append(went_on.wait(DEADLINE_S))  # type: ignore[method-assign]
    asyncio.get_running_loop().call_soon(went_on.set)
    await driver.close()
    assert ended == [True]


# --- the interpreter's end ------------------------------------------------------------------------
def test_a_waiting_thread_is_woken_at_the_interpreters_end(monkeypatch: pytest.MonkeyPatch) -> None:
    shutdown = Shutdown()
    monkeypatch.setattr(sync, "SHUTDOWN", shutdown)
    errors: list[BaseException] = []

    def wait() -> None:
        errors.append(run_sync(catching(Wait(60_000)), FakeSource()))

    waiters = [threading.Thread(target=wait) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    shutdown.begin()
    for waiter in waiters:
        waiter.join(30)
    assert [type(error) for error in errors] == [SourceError] * 4
    assert "interpreter is ending" in str(errors[0])


def test_whoever_waits_after_the_end_has_begun_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shutdown = Shutdown()
    shutdown.begin()
    monkeypatch.setattr(sync, "SHUTDOWN", shutdown)
    assert isinstance(run_sync(catching(Wait(60_000)), FakeSource()), SourceError)


def acquiring(*, may_wait: bool = True) -> Generator[Any, Any, Any]:
    """A flow that acquires a lock."""
    return (yield Acquire(LOCK, CLAIM, "me", 1_000, 0, may_wait=may_wait))


@pytest.mark.parametrize("may_wait", [True, False])
def test_a_lock_that_is_granted_while_the_interpreter_ends_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, may_wait: bool
) -> None:
    """Nobody would renew or release it: the leases of this process are being released already."""
    shutdown = Shutdown()
    monkeypatch.setattr(sync, "SHUTDOWN", shutdown)
    with pytest.raises(SourceError, match="interpreter is ending"):
        run_sync(acquiring(may_wait=may_wait), FakeSource(lambda _: shutdown.begin()))
    assert shutdown.acquiring == {threading.get_ident()}, "the keeper waits for its claim"


def test_an_exit_handler_acquires_after_the_end_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    shutdown = Shutdown()
    monkeypatch.setattr(sync, "SHUTDOWN", shutdown)
    assert run_sync(acquiring(), FakeSource(lambda _: "granted")) == "granted"
    assert not shutdown.acquiring
    shutdown.begin()
    assert run_sync(acquiring(), FakeSource(lambda _: "granted")) == "granted"


def descriptors_found(shutdown: Shutdown) -> set[int]:
    """Return the descriptors of eight threads that ask at the same time."""
    barrier = threading.Barrier(8)
    found: list[int] = []

    def look() -> None:
        barrier.wait()
        found.append(shutdown.fileno())

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return set(found)


def test_threads_that_wait_first_at_the_same_time_share_one_descriptor() -> None:
    for _ in range(50):
        shutdown = Shutdown()
        assert descriptors_found(shutdown) == {shutdown.fileno()}
        os.close(shutdown.fileno())


def test_a_forked_child_has_a_switch_of_its_own() -> None:
    parents = SHUTDOWN.fileno()
    child = os.fork()
    if not child:
        is_own = SHUTDOWN.fileno() != parents and not SHUTDOWN.has_begun
        SHUTDOWN.begin()
        os._exit(0 if is_own else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    look = select.poll()
    look.register(parents, select.POLLIN)
    assert not look.poll(0), "the child's end woke the parent's threads"


# --- asyncio --------------------------------------------------------------------------------------
def test_the_loop_goes_on_during_a_request() -> None:
    may_answer = threading.Event()
    source = FakeSource(lambda request: may_answer.wait(30))

    async def main() -> None:
        driver = AsyncDriver(source)
        running = asyncio.create_task(driver.run(asking(Purge())))
        await wait_until_async(lambda: source.asked)
        may_answer.set()
        assert await running == [True]
        await driver.close()

    asyncio.run(main())


def test_a_cancelled_request_ends_in_its_thread_and_its_connection_is_kept() -> None:
    may_answer = threading.Event()
    source = FakeSource(lambda request: may_answer.wait(30))

    async def main() -> None:
        driver = AsyncDriver(source)
        running = asyncio.create_task(driver.run(asking(Purge())))
        await wait_until_async(lambda: source.asked)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not may_answer.is_set(), "the task did not wait for its request"
        may_answer.set()
        await asyncio.to_thread(wait_until, lambda: driver._pool._idle)
        await driver.run(asking(Purge()))
        assert len(source.connections) == 1
        await driver.close()

    asyncio.run(main())


def test_a_cancelled_wait_stops_listening() -> None:
    source = Ringing()

    async def main() -> None:
        driver = AsyncDriver(source)
        running = asyncio.create_task(driver.run(asking(Listen(LOCK, CLAIM), Wait(60_000))))
        await wait_until_async(lambda: source.channels)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert source.channels[0].is_closed
        assert not asyncio.get_running_loop().remove_reader(source.channels[0].fileno())
        await driver.close()

    asyncio.run(main())


def test_more_requests_than_threads_are_answered_one_after_another() -> None:
    running: list[int] = []
    most: list[int] = []

    def answer(request: Any) -> int:
        running.append(1)
        most.append(len(running))
        time.sleep(0.002)
        running.pop()
        return 1

    async def main() -> None:
        driver = AsyncDriver(FakeSource(answer))
        replies = await asyncio.gather(*(driver.run(asking(Purge())) for _ in range(10 * MAX_THREADS)))
        assert replies == [[1]] * 10 * MAX_THREADS
        await driver.close()

    asyncio.run(main())
    assert max(most) <= MAX_THREADS


def test_one_driver_serves_two_loops_in_two_threads() -> None:
    driver = AsyncDriver(FakeSource(lambda request: 1))
    barrier = threading.Barrier(2)
    results: list[Any] = []

    async def main() -> None:
        await asyncio.to_thread(barrier.wait)
        for _ in range(50):
            results.append(await driver.run(asking(Purge(), Wait(1))))

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[1, False]] * 100
    asyncio.run(driver.close())


def test_loops_that_start_the_threads_at_the_same_moment_get_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    made: list[Any] = []

    class MadeTogether(aio._Executor):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)
            both.wait(DEADLINE_S)

    monkeypatch.setattr(aio, "_Executor", MadeTogether)
    threads, found = Threads(), []
    starters = [threading.Thread(target=lambda: found.append(threads.started())) for _ in range(2)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(DEADLINE_S)
    assert len(made) == 2
    assert found[0] is found[1] is threads.started()
    threads.close()
    for executor in made:
        for thread in executor._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
