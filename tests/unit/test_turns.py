"""H7 on a loop: acquires of one lock enter its queue in the order of their calls, whatever becomes of any of them."""

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from fencelock._drivers import turns
from fencelock._drivers.aio import AsyncDriver
from fencelock._flows.acquire import Attempt, acquire
from fencelock.errors import SourceUnavailableError
from fencelock.protocol.source_requests import Acquire, BlockSpent, Busy, ClaimEnded, Granted
from fencelock.protocol.stores import Capabilities
from tests.support.helpers import DEADLINE_S, wait_until_async
from tests.unit.fakes import FakeSource

pytestmark = [pytest.mark.reduced, pytest.mark.asyncio]

TTL_MS = 10_000
SOON_S = 0.02
"""A bound that a test lets pass."""
NEVER_S = 3600.0
GRANTED = Granted(1, TTL_MS, "source", "history")


class Held(FakeSource):
    """A source whose client speaks asyncio, and which answers an Acquire when the test lets it."""

    capabilities = Capabilities(
        ttl_min_ms=100, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=True, speaks_asyncio=True, max_connections=100
    )

    def __init__(self) -> None:
        super().__init__()
        self.answers: defaultdict[str, asyncio.Future[Any]] = defaultdict(asyncio.get_running_loop().create_future)
        self.driver = AsyncDriver(self)  # type: ignore[arg-type]

    def connect_async(self, *, request_timeout_s: float) -> "HeldConnection":
        return HeldConnection(self)

    def acquire(self, holder: str, *, lock: str = "lock", may_wait: bool = True, timeout_ms: int | None = None) -> Any:
        """Begin an acquire in a task of its own."""
        attempt = Attempt(lock, holder, TTL_MS)
        return asyncio.create_task(
            self.driver.run_in_turn(
                lock, timeout_ms, lambda left_ms: acquire(attempt, may_wait=may_wait, timeout_ms=left_ms)
            )
        )

    @property
    def holders(self) -> list[str]:
        """The holders that have asked for a lock, in the order of their requests."""
        return [request.holder for request in self.requests(Acquire)]

    async def has_asked(self, *holders: str) -> None:
        await wait_until_async(lambda: self.holders == list(holders))

    async def asks_no_more(self) -> None:
        """Let every task run that can."""
        before = self.holders
        for _ in range(10):
            await asyncio.sleep(0)
        assert self.holders == before


class HeldConnection:
    def __init__(self, source: Held) -> None:
        self._source = source

    async def perform(self, request: Any) -> Any:
        self._source.asked.append(request)
        if isinstance(request, Acquire):
            return await asyncio.shield(self._source.answers[request.holder])
        return None

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bound passes but the one of the test."""
    monkeypatch.setattr(turns, "STALL_S", NEVER_S)
    monkeypatch.setattr(turns, "MIN_WAIT_S", NEVER_S)


async def test_h7_an_acquire_asks_once_those_before_it_are_answered() -> None:
    source = Held()
    tasks = [source.acquire(holder) for holder in "abc"]
    await source.has_asked("a")
    await source.asks_no_more()
    for answered, asked in (("a", "ab"), ("b", "abc")):
        source.answers[answered].set_result(GRANTED)
        await source.has_asked(*asked)
        await source.asks_no_more()
    source.answers["c"].set_result(GRANTED)
    assert [grant.token for grant in await asyncio.gather(*tasks)] == [1, 1, 1]
    assert source.asked == source.requests(Acquire), "no request but the three"
    assert source.driver._turns._lines == {}


async def test_acquires_of_other_locks_do_not_wait() -> None:
    source = Held()
    tasks = [source.acquire(holder, lock=holder) for holder in "abc"]
    await source.has_asked("a", "b", "c")
    for task in tasks:
        task.cancel()


async def test_h7_a_try_does_not_overtake() -> None:
    source = Held()
    first, second = source.acquire("a"), source.acquire("b", may_wait=False, timeout_ms=0)
    await source.has_asked("a")
    await source.asks_no_more()
    source.answers["a"].set_result(GRANTED)
    source.answers["b"].set_result(Busy())
    assert (await first).token == 1
    assert await second is None


@pytest.mark.parametrize("reply", [BlockSpent(), ClaimEnded()])
async def test_h7_an_acquire_that_must_ask_again_keeps_its_turn(reply: Any) -> None:
    source = Held()
    tasks = [source.acquire(holder) for holder in "ab"]
    await source.has_asked("a")
    answer = source.answers.pop("a")
    answer.set_result(reply)
    await source.has_asked("a", "a")
    await source.asks_no_more()
    source.answers["a"].set_result(GRANTED)
    await source.has_asked("a", "a", "b")
    source.answers["b"].set_result(GRANTED)
    await asyncio.gather(*tasks)


# --- an acquire that ends makes room ---
async def test_a_cancelled_acquire_makes_room() -> None:
    source = Held()
    asking, waiting, last = (source.acquire(holder) for holder in "abc")
    await source.has_asked("a")
    waiting.cancel()
    await source.asks_no_more()
    asking.cancel()
    await source.has_asked("a", "c")
    source.answers["c"].set_result(GRANTED)
    assert (await last).token == 1
    assert source.driver._turns._lines == {}


async def test_an_acquire_that_fails_makes_room() -> None:
    source = Held()
    failing, last = (source.acquire(holder) for holder in "ab")
    await source.has_asked("a")
    source.answers["a"].set_exception(SourceUnavailableError("it is away"))
    await source.has_asked("a", "b")
    with pytest.raises(SourceUnavailableError):
        await failing
    last.cancel()


async def test_h7_a_try_at_the_end_of_a_long_line_does_not_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once asked after a tenth of a second, before those who had come first, and got the lock."""
    monkeypatch.setattr(turns, "MIN_WAIT_S", 1.0)  # The line moves in this time, on a busy machine too.
    source = Held()
    waiting = [source.acquire(holder) for holder in "abc"]
    late = [source.acquire("d", may_wait=False, timeout_ms=0), source.acquire("e", timeout_ms=1)]
    await source.has_asked("a")
    for holder in "ade":
        source.answers[holder].set_result(GRANTED)
    assert await asyncio.gather(*late) == [None, None]
    assert source.holders == ["a", "b"]
    for holder in "bc":
        source.answers[holder].set_result(GRANTED)
    assert [grant.token for grant in await asyncio.gather(*waiting)] == [1, 1, 1]
    assert source.driver._turns._lines == {}


