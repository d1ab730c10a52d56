"""Keep client libraries out of threads in which exceptions come from outside.

A signal handler runs in the main thread, and may raise anywhere. PyThreadState_SetAsyncExc raises in any thread that a
program knows, as time limits of task queues do. gRPC, urllib3 and kazoo take their locks in Python code: an exception
there leaves such a lock taken, for which every other call waits, or part of a request undone. botocore would also
swallow the exception as one of its own. So fencelock calls the library in a thread of its own, which the program does
not know, while the caller waits.

Promise: an exception from outside ends the caller's wait, and never the call: nobody knows whether the store does what
was asked. The wait has a bound. A forked child starts threads of its own; a wait that it has inherited ends with an
error. While the interpreter ends and no other thread runs any more, the caller makes the call itself.
Never: a helper used again whose call was not awaited to its end.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from fencelock._platform import at_fork
from fencelock._threads import start_thread
from fencelock.errors import FencelockError, OutcomeUnknownError, SourceUnavailableError

Result = TypeVar("Result")
Outcome = tuple[Any, BaseException | None]
"""What a function has returned, or what it has raised."""
MAX_CALL_S = 20.0
"""Longer than the timeout of any call to etcd and the time for which a fork may hold one up, together."""
MAX_IDLE = 16
_LOOK_S = 0.25
"""Between two looks whether the thread that a call waits for exists in this process."""


class Outcomes:
    """The outcome of one call, which another thread waits for."""

    def __init__(self) -> None:
        self._outcomes: list[Outcome] = []
        # Not a SimpleQueue: where a signal handler takes longer than its timeout, Python 3.11's waits for ever.
        self._is_waiting = threading.Lock()
        self._is_waiting.acquire()

    def put(self, outcome: Outcome) -> None:
        """End the wait."""
        self._outcomes.append(outcome)
        self._is_waiting.release()

    def get(self, timeout_s: float) -> Outcome | None:
        """Wait for the outcome, and return it; None if there is none after this time."""
        return self._outcomes.pop() if self._is_waiting.acquire(timeout=timeout_s) else None


class HelperThread:
    """A thread that runs one function after another. It ends when nothing refers to this object any more."""

    def __init__(self) -> None:
        # Waiting for a SimpleQueue runs no Python code, so a signal handler finds no lock of it taken.
        self._functions: SimpleQueue[tuple[Callable[[], Any], Outcomes] | None] = SimpleQueue()
        self._process_id = os.getpid()
        start_thread(threading.Thread(target=_serve, args=(self._functions,), name="fencelock-call", daemon=True))

    def begin(self, function: Callable[[], Any]) -> Outcomes:
        """Run the function; its outcome will come into what is returned."""
        outcomes = Outcomes()
        self._functions.put((function, outcomes))
        return outcomes

    def is_here(self) -> bool:
        """Return whether the thread is one of this process: a forked child has none of its parent's."""
        return self._process_id == os.getpid()

    def __del__(self) -> None:
        self._functions.put(None)


def _serve(functions: "SimpleQueue[tuple[Callable[[], Any], Outcomes] | None]") -> None:
    _THIS.is_helper = True
    while (work := functions.get()) is not None:
        function, outcomes = work
        outcome: Outcome
        try:
            outcome = function(), None
        except BaseException as error:
            outcome = None, error
        outcomes.put(outcome)
        # Nothing of a call may live until the next one: channels close when nothing refers to them.
        del work, function, outcomes, outcome


def in_helper_thread(function: Callable[[], Result], limit_s: float = MAX_CALL_S) -> Result:
    """Run the function, which calls the library, in a helper thread, and return its result.

    `limit_s` must be longer than the library's own timeouts together.
    """
    if getattr(_THIS, "is_helper", False) or (helper := _helper()) is None:
        return function()
    return _result_of(helper, helper.begin(function), limit_s)  # type: ignore[no-any-return]


