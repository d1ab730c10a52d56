"""Checks that one block's connection serves that block only: rule G11."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from fencelock.errors import FencelockError, GuardError, OutcomeUnknownError, SourceUnavailableError
from fencelock.testing.conformance.faults import failing_starts
from fencelock.testing.conformance.guard_rig import LOCK, GuardRig
from fencelock.testing.conformance.interrupts import INTERRUPTS, CancelledAt, interrupted_at
from fencelock.testing.conformance.rig import refusal, require
from fencelock.testing.runners import REQUEST_TIMEOUT_S, sync_guard

A_MOMENT_S = 0.2
"""How long a second block may try to end before the first one does."""
MAX_FAILED_STARTS = 20
"""Errors in a row after which a block must succeed: each kind of thread fails to start once only."""


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

    def test_two_blocks_of_one_lease_lose_nothing_of_each_other(self) -> None:
        """G3: what either was told is written stays, whichever ends first."""
        lease, written = self.sequencer(5), []
        for key in ("first", "second"):
            self.write(self.guard(), lease, "before", key=key)

        def write(key: str, step: Callable[[], None]) -> None:
            with suppress(FencelockError):  # It was refused, or gave up waiting: as good.
                with sync_guard(self.make_store(self.url), ("r",), LOCK).transaction(lease) as native:
                    self.put(native, self.tables[0], key, "mine")
                    step()
                written.append(key)

        second = threading.Thread(target=write, args=("second", lambda: None), daemon=True)

        def start_second() -> None:
            second.start()
            second.join(A_MOMENT_S)

        write("first", start_second)
        second.join(REQUEST_TIMEOUT_S)
        require(not second.is_alive() and written, f"G3: of two blocks at once, one at least is written: {written}")
        for key in written:
            value = self.value(key=key)
            require(
                value == "mine", f"G3: what the {key} block wrote is gone: {written} were written, {value!r} is kept"
            )

    def test_bytes_that_come_back_are_noticed(self) -> None:
        """G3: a block whose reads are compared is refused, though another one has written the same value again."""
        if not self.compares_reads:
            return
        lease = self.sequencer(5)
        self.write(self.guard(), lease, "first")

        def write_twice() -> None:
            for value in ("second", "first"):
                with sync_guard(self.make_store(self.url), ("r",), LOCK).transaction(lease) as other:
                    self.put(other, self.tables[0], "k", value)

        with (
            refusal(GuardError, "G3: what the block has read was written since"),
            sync_guard(self.make_store(self.url), ("r",), LOCK).transaction(lease) as native,
        ):
            require(self.read(native, self.tables[0], "k") == "first", "a block reads what is committed")
            writing = threading.Thread(target=write_twice, daemon=True)
            writing.start()
            writing.join(REQUEST_TIMEOUT_S)
            self.put(native, self.tables[0], "k", "late")
        require(self.value() == "first", f"G3: the refused block writes nothing: {self.value()}")

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

    def test_a_cancelled_block_leaves_the_next_one_in_order(self) -> None:
        """G11: a task that is cancelled between a request and its reply leaves no such connection to others.

        For the async guard.
        """
        if self.loop is None:
            return
        guard, before = self.guard(), None
        for wait in count():
            value, after = f"wait {wait}", f"after wait {wait}"
            row = (self.tables[0], "k", value)
            block = CancelledAt(self.write_in_task(guard, self.sequencer(2 * wait + 1), row), wait)
            with suppress(asyncio.CancelledError):
                self.loop.wait(block)
            require(
                self.value() in ({before, value} if block.has_come else {value}),
                "G11: a cancelled block is committed, or nothing of it is written",
            )
            self._write_in_order(guard, self.sequencer(2 * wait + 2), after)
            before = after
            if not block.has_come:
                return

    def test_a_block_succeeds_once_threads_start_again(self) -> None:
        """H10: every kind of thread fails to start once. A block may raise SourceUnavailableError, if nothing was done,
        or OutcomeUnknownError; the one that is tried again is committed.
        """
        guard, lease = self.guard(), self.sequencer(5)
        with failing_starts() as faults:
            for _ in range(MAX_FAILED_STARTS):
                with suppress(SourceUnavailableError, OutcomeUnknownError):
                    self.write(guard, lease, "written")
                    break
        require(self.value() == "written", f"H10: a block is committed after threads did not start: {faults.failed}")

    def _write_in_order(self, guard: Any, lease: Any, value: str) -> None:
        rule = "G11: the block after one that was interrupted or cancelled is in order"
        try:
            self.write(guard, lease, value)
        except Exception as error:
            raise AssertionError(rule) from error
        require(self.value() == value, rule)
