"""Threads that may fail to start, because the process has reached a limit on threads at that moment.

Promise: a start that fails changes nothing, so the next one succeeds as soon as the limit allows. Its error says that
nothing was done, and what to raise. One thread at a time serves, also if an exception from a signal handler broke off a
start whose thread began after all.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fencelock.errors import SourceUnavailableError

_AT_EXIT = "new thread at interpreter shutdown"
"""What Python 3.12 and later say once the main thread has ended."""


class BackgroundThread:
    """A daemon thread that is started when it is needed, and again after its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        # Re-entrant: a signal handler may start the thread while the same thread is starting it.
        self._mutex = threading.RLock()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether a thread serves now."""
        return self._thread is not None

    def start(self, serve: Callable[[], None]) -> None:
        """Have a thread call `serve` unless one does; SourceUnavailableError if it cannot be started.

        `serve` is no attribute, because it often belongs to the object that has this one: they would be a cycle.
        """
        if self._thread is not None:
            return
        with self._mutex:
            if self._thread is None:
                thread = threading.Thread(target=self._run, args=(serve,), name=self._name, daemon=True)
                start_thread(thread)
                self._thread = thread

    def end(self) -> None:
        """Note that the thread, which calls this, serves no longer: from now on `start` starts another one."""
        if self._thread is threading.current_thread():
            self._thread = None

    def join(self, timeout_s: float) -> None:
        """Wait at most so long for the thread's end."""
        if (thread := self._thread) is not None:
            thread.join(timeout_s)

    def _run(self, serve: Callable[[], None]) -> None:
        thread = threading.current_thread()
        with self._mutex:
            # After a start that was broken off, another thread may serve already.
            if self._thread not in (None, thread):
                return
            self._thread = thread
        try:
            serve()
        finally:
            self.end()


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; SourceUnavailableError if it cannot be started."""
    with mapping_start_failures():
        if sys.is_finalizing():
            raise RuntimeError(_AT_EXIT)  # Python 3.11 would wait for ever until it runs.
        thread.start()


def check_can_start() -> None:
    """Raise SourceUnavailableError if no thread can be started now.

    For client libraries that end the whole process if they cannot start theirs.
    """
    start_thread(threading.Thread(target=do_nothing, name="fencelock-check", daemon=True))


def do_nothing() -> None:
    """Do nothing, in a thread that has to be started for it."""


def start_error(error: RuntimeError) -> SourceUnavailableError:
    """Return the error for a thread that could not be started before anything was done."""
    return SourceUnavailableError(f"{start_problem(error)}. Nothing was done")


def start_problem(error: RuntimeError) -> str:
    """Return why a thread could not be started, and what to do, as a sentence without its full stop."""
    if _AT_EXIT in str(error):
        return (
            "this process is ending, and Python starts no thread any more: acquire the lock before the main thread ends"
        )
    return (
        f"this process could not start a thread ({error}): it has reached a limit on threads. Raise the limit "
        f"(`ulimit -u`, the container's pids limit), or try again when other threads have ended"
    )


def is_start_failure(error: BaseException) -> bool:
    """Return whether an exception that passed through other code is that of a thread that could not be started."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in ("start new thread", _AT_EXIT))


@contextmanager
def mapping_start_failures() -> Iterator[None]:
    """Map the failed start of a thread to SourceUnavailableError, where a client starts threads before it connects.

    An event loop resolves the names of hosts in a thread.
    """
    try:
        yield
    except RuntimeError as error:
        if is_start_failure(error):
            raise start_error(error) from error
        raise
