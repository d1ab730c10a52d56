"""Checks that one block's connection serves that block only: rule G11."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from fencelock.testing.conformance.guard_rig import GuardRig
from fencelock.testing.conformance.interrupts import INTERRUPTS, interrupted_at
from fencelock.testing.conformance.rig import require


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
        """G11: a signal handler's exception, between a request and its reply too, leaves no such connection to others.

        For the sync guard: handlers run in no other thread than the main one.
        """
        if self.is_async or not self.interrupted_files:
            return
        guard, before = self.guard(), None
        for place in count():
            value, after = f"place {place}", f"after place {place}"
            # No other exception is expected: the guard leaves this one as it is.
            with suppress(*INTERRUPTS), interrupted_at(place, *self.interrupted_files) as interruption:
                self.write(guard, self.sequencer(2 * place + 1), value)
            require(
                self.value() in ({before, value} if interruption.has_come else {value}),
                "G11: an interrupted block is committed, or nothing of it is written",
            )
            self._write_in_order(guard, self.sequencer(2 * place + 2), after)
            before = after
            if not interruption.has_come:
                require(place, "the attribute interrupted_files names files through which a guarded block goes")
                return

    def _write_in_order(self, guard: Any, lease: Any, value: str) -> None:
        rule = "G11: the block after an interrupted one is in order"
        try:
            self.write(guard, lease, value)
        except Exception as error:
            raise AssertionError(rule) from error
        require(self.value() == value, rule)
