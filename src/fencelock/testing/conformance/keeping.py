"""Checks that one block's connection serves that block only: rule G11."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fencelock.testing.conformance.guard_rig import GuardRig
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
