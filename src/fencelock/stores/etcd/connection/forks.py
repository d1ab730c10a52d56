"""Keep gRPC alive across forks: a process that uses it forks between two calls, never during one.

gRPC prepares for a fork by itself. But if a thread is inside gRPC at that moment, it gives up, and leaves a child in
which every call waits for ever. So a fork waits here until no call is under way, and calls wait until the fork is done.
Streams of watches are ended for the fork, and start again.

Promise: a call costs a set's `add` and `discard` for it. If calls do not end in time, the fork goes on, and a call in
the child raises an error instead of waiting for ever.
Never: a lock taken: the child might find it taken by a thread that the child does not have.
"""

import os
import threading
import time
from collections.abc import Callable

from fencelock._platform import at_fork
from fencelock.errors import UnsupportedError
from fencelock.stores.etcd import FOR_GRPC

WAIT_S = 6.0
"""The longest time that a fork waits: longer than any call's timeout."""
_PAUSE_S = 0.001


class EtcdForkGate:
    """The calls to gRPC that are under way in this process."""

    def __init__(self) -> None:
        self._under_way: set[object] = set()
        self._streams: dict[object, Callable[[], None]] = {}
        self._forker: int | None = None
        self._is_registered = False
        self._is_broken = False

    def register(self) -> None:
        """Handle forks from now on.

        Call it once gRPC has started and registered its own handlers, so that these run before them.
        """
        if not self._is_registered:
            self._is_registered = True
            for name in FOR_GRPC:
                os.environ.pop(name, None)
            at_fork(before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child)

    def enter(self) -> object:
        """Begin a call; return the argument for `leave`."""
        if self._is_broken:
            raise UnsupportedError(
                "this process was forked while its parent was in the middle of a call to etcd that did not end: gRPC "
                "does not work here. Start it by exec, or with multiprocessing's `spawn`"
            )
        while (call := self.enter_unless_forking()) is None:
            time.sleep(_PAUSE_S)
        return call

    def enter_unless_forking(self) -> object | None:
        """Begin a call without waiting; return None if another thread is forking or calls do not work in this
        process.
        """
        # Added first and the forker read second, as `_before` sets the forker first and reads the set second: at least
        # one of two threads sees the other. Each step is atomic in the interpreter, so no lock is needed.
        call = object()
        self._under_way.add(call)
        if self._forker in (None, threading.get_ident()) and not self._is_broken:
            return call
        self._under_way.discard(call)
        return None

    def enter_stream(self, end: Callable[[], None]) -> object:
        """Begin a stream, and return the argument for `leave`.

        A fork calls `end` repeatedly until the stream has ended.
        """
        stream = self.enter()
        self._streams[stream] = end
        return stream

    def leave(self, call: object) -> None:
        """End a call, or a stream."""
        self._streams.pop(call, None)
        self._under_way.discard(call)

    def _before(self) -> None:
        self._forker = threading.get_ident()
        give_up_s = time.monotonic() + WAIT_S
        while self._under_way and time.monotonic() < give_up_s:
            # Repeatedly: a stream that was just being opened may miss the first call.
            for end in list(self._streams.values()):
                end()
            time.sleep(_PAUSE_S)

    def _after_in_parent(self) -> None:
        self._forker = None

    def _after_in_child(self) -> None:
        self._forker = None
        self._is_broken = bool(self._under_way)
        self._under_way = set()
        self._streams = {}


GATE = EtcdForkGate()
