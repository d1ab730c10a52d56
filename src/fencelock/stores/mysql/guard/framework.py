"""A guard's requests answered inside a framework's transaction, over whichever driver speaks MySQL there.

Promise: one trip presents the lease, and one takes it back before the framework commits; where its transaction ended in
another way, one more leaves the session as it was, so that a pool's next user finds nothing. A transaction that looks
at the database as it was before a mark was raised is refused. Never: a transaction of the framework's begun, committed
or rolled back.
"""

from typing import Any

from fencelock.errors import FencelockError, GuardError
from fencelock.protocol.generators import run_generator
from fencelock.protocol.guard_requests import Present, Unpresent
from fencelock.stores.errors import raise_mapped
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.mysql.connection.wire import Rows
from fencelock.stores.mysql.guard.caller import asked
from fencelock.stores.mysql.guard.codec import SQL, MySQLCallerCodec
from fencelock.stores.mysql.guard.errors import explained, map_guard_error, refusal


class MySQLFrameworkConnection:
    """A framework's connection to the guarded database."""

    def __init__(self, connection: Any, info: MySQLConnectionInfo) -> None:
        self.native = connection
        self._info = info
        self._codec = MySQLCallerCodec(info.database)
        self._is_bound = False

    def prepare(self) -> None:
        """Do nothing: presenting makes the session ready."""

    def restore(self) -> None:
        """Have the session as it was, unless what was presented was taken back."""
        if self._is_bound:
            self._answers(self._codec.said(SQL.unbind))
            self._is_bound = False

    def perform(self, request: Any) -> Any:
        """Answer one request; the framework's transaction stays open whatever happens."""
        # It may be bound though the answer got lost.
        self._is_bound = self._is_bound or isinstance(request, Present)
        try:
            reply = run_generator(self._codec.operations(request), self._answers)
        except BaseException as error:
            raise_mapped(self._meaning(error), error)
            raise
        if isinstance(request, Unpresent):
            self._is_bound = False
        return reply

    def _answers(self, statement: str) -> list[Rows]:
        return asked(self.native, statement)

    def _meaning(self, error: BaseException) -> FencelockError | None:
        if isinstance(error, FencelockError):
            return None
        return map_guard_error(error, self._info, is_commit=False)

    def rollback(self) -> None:
        """Leave the transaction to its owner."""

    def close(self) -> None:
        """Leave the connection to its owner."""

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return what the guard's triggers said; the caller's errors stay their own."""
        return explained(error)

    def map_commit_error(self, error: BaseException) -> GuardError | None:
        """Return what the server said at COMMIT; a connection that broke there has said nothing."""
        return refusal(error)
