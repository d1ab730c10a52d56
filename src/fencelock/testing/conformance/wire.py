"""Checks of requests and replies that are lost, late or held back, at the place where a store's client sends them (G2,
G3, G7).

Promise: a client library that sends a request again behind the store's back is seen, since each sending counts.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from fencelock.errors import FencelockError
from fencelock.testing.conformance.guard_rig import LOCK, GuardRig
from fencelock.testing.conformance.rig import require
from fencelock.testing.runners import REQUEST_TIMEOUT_S, sync_guard

MAX_REQUESTS = 50
"""More requests than a guarded block sends."""
LOST_REPLY, LOST_REQUEST, LATE_REQUEST, HELD_REPLY = "reply lost", "request lost", "request late", "reply held back"


class WireFault:
    """What happens to one request, by its number among those that are sent."""

    def __init__(self, number: int, kind: str, error: Callable[[], Exception]) -> None:
        self.has_struck = False
        self.is_held = threading.Event()
        self.may_arrive = threading.Event()
        self.spared: int | None = None
        """The thread whose requests are none of it."""
        self._number = number
        self._kind = kind
        self._error = error
        self._sent = 0
        self._late: Callable[[], Any] | None = None

    def send(self, send: Callable[[], Any]) -> Any:
        """Send one request, or do to it what was asked for."""
        self._sent += 1
        if self.has_struck or self._sent <= self._number:
            return send()
        self.has_struck = True
        if self._kind == LATE_REQUEST:
            self._late = send
        if self._kind in (LATE_REQUEST, LOST_REQUEST):
            raise self._error()
        reply = send()
        if self._kind == HELD_REPLY:
            self.is_held.set()
            require(self.may_arrive.wait(REQUEST_TIMEOUT_S), "the check lets each reply go")
            return reply
        raise self._error()

    async def send_async(self, send: Callable[[], Any]) -> Any:
        """Do the same for a client that speaks asyncio; no reply is held back there."""
        self._sent += 1
        if self.has_struck or self._sent <= self._number:
            return await send()
        self.has_struck = True
        if self._kind == LATE_REQUEST:
            self._late = send
        if self._kind == LOST_REPLY:
            await send()
        raise self._error()

    def arrive(self) -> Any:
        """Send the late request now; what it answers reaches nobody."""
        return None if self._late is None else self._late()


class WireChecks(GuardRig):
    """Checks for stores whose rig defines `wire`; the others pass them unasked."""

    def test_whatever_is_lost_what_is_told_is_true(self) -> None:
        """G7: a definite error says that nothing was written, and success that all of it was."""
        for kind, is_once in ((LOST_REPLY, False), (LOST_REPLY, True), (LOST_REQUEST, False)):
            for number, fault in self._faults(kind):
                value = f"{kind} {number}"
                error = self._write_with(
                    fault, self.sequencer(self._next_token()), value, once=value if is_once else None
                )
                if error is None:
                    require(self.value() == value, f"G7: success with {kind} at request {number} means written")
                elif error.definite:
                    require(self.value() != value, f"G7: {kind} at request {number} was told as nothing: {error!r}")
                require(fault.has_struck or error is None, f"without a fault the block succeeds: {error!r}")
                self.write(self.guard(), self.sequencer(self._next_token()), f"next {number}")

    def test_a_request_that_arrives_after_the_successors_seal_does_nothing(self) -> None:
        """G3: neither to the mark nor to the data, whichever request it is."""
        for number, fault in self._faults(LATE_REQUEST):
            self._write_with(fault, self.sequencer(self._next_token()), "late")
            successor, value = self.sequencer(self._next_token()), f"new {number}"
            self.write(self.guard(), successor, value)
            with suppress(Exception):  # The client library's error for a condition that does not hold.
                self.do(fault.arrive())
            require(self.value() == value, f"G3: request {number} came late and wrote: {self.value()}")
            require(self.mark().token == successor.token, f"G1: request {number} came late and sealed: {self.mark()}")

    def test_a_reply_that_was_held_back_says_what_was_then(self) -> None:
        """G3: whoever goes on after a successor's seal writes nothing. For the sync guard, whose thread can wait."""
        if self.is_async:
            return
        for number, fault in self._faults(HELD_REPLY):
            fault.spared = threading.get_ident()
            lease, value, told = self.sequencer(self._next_token()), f"held {number}", []

            def write(fault: WireFault = fault, lease: Any = lease, value: str = value) -> None:
                told.append(self._write_with(fault, lease, value))  # noqa: B023 - joined before the next turn.
                fault.is_held.set()  # Also if nothing was held.

            writing = threading.Thread(target=write, daemon=True)
            writing.start()
            require(fault.is_held.wait(REQUEST_TIMEOUT_S), "a block ends")
            successor = self.sequencer(self._next_token())
            self.seal(self.guard(), successor)
            seen = self.value()
            self.write(self.guard(), successor, f"new {number}")
            fault.may_arrive.set()
            writing.join(REQUEST_TIMEOUT_S)
            require(told, "a block ends")
            require(self.value() == f"new {number}", f"G3: reply {number} was held back, and the block wrote after it")
            require(told[0] is not None or seen == value, f"G2: reply {number} was held back, and a write was lost")

    def test_a_seal_that_arrives_after_a_purge_does_nothing(self) -> None:
        """G15: the mark is again as the seal had read it, missing or new, and the floor is not."""
        if not self.capabilities.spans_resources:
            return
        for number, fault in self._faults(LATE_REQUEST):
            resource = f"resource {number}"
            late, newer = self.sequencer(self._next_token()), self.sequencer(self._next_token())
            guard = self.guard(resource)
            self._with(fault, lambda guard=guard, late=late: self.seal(guard, late))  # type: ignore[misc]
            self.seal(self.guard(resource), newer)
            self.purge((self.mark(resource),))
            self.guard(resource)  # Where no seal creates a mark, it exists again.
            with suppress(Exception):
                self.do(fault.arrive())
            found = self.mark(resource)
            require(found.digest is None, f"G15: request {number} came late, below the floor, and sealed: {found}")

    # --- steps ------------------------------------------------------------------------------------------------------
    def _faults(self, kind: str) -> Iterator[tuple[int, WireFault]]:
        """Yield a fault at each request, until one comes too late to strike."""
        if self.wire() is None:
            return
        self.guard()  # Where no seal creates a mark, before the requests are counted.
        for number in range(MAX_REQUESTS):
            fault = WireFault(number, kind, self.lost_reply)
            yield number, fault
            if not fault.has_struck:
                require(number, "the method that `wire` names is called for each request")
                return
        raise AssertionError(f"a guarded block sends more than {MAX_REQUESTS} requests")

    def _next_token(self) -> int:
        self.tokens_drawn += 1
        return self.tokens_drawn

    def _write_with(
        self, fault: WireFault, lease: Any, value: str, *, once: str | None = None
    ) -> FencelockError | None:
        guard = self.guard() if self.is_async else sync_guard(self.make_store(self.url), ("r",), LOCK)
        return self._with(fault, lambda: self.write(guard, lease, value, once=once))

    def _with(self, fault: WireFault, act: Callable[[], None]) -> FencelockError | None:
        """Return what the caller is told."""
        with self._struck_by(fault):
            try:
                act()
            except FencelockError as error:
                return error
        return None

    @contextmanager
    def _struck_by(self, fault: WireFault) -> Iterator[None]:
        owner, name = self.wire() or (None, "")
        original = getattr(owner, name)

        def send(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() == fault.spared:
                return original(*arguments, **named)
            return fault.send(lambda: original(*arguments, **named))

        async def send_async(*arguments: Any, **named: Any) -> Any:
            return await fault.send_async(lambda: original(*arguments, **named))

        with patch.object(owner, name, send_async if inspect.iscoroutinefunction(original) else send):
            yield
