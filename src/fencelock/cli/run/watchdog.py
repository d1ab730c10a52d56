"""The process that ends CMD's group in time when `fencelock run` cannot: it is frozen, killed or cut off.

It is forked before there is a lock, a thread or a database, only waits at a pipe, and imports nothing. It is a member
of CMD's group, blocks every signal that can be blocked, and signals *its own* group: while it lives, the group's id
belongs to that group, so that a signal never reaches other processes. See docs/decisions/run-watchdog.md.

Promise: the group gets SIGTERM `grace` before the lease's deadline, and SIGKILL at the deadline. The same happens
within `grace`, and not later than the deadline, when the pipe is closed (`run` died), when `run` reports that the
lease is lost, and, to the processes that CMD left behind, when `run` reports that CMD has ended. Then the watchdog
exits, by the last SIGKILL if one is needed.
Never: a descriptor of CMD's kept open, a signal to another group, an exit while the group is unwatched.
"""

import gc
import os
import select
import signal
from contextlib import suppress
from typing import NoReturn

from fencelock.cli.run import group
from fencelock.cli.run.events import GROUP_IS_ENDED
from fencelock.clock import boottime_ms

_ORDER_BYTES = 8
_LEASE_LOST = -1
_COMMAND_ENDED = -2
_READ_BYTES = 512 * _ORDER_BYTES
_GLANCE_MS = 1000
"""How often to check the clock while a lease is held: poll() does not count a suspend of the machine, deadlines do."""
_STEP_MS = 10
"""How often to check whether a group that was signalled has ended."""


class Watchdog:
    """The watchdog as `run` sees it: the orders that it takes. No call blocks or raises."""

    def __init__(self, group_id: int, *, events: int, grace_ms: int) -> None:
        reader, self._orders = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _live(reader, events, group_id, grace_ms)
        os.close(reader)
        os.set_blocking(self._orders, False)

    def rely_until(self, deadline_ms: int) -> None:
        """Set the lease's deadline; an earlier deadline than before changes nothing."""
        self._order(deadline_ms)

    def lease_is_lost(self) -> None:
        """End the group now: SIGTERM, and SIGKILL after the grace."""
        self._order(_LEASE_LOST)

    def command_has_ended(self) -> None:
        """End the processes that CMD left behind in its group, if there are any."""
        self._order(_COMMAND_ENDED)

    def _order(self, number: int) -> None:
        # `run` notices a dead watchdog by its exit; a full pipe means that a stopped one has enough to read.
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._orders, number.to_bytes(_ORDER_BYTES, "little", signed=True))

    def has_exited(self) -> bool:
        """Return whether the process has ended; its id, and with it the group's id, is not free yet."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def reap(self) -> None:
        """Reap the process, which frees its id."""
        os.waitpid(self.pid, 0)


# --- the process itself ----------------------------------------------------------------------------------------------
def _live(orders: int, events: int, group_id: int, grace_ms: int) -> NoReturn:
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.setpgid(0, group_id)
        _become_small(orders, events)
        _end_group(_watch(orders, events, grace_ms), grace_ms)
    except BaseException:
        if os.getpgrp() == group_id:
            os.kill(0, signal.SIGKILL)
    finally:
        os._exit(0)


def _become_small(*kept: int) -> None:
    """Close every other descriptor, leave the folder, and disable the collector, which would copy memory."""
    gc.disable()
    os.chdir("/")
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # The descriptor of the listing itself is closed already.
                os.close(int(name))
    with suppress(OSError):  # The name shown by ps and used by killall.
        descriptor = os.open("/proc/self/comm", os.O_WRONLY)
        os.write(descriptor, b"fencelock-watch")
        os.close(descriptor)


def _watch(orders: int, events: int, grace_ms: int) -> int:
    """Wait until the group has to end; return the deadline, 0 if there is none yet."""
    deadline_ms = 0
    is_lost = False
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    while not is_lost:
        sleep_ms = max(0, deadline_ms - grace_ms - boottime_ms())
        if poll.poll(min(sleep_ms, _GLANCE_MS) if deadline_ms else None):
            orders_read = _read(orders)
            deadline_ms = max(deadline_ms, *orders_read, 0)
            if not orders_read or _COMMAND_ENDED in orders_read:
                return deadline_ms
            is_lost = _LEASE_LOST in orders_read
        is_lost = is_lost or (deadline_ms > 0 and boottime_ms() >= deadline_ms - grace_ms)
    with suppress(OSError):  # `run` may have died.
        os.write(events, bytes((GROUP_IS_ENDED,)))
    return deadline_ms


def _read(orders: int) -> list[int]:
    """Return the orders of `run`, which are written atomically; an empty list at the end of the pipe."""
    text = os.read(orders, _READ_BYTES)
    starts = range(0, len(text), _ORDER_BYTES)
    return [int.from_bytes(text[at : at + _ORDER_BYTES], "little", signed=True) for at in starts]


def _end_group(deadline_ms: int, grace_ms: int) -> None:
    """End all other processes in the group; after the grace, or at the deadline, with SIGKILL to the whole group."""
    if not group.others():
        return
    kill_ms = boottime_ms() + grace_ms
    if deadline_ms:
        kill_ms = min(kill_ms, deadline_ms)
    # A stopped process handles SIGTERM only after SIGCONT.
    os.kill(0, signal.SIGTERM)
    os.kill(0, signal.SIGCONT)
    while boottime_ms() < kill_ms:
        select.select((), (), (), _STEP_MS / 1000)
        if not group.others():
            return
    os.kill(0, signal.SIGKILL)
