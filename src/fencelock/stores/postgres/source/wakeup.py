"""How waiting claims hear of their turn: one listening connection for all of a process's, in one thread.

Promise: what is told while a claim's channel is open wakes it. Whenever something may have been missed, because the
connection was made, or broke, every channel is woken, so that each claim looks for itself. The connection is closed
when nobody has waited for a while.
Never: a claim sent over the wire by a notification, only its digest; a caller kept waiting here.
"""

import hashlib
import logging
import os
import select
import threading
import time

from fencelock.errors import SourceError
from fencelock.stores.postgres.connection.client import PostgresConnection, is_pooled, map_error, open_connection
from fencelock.stores.postgres.connection.forks import FORKS
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.wakeup import EventWakeup

logger = logging.getLogger("fencelock")
LINGER_S = 5.0
"""The connection is kept for this long after the last waiter."""
REQUEST_TIMEOUT_S = 5.0
RETRY_S = 0.25
MAX_RETRY_S = 5.0
MS_PER_S = 1000


class PostgresWakeup(EventWakeup):
    """The channel of one waiting claim, of which its listener knows the digest alone."""

    def __init__(self, listener: "PostgresListener", digest: str) -> None:
        super().__init__()
        self._listener = listener
        self._digest = digest

    def close(self) -> None:
        """Stop listening; never raises."""
        self._listener.forget(self._digest)
        super().close()


class PostgresListener:
    """The ears of one process at one source, and the thread that serves them while there are any."""

    def __init__(self, place: PostgresConnectionInfo) -> None:
        self._place = place
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._process_id = os.getpid()
        self._name = "fencelock_" + os.urandom(8).hex()
        self._mutex = threading.RLock()
        self._ears: dict[str, EventWakeup] = {}
        self._is_running = False
        self._is_useless = False

    @property
    def name(self) -> str:
        """The channel of NOTIFY on which this process listens."""
        self._begin_anew_in_child()
        return self._name

    def _begin_anew_in_child(self) -> None:
        if self._process_id != os.getpid():
            self._begin_anew()

    def channel(self, claim: str) -> EventWakeup:
        """Open the ear of a waiting claim."""
        self._begin_anew_in_child()
        digest = hashlib.sha256(claim.encode()).hexdigest()
        ear = PostgresWakeup(self, digest)
        with self._mutex:
            self._ears[digest] = ear
            if not self._is_running and not self._is_useless:
                self._is_running = True
                threading.Thread(target=self._serve, name="fencelock-listener", daemon=True).start()
        return ear

    def forget(self, digest: str) -> None:
        """Take an ear away."""
        if self._process_id == os.getpid():
            with self._mutex:
                self._ears.pop(digest, None)

    # --- the thread -------------------------------------------------------------------------------
    def _serve(self) -> None:
        retry_s = RETRY_S
        while not self._may_stop(has_lingered=True):
            connection = None
            try:
                connection = self._connect()
                if connection is None:
                    return
                self._wake_all()
                retry_s = RETRY_S
                self._hear(connection)
            except Exception as error:
                logger.info("waiters at %s look for themselves now: %s", self._place.url, self._cause(error))
                self._wake_all()
                time.sleep(retry_s)
                retry_s = min(2 * retry_s, MAX_RETRY_S)
            finally:
                if connection is not None:
                    FORKS.close(connection)

    def _cause(self, error: Exception) -> BaseException:
        return error if isinstance(error, SourceError) else map_error(error, self._place) or error

    def _connect(self) -> PostgresConnection | None:
        """Return a connection that listens; None where no notification would arrive."""
        connection = open_connection(self._place, REQUEST_TIMEOUT_S)
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        if row is None or is_pooled(connection, row[0]):
            FORKS.close(connection)
            self._is_useless = True
            logger.warning(
                "%s is a pooler, which passes on no notification: waiters look for themselves every so often",
                self._place.url,
            )
            return None
        connection.execute(f"LISTEN {self._name}".encode())
        return connection

    def _hear(self, connection: PostgresConnection) -> None:
        """Pass on what is told, until nobody has waited for a while."""
        told = select.poll()
        told.register(connection.pgconn.socket, select.POLLIN)
        idle_since_s: float | None = None
        while True:
            told.poll(LINGER_S * MS_PER_S)
            connection.pgconn.consume_input()
            while (notification := connection.pgconn.notifies()) is not None:
                self._wake(notification.extra.decode())
            if self._ears:
                idle_since_s = None
            elif idle_since_s is None:
                idle_since_s = time.monotonic()
            elif self._may_stop(has_lingered=time.monotonic() - idle_since_s >= LINGER_S):
                return

    def _may_stop(self, *, has_lingered: bool) -> bool:
        with self._mutex:
            if self._ears or not has_lingered:
                return False
            self._is_running = False
            return True

    def _wake(self, digest: str) -> None:
        with self._mutex:
            ear = self._ears.get(digest)
            if ear is not None:
                ear.notify()

    def _wake_all(self) -> None:
        with self._mutex:
            for ear in self._ears.values():
                ear.notify()
