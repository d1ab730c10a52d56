"""A guard's requests answered inside a framework's transaction, over whichever driver speaks PostgreSQL there.

Promise: one trip presents the lease, and nothing of it outlives the transaction, since the database itself forgets it
with the transaction. A transaction that looks at the database as it was before a mark was raised is refused. Never: a
transaction of the framework's begun, committed or rolled back; a type that needs one driver's help.
"""

import re
from collections.abc import Sequence
from typing import Any

from psycopg.pq import TransactionStatus

from fencelock.errors import FencelockError, GuardError, SchemaError
from fencelock.protocol.generators import run_generator
from fencelock.protocol.guard_requests import Unpresent
from fencelock.stores.errors import raise_mapped
from fencelock.stores.postgres.connection.errors import map_state, read_report
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Row, Statement
from fencelock.stores.postgres.guard.caller import snapshot_is_old
from fencelock.stores.postgres.guard.codec import PostgresCallerCodec, failed_inside
from fencelock.stores.postgres.guard.errors import ended_inside, map_guard_error, no_schema, refusal

_NUMBERED = re.compile(r"\$(\d+)")
_OURS = "numeric_dollar"
"""How `guard.sql` writes parameters; asyncpg has them so too."""
_CONFLICT = "40001"


class PostgresFrameworkConnection:
    """A framework's connection to the guarded database."""

    def __init__(self, connection: Any, driver: Any, info: PostgresConnectionInfo, paramstyle: str) -> None:
        self.native = connection
        self._driver = driver
        self._info = info
        self._paramstyle = paramstyle
        self._codec = PostgresCallerCodec()

    def prepare(self) -> None:
        """Do nothing: a session presents nothing, a transaction does."""

    def restore(self) -> None:
        """Do nothing: what was presented ended with the transaction."""

    def perform(self, request: Any) -> Any:
        """Answer one request; the framework's transaction stays open whatever happens."""
        if isinstance(request, Unpresent):
            return self._check_open()
        try:
            return run_generator(self._codec.operations(request), self._answers)
        except BaseException as error:
            raise_mapped(self._meaning(error), error)
            raise

    def _check_open(self) -> None:
        """Raise GuardError if the driver knows that the transaction is over or has failed.

        The server is not asked: that would be a trip, and what was presented ends with the transaction.
        """
        status = getattr(getattr(self._driver, "info", None), "transaction_status", None)
        if status == TransactionStatus.INERROR:
            raise failed_inside()
        if status == TransactionStatus.IDLE:
            raise ended_inside()

    def _answers(self, statements: Sequence[Statement]) -> list[PostgresAnswer]:
        answers = []
        for statement in statements:
            cursor = self.native.cursor()
            try:
                cursor.execute(*written_in(self._paramstyle, statement))
                answers.append(PostgresAnswer([tuple(row) for row in cursor.fetchall()], ""))
            finally:
                cursor.close()
        return answers

    def _meaning(self, error: BaseException) -> FencelockError | None:
        if isinstance(error, FencelockError) or (report := read_report(error)) is None:
            return None
        if report.state == _CONFLICT:
            return snapshot_is_old()
        known = map_guard_error(error, self._info, is_commit=False) or map_state(
            report.state, report.message, self._info
        )
        return no_schema(self._info) if isinstance(known, SchemaError) else known

    def rollback(self) -> None:
        """Leave the transaction to its owner."""

    def close(self) -> None:
        """Leave the connection to its owner."""

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return what the guard's triggers said; the caller's errors stay their own."""
        return refusal(error)

    def map_commit_error(self, error: BaseException) -> GuardError | None:
        """Return what the server said at COMMIT."""
        return refusal(error)


def written_in(paramstyle: str, statement: Statement) -> tuple[str, Row]:
    """Return a statement, and its parameters in the order in which this style of drivers wants them."""
    if paramstyle == _OURS:
        return statement.text, tuple(statement.parameters)
    numbers = [int(found) for found in _NUMBERED.findall(statement.text)]
    text = _NUMBERED.sub("%s", statement.text.replace("%", "%%"))
    return text, tuple(statement.parameters[number - 1] for number in numbers)
