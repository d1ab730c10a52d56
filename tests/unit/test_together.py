"""Several requests at a time: in threads and on a loop, what fails stops what has not begun, and nothing else."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from fencelock import OutcomeUnknownError, SchemaError, SourceUnavailableError
from fencelock.errors import FencelockError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores import helper_threads
from fencelock.stores.together import MAX_AT_ONCE, Together, all_of, together, together_async
from tests.support.helpers import DEADLINE_S, wait_until

Perform = Callable[[Any], Any]
Run = Callable[[Generator[Any, Any, Any], Perform], Any]


def in_threads(steps: Generator[Any, Any, Any], perform: Perform) -> Any:
    return run_generator(steps, together(perform))


def on_a_loop(steps: Generator[Any, Any, Any], perform: Perform) -> Any:
    async def perform_async(step: Any) -> Any:
        await asyncio.sleep(0)
        return perform(step)

    return asyncio.run(run_generator_async(steps, together_async(perform_async)))


@pytest.fixture(params=[in_threads, on_a_loop])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


def each(*steps: Any) -> Generator[Any, Any, list[Any]]:
    return each_of(map(one, steps))


def each_of(runs: Iterable[Generator[Any, Any, Any]]) -> Generator[Any, Any, list[Any]]:
    return (yield Together(tuple(runs)))


def one(step: Any) -> Generator[Any, Any, Any]:
    return (yield step)


def raise_errors(step: Any) -> Any:
    if isinstance(step, Exception):
        raise step
    return step


def test_outcomes_come_in_the_order_of_the_requests(run: Run) -> None:
    numbers = list(range(3 * MAX_AT_ONCE))
    assert run(each(*numbers), lambda step: 2 * step) == [2 * number for number in numbers]


def test_a_run_of_several_requests_goes_on_beside_the_others(run: Run) -> None:
    def two() -> Generator[Any, Any, Any]:
        return (yield 1) + (yield 10)

    assert run(all_of([two(), two(), two()]), lambda step: step + 1) == [13, 13, 13]


def test_nothing_is_done_where_nothing_is_asked_for(run: Run) -> None:
    assert run(all_of([]), raise_errors) == []


@pytest.mark.parametrize("error", [OutcomeUnknownError("lost"), SourceUnavailableError("down")])
def test_none_begins_after_one_has_failed(run: Run, error: FencelockError) -> None:
    asked: list[Any] = []

    def perform(step: Any) -> Any:
        asked.append(step)
        return raise_errors(step)

    steps = [error] * MAX_AT_ONCE + list(range(3 * MAX_AT_ONCE))
    assert run(each(*steps), perform) == [error] * len(steps)
    assert len(asked) <= 2 * MAX_AT_ONCE


def test_what_has_begun_beside_a_failure_has_its_own_outcome() -> None:
    begun = threading.Barrier(2)

    def perform(step: Any) -> Any:
        begun.wait(DEADLINE_S)
        return raise_errors(step)

    error = OutcomeUnknownError("lost")
    assert in_threads(each(error, "written"), perform) == [error, "written"]


def test_all_of_raises_the_first_error(run: Run) -> None:
    with pytest.raises(SchemaError, match="first"):
        run(all_of([one(1), one(SchemaError("first"))]), raise_errors)


def test_an_error_that_nobody_expects_is_raised_and_ends_the_rest(run: Run) -> None:
    asked: list[int] = []

    def divide(step: int) -> float:
        asked.append(step)
        return 1 / step

    with pytest.raises(ZeroDivisionError):
        run(each(*[0] * MAX_AT_ONCE, *[1] * 50), divide)
    assert len(asked) <= 2 * MAX_AT_ONCE


def test_a_cancelled_task_is_cancelled_though_a_request_fails_meanwhile() -> None:
    async def perform(_: Any) -> None:
        try:
            await asyncio.sleep(DEADLINE_S)
        finally:
            raise ZeroDivisionError

    async def cancel() -> None:
        waiting = asyncio.create_task(run_generator_async(each(1, 2), together_async(perform)))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancel())


def test_each_call_of_a_run_has_a_bound_and_a_thread_of_its_own() -> None:
    """A reply that drips ends its own run, and no other's."""
    goes_on = threading.Event()

    def perform(step: str) -> str:
        drips = step == "drips"
        call = partial(goes_on.wait, DEADLINE_S) if drips else threading.get_ident
        result = helper_threads.in_helper_thread(call, 0.05 if drips else DEADLINE_S)
        return "another thread" if result != threading.get_ident() else "this thread"

    dripping, other = in_threads(each("drips", "answers"), perform)
    goes_on.set()
    assert isinstance(dripping, OutcomeUnknownError)
    assert other == "another thread"


class Body:
    """What is to be uploaded."""


def upload(body: Body) -> Generator[Any, Any, Body]:
    yield "upload"
    return body


def suppressed(runs: Sequence[Generator[Any, Any, Any]]) -> Generator[Any, Any, None]:
    with suppress(OutcomeUnknownError):
        yield from all_of(runs)


@pytest.mark.parametrize("gather", [suppressed, each_of])
def test_what_failed_lives_no_longer_than_its_error(run: Run, gather: Callable[[Any], Any]) -> None:
    """Without the collector's help: bodies may be large."""

    def fail(_: Any) -> None:
        raise OutcomeUnknownError("lost")

    gc.disable()
    try:
        body = Body()
        kept = weakref.ref(body)
        run(gather([upload(body), upload(body)]), fail)
        del body
        wait_until(lambda: kept() is None)
    finally:
        gc.enable()


def test_as_many_requests_are_under_way_at_a_time_as_may_be() -> None:
    """Each waits for the seven others."""
    meeting = threading.Barrier(MAX_AT_ONCE)
    in_threads(each(*range(2 * MAX_AT_ONCE)), lambda _: meeting.wait(DEADLINE_S))


def test_on_a_loop_as_many_are_under_way_as_may_be() -> None:
    most = now = 0

    async def perform(_: Any) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    asyncio.run(run_generator_async(each(*range(3 * MAX_AT_ONCE)), together_async(perform)))
    assert most == MAX_AT_ONCE


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise SourceUnavailableError("no thread can be started")

    monkeypatch.setattr(helper_threads, "HelperThread", refuse)
    monkeypatch.setattr(helper_threads, "_IDLE", helper_threads.deque())


def test_where_no_thread_starts_the_caller_does_everything(no_threads: None) -> None:
    """At the end of the interpreter, leases are released nevertheless."""
    names = in_threads(each(*range(3)), lambda _: threading.current_thread().name)
    assert names == [threading.current_thread().name] * 3


def test_what_breaks_off_the_callers_wait_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's exception, for one. What is under way goes on to its end."""
    asked: list[Any] = []
    go_on = threading.Event()

    def perform(step: Any) -> None:
        asked.append(step)
        assert go_on.wait(DEADLINE_S)

    def break_off(*_: Any) -> None:
        wait_until(lambda: len(asked) == MAX_AT_ONCE)
        raise KeyboardInterrupt

    monkeypatch.setattr(helper_threads, "_result_of", break_off)
    works: list[Any] = []

    class Noted(helper_threads._Work[Any]):
        def __init__(self, functions: Sequence[Callable[[], Any]]) -> None:
            super().__init__(functions)
            works.append(self)

    monkeypatch.setattr(helper_threads, "_Work", Noted)
    with pytest.raises(KeyboardInterrupt):
        in_threads(each(*range(4 * MAX_AT_ONCE)), perform)
    go_on.set()
    wait_until(lambda: len(works[0]._results) == MAX_AT_ONCE)
    assert len(asked) == MAX_AT_ONCE
