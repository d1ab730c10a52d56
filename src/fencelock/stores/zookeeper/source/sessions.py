"""The sessions of one source in this process: one for each ttl, shared by all locks of that ttl.

Promise: a session is made when it is first needed, and closed when its source is closed and its last claim is gone, or
at the interpreter's end; in a forked child there are none, and the parent's are left alone. What is remembered of ended
claims outlives every session.
"""

import os
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from fencelock.errors import SourceUnavailableError
from fencelock.stores.quorum.tombstones import EndedClaims
from fencelock.stores.zookeeper.connection.url import ZooKeeperConnectionInfo
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.session import ZooKeeperSession

OPERATORS_TICKS = 10
"""The timeout of a session that is made for a request without a ttl; the servers' limits are 2 and 20 by default."""
MIN_OPERATORS_MS = 1000
Result = TypeVar("Result")


class _World:
    """What one process has; a forked child begins with another."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.mutex = threading.RLock()
        # Held while a connection is waited for, unlike the other.
        self.opening = threading.RLock()
        self.of_ttl: dict[int, ZooKeeperSession] = {}
        self.ended = EndedClaims()
        self.users = 0
        self.is_over = False

    def check_open(self) -> None:
        """Raise SourceUnavailableError if the interpreter ends."""
        if self.is_over:
            raise SourceUnavailableError("the interpreter is ending: no lock can be asked for any more")

    def enter(self, session: ZooKeeperSession) -> None:
        """Keep a session that was made, unless the interpreter ends by now: it would be left behind."""
        with self.mutex:
            if not self.is_over:
                self.of_ttl[session.ttl_ms] = session
                return
        session.close()
        self.check_open()

    def close(self) -> None:
        """Close every session; whoever makes another is refused."""
        if self.process_id == os.getpid():
            with self.mutex:
                self.is_over = True
            self.close_sessions()

    def close_sessions(self) -> None:
        """Close every session; whoever needs one again makes it anew."""
        with self.mutex:
            sessions = list(self.of_ttl.values())
            self.of_ttl.clear()
        for session in sessions:
            session.close()


class ZooKeeperSessions:
    """Hands out the sessions of one source."""

    def __init__(self, place: ZooKeeperConnectionInfo) -> None:
        self._place = place
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._of_process = _World()
        # Without the source itself, so that a source that nobody has any more ends its sessions.
        weakref.finalize(self, self._of_process.close)

    @property
    def _world(self) -> _World:
        if self._of_process.process_id != os.getpid():
            self._begin_anew()
        return self._of_process

    @property
    def ended(self) -> EndedClaims:
        """The claims of this process that are over."""
        return self._world.ended

    def for_ttl(self, ttl_ms: int, request_timeout_s: float) -> ZooKeeperSession:
        """Return the session of a ttl, connected; SourceUnavailableError if no connection can be had in time."""
        session = self._world.of_ttl.get(ttl_ms)
        if session is None or not session.is_usable():
            session = self._opened(ttl_ms, request_timeout_s)
        session.wait_connected(request_timeout_s)
        return session

    def _opened(self, ttl_ms: int, request_timeout_s: float) -> ZooKeeperSession:
        """Make the session of a ttl, instead of the one that there is if that is of no use any more."""
        world = self._world
        with world.opening:
            session = world.of_ttl.get(ttl_ms)
            if session is not None and session.is_usable():
                return session  # Somebody else was faster.
            world.check_open()
            fresh = ZooKeeperSession(self._place, world.ended, ttl_ms, request_timeout_s)
            world.enter(fresh)
            if session is not None:
                session.close()
            return fresh

    def any(self, request_timeout_s: float) -> ZooKeeperSession:
        """Return a session for what needs none in particular."""
        for session in self.all():
            if session.is_usable():
                return self.for_ttl(session.ttl_ms, request_timeout_s)
        return self.for_ttl(max(OPERATORS_TICKS * self._place.tick_ms, MIN_OPERATORS_MS), request_timeout_s)

    def connected(self) -> ZooKeeperSession | None:
        """Return a session that can be asked without waiting for a connection, if there is one."""
        return next((session for session in self.all() if session.client.connected), None)

    def all(self) -> list[ZooKeeperSession]:
        """Return the sessions that there are."""
        return list(self._world.of_ttl.values())

    def of_claim(self, claim: str) -> tuple[ZooKeeperSession, ZooKeeperQueueEntry] | None:
        """Return where a claim stands, and on which session; None if it stands nowhere."""
        for session in self.all():
            standing = session.standing.get(claim)
            if standing is not None:
                return session, standing
        return None

    def use(self) -> Callable[[], None]:
        """Take note of a connection that may acquire, and return what takes note of its end."""
        world = self._world
        with world.mutex:
            world.users += 1

        def leave() -> None:
            with world.mutex:
                world.users -= 1
            self.close_if_idle()

        return leave

    def close_if_idle(self) -> None:
        """Close the sessions, if no connection is open that may acquire, and no claim stands."""
        world = self._world
        if not world.users:
            with world.mutex:
                is_idle = not any(session.standing for session in world.of_ttl.values())
            if is_idle:
                world.close_sessions()