def in_helper_threads(functions: Sequence[Callable[[], Result]], at_once: int) -> list[Result | FencelockError]:
    """Run the functions, `at_once` at a time; return of each its result, or the FencelockError that it raised.

    None begins after one has failed: it has that error for an outcome. Each call that a function makes by
    `in_helper_thread` has its own bound, and a thread of its own.
    """
    work = _Work(functions)
    begun = []
    try:
        for _ in functions[:at_once]:
            if (helper := _helper()) is None:
                break
            begun.append((helper, helper.begin(work.do)))
        if not begun:
            work.do()
        for helper, outcomes in begun:
            _result_of(helper, outcomes, inf)
    except BaseException:
        work.stop()
        raise
    return work.outcomes()


class _Work(Generic[Result]):
    """Functions that several threads take from, one after another."""

    def __init__(self, functions: Sequence[Callable[[], Result]]) -> None:
        self._left = deque(enumerate(functions))
        self._results: dict[int, Result | FencelockError] = {}
        self._number = len(functions)
        self._is_stopped = False

    def do(self) -> None:
        """Take functions until none is left, or one has failed."""
        was_helper, _THIS.is_helper = getattr(_THIS, "is_helper", False), False
        try:
            while not self._is_stopped:
                try:
                    number, function = self._left.popleft()
                except IndexError:
                    return
                self._do(number, function)
        finally:
            _THIS.is_helper = was_helper

    def _do(self, number: int, function: Callable[[], Result]) -> None:
        try:
            self._results[number] = function()
        except FencelockError as error:
            self._results[number] = error
            self.stop()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Begin no further function."""
        self._is_stopped = True

    def outcomes(self) -> list[Result | FencelockError]:
        """Return the outcomes, in the order of the functions, and forget them: an error's traceback leads here."""
        results, self._results = self._results, {}
        self._left.clear()
        failure: Any = next((one for one in results.values() if isinstance(one, FencelockError)), None)
        return [results.get(number, failure) for number in range(self._number)]


def _helper() -> HelperThread | None:
    """Return a helper that has nothing to do; None if no thread can be started: a limit is reached, or the interpreter
    ends. A lease must be released even then.
    """
    if sys.is_finalizing():
        return None
    with suppress(IndexError):
        # A child that was forked by a signal handler may have got one of its parent's.
        while not (found := _IDLE.pop()).is_here():
            pass
        return found
    with suppress(SourceUnavailableError):
        return HelperThread()
    return None


def _result_of(helper: HelperThread, outcomes: Outcomes, limit_s: float) -> Any:
    result, error = _outcome_of(helper, outcomes, limit_s)
    if len(_IDLE) < MAX_IDLE:
        _IDLE.append(helper)
    if error is None:
        return result
    try:
        raise error
    finally:
        del error  # Its traceback refers to this frame.


def _outcome_of(helper: HelperThread, outcomes: Outcomes, limit_s: float) -> Outcome:
    ends_s = time.monotonic() + limit_s
    while True:
        left_s = max(0.0, ends_s - time.monotonic())
        if (outcome := outcomes.get(min(left_s, _LOOK_S))) is not None:
            return outcome
        if not helper.is_here():
            raise OutcomeUnknownError(
                "this process was forked by a signal handler during a call of the store's client, which goes on in "
                "the parent process alone: whether the store does what was asked is unknown"
            )
        if left_s <= _LOOK_S:
            raise OutcomeUnknownError(
                f"the store's client has not ended a call after {limit_s:g} s: whether the store did what was asked "
                f"is unknown"
            ) from TimeoutError(f"{limit_s:g} s")


_THIS = threading.local()
"""`is_helper`: whether this thread is a helper, which makes calls inside of calls itself."""
_IDLE: deque[HelperThread] = deque()
"""As many as there were calls at a time, up to MAX_IDLE."""
at_fork(after_in_child=_IDLE.clear)
