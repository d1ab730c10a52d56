"""Checks that one block's connection serves that block only: rule G11."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fencelock.testing.conformance.guard_rig import GuardRig
from fencelock.testing.conformance.interrupts import HandlerExit, interrupted_at
from fencelock.testing.conformance.rig import require

INTERRUPTIONS = 60
"""At how many places a block is interrupted: they are spread evenly from its beginning to its end."""


class KeepingChecks(GuardRig):
    """Checks of what a block leaves behind for later ones."""

    def test_a_kept_connection_writes_in_no_later_block(self) -> None:
        """G11: a late thread or task of an older tenure may still refer to what its block was given."""
        guard = self.protect() if self.enforces else self.guard()
        kept: list[Any] = []

        async def write_late(_: Any) -> None:
            with suppress(Exception):
                await self.put_async(kept[0], self.tables[0], "late", "stale")

        def write_late_in_thread(_: Any) -> None:
            with suppress(Exception):
                self.put(kept[0], self.tables[0], "late", "stale")

        late: Callable[[Any], Any] = write_late if self.is_async else write_late_in_thread
        self._in_block(guard, self.sequencer(5), "old", kept.append)
        self._in_block(guard, self.sequencer(6), "new", late)
        require(self.value(key="late") is None, "G11: what is kept of a block writes in no later block")
        require(self.value() == "new", "G11: the later block is committed")

    def _in_block(self, guard: Any, lease: Any, value: str, step: Callable[[Any], Any]) -> None:
        """Write a value in a guarded transaction, and then do something else in it."""
        row = (self.tables[0], "k", value)
        if self.loop is None:
            with guard.transaction(lease) as native:
                self.put(native, *row)
                step(native)
            return

        async def write() -> None:
            async with guard.transaction(lease) as native:
                await self.put_async(native, *row)
                if inspect.isawaitable(done := step(native)):
                    await done

        self.loop.wait(write())

    def test_an_interrupted_block_leaves_the_next_one_in_order(self) -> None:
        """G11: the exception of a signal handler, anywhere in a block, leaves no half-used connection to later ones."""
        if self.is_async:
            return
        guard = self.guard()
        self.write(guard, self.sequencer(1), "first")
        with interrupted_at(None, *self.interrupted_files) as whole:
            self.write(guard, self.sequencer(2), "first")
        before: str | None = "first"
        for place in range(0, whole.places, max(1, whole.places // INTERRUPTIONS)):
            value = f"interrupted at {place}"
            # A client library in C may turn the exception into one of its own.
            with suppress(Exception, HandlerExit), interrupted_at(place, *self.interrupted_files) as interruption:
                self.write(guard, self.sequencer(3 + place), value)
            found = self.value()
            expected = {before, value} if interruption.has_come else {value}
            require(found in expected, f"G11: a block is committed, or it is undone: {found!r}, not one of {expected}")
            before = found
        self.write(guard, self.sequencer(3 + whole.places), "last")
        require(self.value() == "last", "G11: after interrupted blocks the next one is in order")
