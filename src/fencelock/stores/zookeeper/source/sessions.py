"""The sessions of one source in this process: one for each ttl, shared by all locks of that ttl.

Promise: a session is opened when it is first needed. It is closed when its source is closed and its last claim is gone,
or at the interpreter's end. A forked child has none of its parent's sessions, and leaves them alone. The memory of
ended claims outlives every session.
"""

import os
import threading
import weakref
from collections.abc import Callable

from fencelock._platform import renew_after_fork
from fencelock.errors import SourceUnavailableError
from fencelock.stores.ended_claims import EndedClaims
from fencelock.stores.zookeeper.connection.url import ZooKeeperConnectionInfo
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.session import ZooKeeperSession

OPERATOR_TICKS = 10
"""The timeout of a session that is opened for a request without a ttl; the servers' limits are 2 and 20 by default."""
MIN_OPERATOR_MS = 1000
MAX_OPEN_S = 3.0
"""How long a new session is awaited, also where a request waits longer: no server has answered yet."""
MAX_TRY_S = 1.5
"""The same for a try that does not wait for the lock."""


class _ProcessSessions:
    """The sessions of one process; a forked child begins with a new object."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        # Guards the fields below, for moments only. Reentrant: a finalizer may close the sessions in a thread that
        # holds it.
        self.mutex = threading.RLock()
        # Held while a connection is awaited, so that two threads do not open two sessions of one ttl; a lock of its
        # own, so that requests over open sessions need not wait for it.
        self.opening = threading.RLock()
        self.by_ttl: dict[int, ZooKeeperSession] = {}
        self.ended = EndedClaims()
        self.users = 0
        self.is_over = False

    def check_open(self) -> None:
        """Raise SourceUnavailableError if the interpreter is ending."""
        if self.is_over:
            raise SourceUnavailableError("the interpreter is ending: no lock can be acquired")

    def add(self, session: ZooKeeperSession) -> None:
        """Keep a new session, unless the interpreter has begun to end: nobody would close it."""
        with self.mutex:
            if not self.is_over:
                self.by_ttl[session.ttl_ms] = session
                return
        session.close()
        self.check_open()

    def close(self) -> None:
        """Close every session, and refuse new ones."""
        if self.process_id == os.getpid():
            with self.mutex:
                self.is_over = True
            self.close_sessions()

    def close_sessions(self) -> None:
        """Close every session; a later request opens a new one."""
        with self.mutex:
            sessions = list(self.by_ttl.values())
            self.by_ttl.clear()
        for session in sessions:
            session.close()


class ZooKeeperSessions:
    """Hands out the sessions of one source."""

    def __init__(self, info: ZooKeeperConnectionInfo) -> None:
        self._info = info
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """Begin without sessions: those of the parent are its own."""
        self._of_process = _ProcessSessions()
        # The finalizer does not refer to this object, so the sessions end when nothing refers to the source.
        weakref.finalize(self, self._of_process.close)

    @property
    def ended(self) -> EndedClaims:
        """The ended claims of this process."""
        return self._of_process.ended

    def for_ttl(self, ttl_ms: int, request_timeout_s: float, *, may_wait: bool = True) -> ZooKeeperSession:
        """Return the session of a ttl, connected; SourceUnavailableError if that takes too long."""
        session = self._of_process.by_ttl.get(ttl_ms)
        if session is None or not session.is_usable():
            session = self._open(ttl_ms, min(request_timeout_s, MAX_OPEN_S if may_wait else MAX_TRY_S))
        session.wait_connected(request_timeout_s)
        return session

    def _open(self, ttl_ms: int, request_timeout_s: float) -> ZooKeeperSession:
        """Open the session of a ttl, in place of an existing one that is not usable."""
        current = self._of_process
        with current.opening:
            session = current.by_ttl.get(ttl_ms)
            if session is not None and session.is_usable():
                return session  # Another thread was faster.
            current.check_open()
            new = ZooKeeperSession(self._info, current.ended, ttl_ms, request_timeout_s)
            current.add(new)
            if session is not None:
                session.close()
            return new

    def any_session(self, request_timeout_s: float) -> ZooKeeperSession:
        """Return a session for a request without a ttl."""
        for session in self.open_sessions():
            if session.is_usable():
                return self.for_ttl(session.ttl_ms, request_timeout_s)
        return self.for_ttl(max(OPERATOR_TICKS * self._info.tick_ms, MIN_OPERATOR_MS), request_timeout_s)

    def connected_session(self) -> ZooKeeperSession | None:
        """Return a session that can be asked without waiting for a connection, if there is one."""
        return next((session for session in self.open_sessions() if session.client.connected), None)

    def open_sessions(self) -> list[ZooKeeperSession]:
        """Return the open sessions."""
        return list(self._of_process.by_ttl.values())

    def find_claim(self, digest: str) -> tuple[ZooKeeperSession, ZooKeeperQueueEntry] | None:
        """Return the session and the queue entry of a claim; None if it has none."""
        for session in self.open_sessions():
            entry = session.entries.get(digest)
            if entry is not None:
                return session, entry
        return None

    def add_user(self) -> Callable[[], None]:
        """Count a connection that may acquire; return the function that ends its use."""
        current = self._of_process
        with current.mutex:
            current.users += 1

        def remove_user() -> None:
            with current.mutex:
                current.users -= 1
            self.close_if_idle()

        return remove_user

    def close_if_idle(self) -> None:
        """Close the sessions, if no connection uses them and no claim is left."""
        current = self._of_process
        if not current.users:
            with current.mutex:
                is_idle = not any(session.entries for session in current.by_ttl.values())
            if is_idle:
                current.close_sessions()
