"""The order in which the tasks of a loop enter the queue of a lock: first called, first in.

Promise: an acquire asks the source as soon as the acquires of the same lock that began before it on the same loop have
been answered, because requests on different connections overtake each other. An acquire that ends in any way makes room
for the next. One whose timeout passes while others before it are answered ends without asking: it is late. One whose
request hangs holds each other one up until that one's own timeout, and for STALL_S at most; then they go ahead of it.
Never: a round trip more, a wait for another lock's acquire, or an order among the loops of several threads.
"""

import asyncio
from collections import deque
from time import monotonic

STALL_S = 2.0
"""How long acquires wait behind a request that gets no answer."""
MIN_WAIT_S = 0.1
"""How long an acquire waits for its turn even if its timeout is shorter: a try that overtakes would get a lock that
others were promised."""
_Key = tuple[asyncio.AbstractEventLoop, str]


class _Line:
    """The turns at one lock; the first one is asking the source."""

    def __init__(self, now_s: float) -> None:
        self.turns: deque[Turn] = deque()
        self.moved_s = now_s
        """When the first turn was last over."""


class Turn:
    """The place of one acquire in the line of its loop."""

    def __init__(self, lines: dict[_Key, _Line], key: _Key) -> None:
        self._lines = lines
        self._key = key
        self._loop = key[0]
        self._has_come: asyncio.Future[None] = self._loop.create_future()
        self._line = lines.setdefault(key, _Line(monotonic()))
        self._line.turns.append(self)
        self.is_late = False
        """Whether the timeout passed behind a line that moves: to ask now would overtake those that wait in it."""
        self._call_first()

    async def wait(self, timeout_ms: int | None) -> int | None:
        """Wait for the turn, and return what is left of the timeout."""
        started_s = monotonic()
        patience_s = float("inf") if timeout_ms is None else max(timeout_ms / 1000, MIN_WAIT_S)
        while not self._has_come.done():
            now_s = monotonic()
            stalled_s = self._line.moved_s + STALL_S
            if now_s >= started_s + patience_s:
                self.is_late = self._line.moved_s > started_s
                break
            if now_s >= stalled_s:
                # After STALL_S the first one's request counts as hung: those behind it go ahead, so that a lost reply
                # holds up none of them for longer.
                self._line.turns.popleft()
                self._call_first()
            else:
                await asyncio.wait([self._has_come], timeout=min(started_s + patience_s, stalled_s) - now_s)
        waited_ms = int((monotonic() - started_s) * 1000)
        return None if timeout_ms is None else max(0, timeout_ms - waited_ms)

    def leave(self) -> None:
        """Make room for the next; may be called repeatedly."""
        line = self._line
        if self not in line.turns:
            return
        if line.turns[0] is self:
            line.moved_s = monotonic()
        line.turns.remove(self)
        if not line.turns:
            del self._lines[self._key]
        else:
            self._call_first()

    def _call_first(self) -> None:
        first = self._line.turns[0]._has_come  # noqa: SLF001 - another Turn.
        if not first.done() and not self._loop.is_closed():
            first.set_result(None)


class Turns:
    """The lines at all locks of a source."""

    def __init__(self) -> None:
        self._lines: dict[_Key, _Line] = {}

    def enter(self, lock: str) -> Turn:
        """Join the line of the running loop at this lock."""
        return Turn(self._lines, (asyncio.get_running_loop(), lock))
