"""The weather of the network behind a proxy: what it holds, delays and loses.

Promise: a change hits every message that was not passed on before it. Never: locks; everything here runs in the
proxy's thread.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from fencelock_lab.proxy.framing import Frame, Framing

Direction = Literal["requests", "replies"]


class Weather:
    """What is done to the messages of all connections of one proxy."""

    def __init__(self) -> None:
        self.lost_bytes = 0
        self._losing: Direction | None = None
        self._to_drop: set[Direction] = set()
        self._is_held: Callable[[Framing], bool] | None = None
        self._held_until_s = self._delayed_until_s = self._delay_s = 0.0
        self._changed = asyncio.Event()

    # --- how it changes -----------------------------------------------------------------------------------------------
    def drop_next(self, direction: Direction) -> None:
        """Lose the next message in this direction, and its connection."""
        self._to_drop.add(direction)

    def lose(self, direction: Direction | None) -> None:
        """Lose all that passes in this direction; None: nothing any more."""
        self._losing = direction
        if direction is not None:
            self.lost_bytes = 0

    def freeze(self, is_held: Callable[[Framing], bool]) -> None:
        """Hold everything on the connections that `is_held` chooses."""
        self._is_held = is_held

    def thaw(self) -> None:
        """Pass on what was held, and all that comes."""
        self._is_held, self._held_until_s = None, 0.0
        self._changed.set()
        self._changed = asyncio.Event()

    def partition(self, seconds: float) -> None:
        """Hold everything for so long."""
        self._held_until_s = time.monotonic() + seconds

    def delay(self, seconds: float) -> None:
        """Hold each piece up by a tenth of this time, for all of it."""
        self._delay_s = seconds / 10
        self._delayed_until_s = time.monotonic() + seconds

    # --- what a message meets -----------------------------------------------------------------------------------------
    async def wait(self, framing: Framing) -> None:
        """Wait as long as the network is slow, cut or frozen."""
        if self._delayed_until_s > time.monotonic():
            await asyncio.sleep(self._delay_s)
        while (left_s := self._held_until_s - time.monotonic()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)
        while self._is_held is not None and self._is_held(framing):
            await self._changed.wait()

    def takes_along(self, direction: Direction) -> bool:
        """Return whether the message that comes in this direction is lost together with its connection."""
        is_dropped = direction in self._to_drop
        self._to_drop.discard(direction)
        return is_dropped

    def is_lost(self, direction: Direction, frame: Frame) -> bool:
        """Return whether this message is lost."""
        is_lost = self._losing == direction
        self.lost_bytes += len(frame.data) if is_lost else 0
        return is_lost
