"""A guard's requests inside a framework's transaction, with any of the drivers that frameworks use for MySQL.

Promise: one round trip presents the lease, and one takes it back before the framework commits. If the transaction ended
otherwise, one more restores the session, so that a pool's next user finds nothing of it. A transaction whose snapshot
is older than a mark is refused. Never begins, commits or rolls back a transaction of the framework.
"""

from typing import Any

from fencelock.errors import GuardError
from fencelock.protocol.guard_requests import Present, Unpresent
from fencelock.stores.mysql.connection.masks import SharedMask
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.mysql.connection.wire import Rows
from fencelock.stores.mysql.guard.caller import MySQLCallerMapping, cursor_results
from fencelock.stores.mysql.guard.codec import SQL, MySQLCallerCodec
from fencelock.stores.mysql.guard.errors import map_refusal
from fencelock.stores.mysql.guard.trips import MaskedTrip, text_of
from fencelock.stores.sql.guard import BlockingCallerConnection


class MySQLFrameworkConnection(MySQLCallerMapping, BlockingCallerConnection):
    """A framework's connection to the guarded database."""

    def __init__(self, connection: Any, driver: Any, info: MySQLConnectionInfo, shared: SharedMask) -> None:
        self._guard_codec = MySQLCallerCodec(info.database, shared)
        super().__init__(connection, self._guard_codec)
        self._info = info
        self._driver = driver
        self._is_bound = False

    def prepare(self) -> None:
        """Do nothing: presenting a lease prepares the session."""

    def restore(self) -> None:
        """Restore the session, unless the lease was taken back."""
        if self._is_bound:
            self._exchange(self._guard_codec.fill(SQL.unbind))
            self._is_bound = False

    def perform(self, request: Any) -> Any:
        """Answer one request; the framework's transaction stays open in any case."""
        # Before the request: the session may be bound though the answer is lost.
        self._is_bound = self._is_bound or isinstance(request, Present)
        reply = super().perform(request)
        if isinstance(request, Unpresent):
            self._is_bound = False
        return reply

    def _exchange(self, trip: MaskedTrip) -> list[Rows]:
        return cursor_results(self.native, text_of(trip, self._driver))

    def map_commit_error(self, error: BaseException) -> GuardError | None:
        """Map an error of COMMIT; a connection that broke there leaves the outcome unknown."""
        return map_refusal(error)
