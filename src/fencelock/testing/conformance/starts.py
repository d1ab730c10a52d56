"""Checks of a source while threads do not start, as when a limit on threads is reached for a moment."""

import select
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fencelock import protocol as ask
from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.protocol import Channel
from fencelock.testing import runners
from fencelock.testing.conformance.faults import failing_starts
from fencelock.testing.conformance.rig import require
from fencelock.testing.conformance.source_rig import Claimant
from fencelock.testing.conformance.waiting import WaitingChecks

Result = TypeVar("Result")
MAX_FAILURES = 20
"""Errors in a row after which a request must succeed: each kind of thread fails to start once only."""
_PAUSE_S = 0.01


class StartChecks(WaitingChecks):
    """Checks of a source whose threads do not start at once."""

    def test_a_thread_that_did_not_start_is_started_later(self) -> None:
        """H2, H7: every kind of thread fails to start once. Requests end, a waiter gets its turn, a loss is told, and
        afterwards waiters are notified as before.

        A store may answer SourceUnavailableError, if nothing was done, or OutcomeUnknownError.
        """
        _finish_in_time(self._use_while_starts_fail)
        self.check_release_is_told()

    def _use_while_starts_fail(self) -> None:
        give_up_s = time.monotonic() + runners.REQUEST_TIMEOUT_S
        holder, waiter = self.claimant(), self.claimant()
        _repeat(holder.hold)
        _repeat(waiter.queue)
        channel: Channel = _repeat(lambda: self.store.listen(waiter.lock, waiter.claim))
        try:
            reply = _repeat(waiter.poll)
            require(isinstance(reply, ask.Queued), f"the lock is held, so the waiter is queued, not {reply}")
            _repeat(holder.release)
            self._take_turn(waiter, channel, reply)
        finally:
            channel.close()
        require(_repeat(waiter.renew) is None, "H2: a lease is renewed though threads did not start")
        _repeat(self.break_lock)
        while _repeat(waiter.renew) is None:
            require(time.monotonic() < give_up_s, "H2: a renewal reports a loss though threads did not start")
            time.sleep(_PAUSE_S)
        _repeat(waiter.release)

    def _take_turn(self, waiter: Claimant, channel: Channel, reply: Any) -> None:
        """Wait as drivers do: until the channel is notified, or for the time that the store has told."""
        hearing = select.poll()
        hearing.register(channel.fileno(), select.POLLIN)
        while isinstance(reply, ask.Queued):
            hearing.poll(reply.wait_ms)
            channel.drain()
            reply = _repeat(waiter.poll)
        waiter.granted(reply, "H7: a waiter gets its turn though threads did not start")


def _repeat(request: Callable[[], Result]) -> Result:
    """Send a request again after an error that invites to it."""
    for _ in range(MAX_FAILURES):
        try:
            return request()
        except (SourceUnavailableError, OutcomeUnknownError):
            time.sleep(_PAUSE_S)
    return request()


def _finish_in_time(work: Callable[[], None]) -> None:
    """Do the work in a thread while the first start of each kind of thread fails; fail if it does not end in time."""
    errors: list[BaseException] = []
    may_begin = threading.Event()

    def run() -> None:
        may_begin.wait(runners.REQUEST_TIMEOUT_S)
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with failing_starts():
        may_begin.set()
        thread.join(runners.REQUEST_TIMEOUT_S)
    if errors:
        raise errors[0]
    require(
        not thread.is_alive(),
        f"a request or a waiter's turn took longer than {runners.REQUEST_TIMEOUT_S:g} s after a thread did not start",
    )
