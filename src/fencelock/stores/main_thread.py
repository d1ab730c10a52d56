"""Keep client libraries out of the main thread, where signal handlers run and may raise anywhere.

gRPC and urllib3 take their locks in Python code. A handler that raises there leaves such a lock taken: that of a call,
a channel or a pool of connections, for which every other call on it waits, or one that all channels share. botocore
would also swallow the handler's exception as one of its own. So another thread calls the library while the main thread
waits for it.

Promise: an exception from a signal handler ends the main thread's wait at once, and never the call: nobody knows
whether the store does what was asked. The wait has a bound. A forked child starts threads of its own.
Never: a helper used again whose call was not awaited to its end.
"""

import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from fencelock._platform import at_fork
from fencelock._threads import mapping_start_failures
from fencelock.errors import OutcomeUnknownError, SourceUnavailableError

Result = TypeVar("Result")
Outcome = tuple[Any, BaseException | None]
"""What a function has returned, or what it has raised."""
MAX_CALL_S = 20.0
"""Longer than the timeout of any call to etcd and the time for which a fork may hold one up, together."""


class HelperThread:
    """A thread that runs one function after another. It ends when nothing refers to this object any more."""

    def __init__(self) -> None:
        # Waiting for a SimpleQueue runs no Python code, so a signal handler finds no lock of it taken.
        self._functions: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Outcome]] | None] = SimpleQueue()
        with mapping_start_failures():
            threading.Thread(target=_serve, args=(self._functions,), name="fencelock-call", daemon=True).start()

    def run(self, function: Callable[[], Any], limit_s: float) -> Outcome:
        """Run the function, and wait for its outcome."""
        outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self._functions.put((function, outcomes))
        try:
            return outcomes.get(timeout=limit_s)
        except Empty:
            raise OutcomeUnknownError(
                f"the store's client has not ended a call after {limit_s:g} s: whether the store did what was asked "
                f"is unknown"
            ) from None

    def __del__(self) -> None:
        self._functions.put(None)


def _serve(functions: "SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Outcome]] | None]") -> None:
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


def outside_main_thread(function: Callable[[], Result], limit_s: float = MAX_CALL_S) -> Result:
    """Run the function, which calls the library, and return its result: in a helper thread if this is the main thread.

    `limit_s` is longer than the library takes.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return function()
    try:
        helper = _IDLE.pop()
    except IndexError:
        try:
            helper = HelperThread()
        except SourceUnavailableError:
            # No thread can be started: a limit is reached, or the interpreter ends. A lease must be released even then.
            return function()
    result, error = helper.run(function, limit_s)
    _IDLE.append(helper)
    if error is None:
        return result  # type: ignore[no-any-return]
    try:
        raise error
    finally:
        del error  # Its traceback refers to this frame.


_IDLE: deque[HelperThread] = deque()
"""One, unless a signal handler itself makes a call, which then needs another."""
at_fork(after_in_child=_IDLE.clear)
