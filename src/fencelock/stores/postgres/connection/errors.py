"""Errors of PostgreSQL: reading them from any client library, and mapping psycopg's to FencelockError.

Promise: `read_report` understands psycopg, psycopg2, asyncpg and pg8000 without importing them. A mapped error is
definite if the server reported that it did nothing.
"""

import re
from typing import Any, NamedTuple

import psycopg

from fencelock.errors import OutcomeUnknownError, SchemaError, SourceError, SourceUnavailableError
from fencelock.stores.errors import SOURCE_PART, ErrorMapper, not_installed
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.sql.errors import DefiniteError, connection_lost, find_definite, not_permitted

_STATE = re.compile(r"[0-9A-Z]{5}")
_SESSION_TERMINATED = {"57P01", "57P02", "57P05"}
_CONNECTION_CLASS = "08"
_NOT_PERMITTED = "42501"
_NO_USAGE = "permission denied for schema fencelock"
_GRANT_USAGE = "if this role takes locks, have the schema's owner run: GRANT USAGE ON SCHEMA fencelock TO …"
_GRANT = "grant it to this role, or ask an operator"
_DEFINITE = (
    DefiniteError(
        {"3F000", "42703", "42P01", "42883", "42704"},
        SchemaError,
        str(not_installed("{url}", SOURCE_PART, "{message}")),
    ),
    DefiniteError(
        {"25006"},
        SourceUnavailableError,
        "{url} takes no writes ({message}): it is a standby, or was made read-only",
    ),
    DefiniteError(
        {"40001", "40P01", "53100", "53200", "53300", "53400", "55P03", "57014", "57P03"},
        SourceUnavailableError,
        "{url} could not do it now ({message}): try again",
    ),
)
"""Errors after which the server has done nothing."""


class PostgresTimeoutError(Exception):
    """The server did not answer in time; never leaves this package."""


class PostgresReport(NamedTuple):
    """The fields of an error that a server reported."""

    state: str
    message: str
    hint: str | None
    detail: str | None


def read_report(error: BaseException) -> PostgresReport | None:
    """Return the server's report in a client library's exception; None if the exception carries none."""
    known: Any = error
    state = getattr(known, "sqlstate", None) or getattr(known, "pgcode", None)
    fields = known.args[0] if known.args and isinstance(known.args[0], dict) else {}  # pg8000's form
    state = state or fields.get("C")
    if not isinstance(state, str) or not _STATE.fullmatch(state):
        return None
    if hasattr(known, "diag"):
        diag = known.diag
        return PostgresReport(state, diag.message_primary or str(error), diag.message_hint, diag.message_detail)
    message = getattr(known, "message", None) or fields.get("M") or str(error)
    hint = getattr(known, "hint", None) or fields.get("H")
    return PostgresReport(state, message, hint, getattr(known, "detail", None) or fields.get("D"))


def error_mapper(info: PostgresConnectionInfo) -> ErrorMapper:
    """Return a context manager that maps the errors of a request that was sent."""
    return ErrorMapper(lambda error: map_error(error, info))


def map_error(error: BaseException, info: PostgresConnectionInfo) -> SourceError | None:
    """Map an exception of a request that was sent to a SourceError; None if psycopg did not raise it."""
    if isinstance(error, PostgresTimeoutError):
        return OutcomeUnknownError(f"{info.url} did not answer in time: whether it did what was asked is unknown")
    if not isinstance(error, psycopg.Error):
        return None
    message = (error.diag.message_primary or str(error)).strip()
    state = error.sqlstate
    if state is None or state in _SESSION_TERMINATED or state.startswith(_CONNECTION_CLASS):
        return connection_lost(info.url, message)
    return map_state(state, message, info)


def map_state(state: str, message: str, info: PostgresConnectionInfo) -> SourceError:
    """Map an error state that the server reported in place of doing anything."""
    if state == _NOT_PERMITTED:
        return not_permitted(info.url, message, _GRANT_USAGE if message == _NO_USAGE else _GRANT)
    known = find_definite(_DEFINITE, state, info.url, message)
    return known if isinstance(known, SourceError) else SourceError(f"{info.url} refused: {message}")
