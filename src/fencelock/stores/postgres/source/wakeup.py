"""How waiting claims learn of their turn: one thread and one listening connection for all waiters of a process.

Promise: a notification wakes its claim while the claim's channel is open. Whenever a notification may have been missed,
because the connection was opened or broke, every channel is woken, so that each waiter polls. If the thread cannot be
started, waiters poll meanwhile, and each poll tries to start it. The connection closes after a few seconds without
waiters. Never sends a claim in a notification, only its digest; never blocks a caller.
"""

import logging
import os
import select
import threading
import time

from fencelock._platform import renew_after_fork
from fencelock._threads import BackgroundThread
from fencelock.errors import SourceError, SourceUnavailableError
from fencelock.model import digest_of_claim
from fencelock.stores.postgres.connection.client import FORKS, PostgresConnection, is_pooled, open_connection
from fencelock.stores.postgres.connection.errors import map_error
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.wakeup import EventWakeup

logger = logging.getLogger("fencelock")
LINGER_S = 5.0
"""How long to keep the connection after the last waiter."""
REQUEST_TIMEOUT_S = 5.0
RETRY_S = 0.25
MAX_RETRY_S = 5.0
MS_PER_S = 1000


class PostgresWakeup(EventWakeup):
    """The channel of one waiting claim, which its listener knows only by the digest."""

    def __init__(self, listener: "PostgresListener", digest: str) -> None:
        super().__init__()
        self._listener = listener
        self._digest = digest

    def drain(self) -> None:
        """Discard the notifications so far; start the listener if that failed before."""
        super().drain()
        self._listener.start()

    def close(self) -> None:
        """Stop listening; never raises."""
        self._listener.forget(self._digest)
        super().close()


class PostgresListener:
    """The open channels of one process at one source, and the thread that serves them while there are any."""

    def __init__(self, info: PostgresConnectionInfo) -> None:
        self._info = info
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """Begin without channels: a forked child has no listening thread, and may have inherited a locked mutex."""
        self._name = "fencelock_" + os.urandom(8).hex()
        self._mutex = threading.RLock()
        self._channels: dict[str, EventWakeup] = {}
        self._background = BackgroundThread("fencelock-listener")
        self._is_useless = False

    @property
    def name(self) -> str:
        """The NOTIFY channel on which this process listens."""
        return self._name

    def channel(self, claim: str) -> EventWakeup:
        """Open the channel of a waiting claim."""
        digest = digest_of_claim(claim)
        channel = PostgresWakeup(self, digest)
        with self._mutex:
            self._channels[digest] = channel
        self.start()
        return channel

    def start(self) -> None:
        """Start the thread if it has something to do, and does not run; never raises."""
        with self._mutex:
            if self._channels and not self._is_useless:
                try:
                    self._background.start(self._serve)
                except SourceUnavailableError as error:
                    logger.warning("waiters at %s poll now: %s", self._info.url, error)

    def forget(self, digest: str) -> None:
        """Remove a channel."""
        with self._mutex:
            self._channels.pop(digest, None)

    # --- the thread -------------------------------------------------------------------------------
    def _serve(self) -> None:
        retry_s = RETRY_S
        while not self._may_stop(has_lingered=True):
            connection = None
            try:
                connection = self._connect()
                if connection is None:
                    return
                # Notifications from before LISTEN are lost: let every waiter look at its lock once.
                self._notify_all()
                retry_s = RETRY_S
                self._receive(connection)
            except Exception as error:
                logger.info("waiters at %s poll now, since listening failed: %s", self._info.url, self._cause(error))
                self._notify_all()
                time.sleep(retry_s)
                retry_s = min(2 * retry_s, MAX_RETRY_S)
            finally:
                if connection is not None:
                    FORKS.close(connection)

    def _cause(self, error: Exception) -> BaseException:
        return error if isinstance(error, SourceError) else map_error(error, self._info) or error

    def _connect(self) -> PostgresConnection | None:
        """Return a listening connection; None behind a pooler, where no notification would arrive."""
        connection = open_connection(self._info, REQUEST_TIMEOUT_S)
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        if row is None or is_pooled(connection, row[0]):
            FORKS.close(connection)
            self._is_useless = True
            logger.warning("%s is a pooler, which passes on no notifications: waiters poll instead", self._info.url)
            return None
        connection.execute(f"LISTEN {self._name}".encode())
        return connection

    def _receive(self, connection: PostgresConnection) -> None:
        """Deliver notifications, until there have been no waiters for a while."""
        readable = select.poll()
        readable.register(connection.pgconn.socket, select.POLLIN)
        idle_since_s: float | None = None
        while True:
            readable.poll(LINGER_S * MS_PER_S)
            connection.pgconn.consume_input()
            while (notification := connection.pgconn.notifies()) is not None:
                self._notify(notification.extra.decode())
            if self._channels:
                idle_since_s = None
            elif idle_since_s is None:
                idle_since_s = time.monotonic()
            elif self._may_stop(has_lingered=time.monotonic() - idle_since_s >= LINGER_S):
                return

    def _may_stop(self, *, has_lingered: bool) -> bool:
        with self._mutex:
            if self._channels or not has_lingered:
                return False
            # Under the mutex: a channel that is added now either keeps this thread, or starts the next one.
            self._background.end()
            return True

    def _notify(self, digest: str) -> None:
        with self._mutex:
            channel = self._channels.get(digest)
            if channel is not None:
                channel.notify()

    def _notify_all(self) -> None:
        with self._mutex:
            for channel in self._channels.values():
                channel.notify()
