"""A guard's requests inside a framework's transaction, with any of the drivers that frameworks use for PostgreSQL.

Promise: one round trip presents the lease, and one asks the server before COMMIT whether the transaction is still the
same one and has not failed: no driver is believed. The database itself forgets the lease with the transaction. A
transaction whose snapshot is older than a mark is refused. Never begins, commits or rolls back a transaction of the
framework; never sends a value of a type that only one driver knows; never writes a proof into the text of a statement,
which pg_stat_activity shows to others, except with psycopg2, which knows no other way.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from fencelock.errors import FencelockError, GuardError, SchemaError
from fencelock.stores.errors import GUARD_PART, not_installed
from fencelock.stores.postgres.connection.errors import map_state, read_report
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Row, Statement
from fencelock.stores.postgres.guard.codec import PostgresCallerCodec, PostgresFrameworkCodec
from fencelock.stores.postgres.guard.errors import (
    map_callers_error,
    map_refusal,
    map_request_error,
)
from fencelock.stores.sql.guard import BlockingCallerConnection

_NUMBERED = re.compile(r"\$(\d+)")
_OURS = "numeric_dollar"
"""The parameter style of `guard.sql`, and of asyncpg."""


class PostgresFrameworkConnection(BlockingCallerConnection):
    """A framework's connection to the guarded database."""

    _codec_type: type[PostgresCallerCodec] = PostgresFrameworkCodec

    def __init__(self, connection: Any, driver: Any, info: PostgresConnectionInfo, paramstyle: str) -> None:
        super().__init__(connection, self._codec_type())
        self._info = info
        self._paramstyle = paramstyle
        self._make_cursor: Callable[[], Any] = connection.cursor
        if isinstance(driver, psycopg.Connection):
            # Django's own cursors write the parameters into the text.
            self._make_cursor = partial(psycopg.RawCursor, driver, row_factory=tuple_row)
            self._paramstyle = _OURS

    def prepare(self) -> None:
        """Do nothing: a transaction presents a lease, the session does not."""

    def restore(self) -> None:
        """Do nothing: what was presented ended with the transaction."""

    def _exchange(self, trip: Sequence[Statement]) -> list[PostgresAnswer]:
        answers = []
        for statement in trip:
            cursor = self._make_cursor()
            try:
                cursor.execute(*in_paramstyle(self._paramstyle, statement))
                rows = cursor.fetchall() if cursor.description else []
                answers.append(PostgresAnswer([tuple(row) for row in rows], ""))
            finally:
                cursor.close()
        return answers

    def _map_request_error(self, error: BaseException) -> FencelockError | None:
        if (report := read_report(error)) is None:
            return None
        known = map_callers_error(error) or map_request_error(error, self._info, is_commit=False)
        # Errors of drivers other than psycopg are known by their state alone.
        known = known or map_state(report.state, report.message, self._info)
        return not_installed(self._info.url, GUARD_PART, report.message) if isinstance(known, SchemaError) else known

    def map_error(self, error: BaseException) -> GuardError | None:
        """Map an error that the guard's triggers raised; None leaves the framework's error as it is."""
        return map_refusal(error)

    def map_commit_error(self, error: BaseException) -> GuardError | None:
        """Map an error of COMMIT."""
        return map_refusal(error)


def in_paramstyle(paramstyle: str, statement: Statement) -> tuple[str, Row]:
    """Return a statement, and its parameters in the order of this paramstyle."""
    if paramstyle == _OURS:
        return statement.text, tuple(statement.parameters)
    numbers = [int(found) for found in _NUMBERED.findall(statement.text)]
    text = _NUMBERED.sub("%s", statement.text.replace("%", "%%"))
    return text, tuple(statement.parameters[number - 1] for number in numbers)