# --- a request that hangs ---
async def test_a_request_that_hangs_holds_a_timed_acquire_up_until_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MIN_WAIT_S", 0.0)
    source = Held()
    hanging = source.acquire("a")
    timed = [source.acquire(holder, timeout_ms=int(SOON_S * 1000)) for holder in "bc"]
    patient = source.acquire("d")
    await source.has_asked("a", "b", "c")
    for holder in "bc":
        source.answers[holder].set_result(GRANTED)
    async with asyncio.timeout(DEADLINE_S):
        assert [grant.token for grant in await asyncio.gather(*timed)] == [1, 1]
    await source.asks_no_more()
    hanging.cancel()
    await source.has_asked("a", "b", "c", "d")
    patient.cancel()


async def test_the_wait_for_the_turn_counts_towards_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MIN_WAIT_S", 0.0)
    source = Held()
    hanging = source.acquire("a")
    left: list[int | None] = []

    def begin(left_ms: int | None) -> Any:
        left.append(left_ms)
        return acquire(Attempt("lock", "b", TTL_MS), may_wait=True, timeout_ms=left_ms)

    timed = asyncio.create_task(source.driver.run_in_turn("lock", int(SOON_S * 1000), begin))
    await source.has_asked("a", "b")
    assert left == [0]
    hanging.cancel()
    timed.cancel()


async def test_a_try_behind_a_request_that_hangs_is_made_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MIN_WAIT_S", SOON_S)
    source = Held()
    hanging, trying = source.acquire("a"), source.acquire("b", may_wait=False, timeout_ms=0)
    source.answers["b"].set_result(Busy())
    assert await trying is None
    hanging.cancel()


async def test_behind_a_source_that_hangs_everybody_asks_soon_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "STALL_S", SOON_S)
    source = Held()
    tasks = [source.acquire(holder) for holder in "abcdef"]
    await wait_until_async(lambda: sorted(source.holders) == list("abcdef"))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert source.driver._turns._lines == {}


async def test_a_line_that_moves_is_waited_for_however_long_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound counts from the last answer, and not from the call."""
    now_s = 0.0
    monkeypatch.setattr(turns, "monotonic", lambda: now_s)
    monkeypatch.setattr(turns, "STALL_S", SOON_S)
    source = Held()
    tasks = [source.acquire(holder) for holder in "abcd"]
    await source.has_asked("a")
    for answered, asked in (("a", "ab"), ("b", "abc"), ("c", "abcd")):
        now_s += 0.9 * SOON_S
        source.answers[answered].set_result(GRANTED)
        await source.has_asked(*asked)
        await asyncio.sleep(2 * SOON_S)  # Every timer has run, and has read the clock above.
        await source.asks_no_more()
    source.answers["d"].set_result(GRANTED)
    await asyncio.gather(*tasks)
