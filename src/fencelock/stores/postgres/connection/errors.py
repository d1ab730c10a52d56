"""Errors of PostgreSQL: reading them from any client library, and mapping psycopg's to FencelockError.

Promise: `read_report` understands psycopg, psycopg2, asyncpg and pg8000 without importing them. A mapped error is
definite if the server reported that it did nothing. A refused login is told from a server that cannot be reached as
far as its text is understood, since libpq passes on no SQLSTATE of a connection that was not made: in English.
"""

import re
from typing import Any, NamedTuple

import psycopg

from fencelock.errors import OutcomeUnknownError, SchemaError, SourceError, SourceUnavailableError
from fencelock.stores.errors import SOURCE_PART, ErrorMapper, login_refused, not_installed, not_permitted, unreachable
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.sql.errors import DefiniteError, connection_lost, find_definite

_STATE = re.compile(r"[0-9A-Z]{5}")
_SESSION_TERMINATED = {"57P01", "57P02", "57P05"}
_CONNECTION_CLASS = "08"
_NOT_PERMITTED = "42501"
_NO_USAGE = "permission denied for schema fencelock"
_GRANT_USAGE = "if this role takes locks, have the schema's owner run: GRANT USAGE ON SCHEMA fencelock TO …"
_OF_OPERATORS = re.compile("permission denied for function (break_lease|purge|raise_epoch)")
_NO_CREATE = "permission denied for database "
_ONLY_USAGE = (
    "have the owner of the schema fencelock do it. A role that takes locks needs USAGE on that schema, and no other "
    "grant"
)
_SENTENCES = re.compile(r"(?<=[\w\")])[ \t]*\n\s*(?=[A-Z])")
_ATTEMPT = re.compile(r"^- host: (\S+), port: (\S+), hostaddr: \S+: ", re.MULTILINE)
"""What psycopg writes before each failure, if it has tried more than one address."""
_FATAL = re.compile(r"\bFATAL: +")
_NO_PASSWORD = "fe_sendauth: no password supplied"
_LOGIN_REFUSED = re.compile(
    r"""\S+\ authentication\ failed\ for\ user\ " | pg_hba\.conf\ rejects\ | no\ pg_hba\.conf\ entry\b
    | (role|database)\ ".*"\ (does\ not\ exist | is\ not\ permitted\ to\ log\ in)
    | permission\ denied\ for\ database\ " | no\ such\ (user|database)\b | SASL\ authentication\ failed""",
    re.VERBOSE,
)
"""How the server's words begin after which only a person can mend the login: SQLSTATE class 28, 3D000, and 42501. The
last line has those of PgBouncer.
"""
_REFUSED_VALUE = re.compile(r"connection is bad: (invalid (?:\"?\w+\"? value|port number)): (.*)")
"""What libpq says of a parameter's value that it does not know, before it connects to anything."""
_LOGIN_REMEDY = (
    "correct the user, the password or the database, in the URL or where libpq finds them (PGUSER, PGPASSWORD, "
    "~/.pgpass), or have the server admit them (pg_hba.conf, CREATE ROLE … LOGIN, GRANT CONNECT)"
)
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
    message = one_line(error.diag.message_primary or str(error))
    state = error.sqlstate
    if state is None or state in _SESSION_TERMINATED or state.startswith(_CONNECTION_CLASS):
        return connection_lost(info.url, message)
    return map_state(state, message, info)


def map_state(state: str, message: str, info: PostgresConnectionInfo) -> SourceError:
    """Map an error state that the server reported in place of doing anything."""
    if state == _NOT_PERMITTED:
        return not_permitted(info.url, message, _remedy(message))
    known = find_definite(_DEFINITE, state, info.url, message)
    return known if isinstance(known, SourceError) else SourceError(f"{info.url} refused: {message}")


def _remedy(message: str) -> str:
    """Return what gives the right that is missing. No role is advised to get one on the tables."""
    if message == _NO_USAGE:
        return _GRANT_USAGE
    if of_operators := _OF_OPERATORS.fullmatch(message):
        return (
            f"have the owner of the schema fencelock do it, or let it permit an operator's role: GRANT EXECUTE ON "
            f"FUNCTION fencelock.{of_operators[1]} TO …"
        )
    if message.startswith(_NO_CREATE):
        return "connect as a role that may create a schema there, such as the database's owner"
    return _ONLY_USAGE


def map_connect_error(error: psycopg.Error, info: PostgresConnectionInfo) -> SourceError:
    """Map the error of a connection that was not made: a refused value or login, or a server that cannot be reached."""
    text = str(error)
    if refused := _refused_value(text):
        return SourceError(
            f"{info.url} was not asked ({refused}): correct it in the URL, or where libpq finds it (the variables PG…, "
            f"the service file)"
        )
    message = one_line(text) or type(error).__name__
    return (
        login_refused(info.url, message, _LOGIN_REMEDY)
        if _is_login_refused(text, info)
        else unreachable(info.url, message)
    )


def _refused_value(text: str) -> str | None:
    """Return what libpq says of a value that it refuses for each server; None if it asked one of them."""
    _, *attempts = _ATTEMPT.split(text)
    failures = attempts[2::3] or [text]
    refused = [found.groups() for failure in failures if (found := _REFUSED_VALUE.search(failure))]
    if len(refused) < len(failures):
        return None
    said, value = refused[0]
    return said if "@" in value else f"{said}: {value}"  # The rest of a password with a "?" in it, and the host.


def _is_login_refused(text: str, info: PostgresConnectionInfo) -> bool:
    """Return whether each server refused the login: of several, one that is away may admit it later. A server that has
    several addresses may listen at one of them only.
    """
    _, *attempts = _ATTEMPT.split(text)
    if not attempts:
        return "," not in info.url.split("/")[2] and _refuses(text)
    servers: dict[tuple[str, str], str] = {}
    for host, port, failure in zip(attempts[::3], attempts[1::3], attempts[2::3], strict=True):
        servers[host, port] = servers.get((host, port), "") + failure
    return all(map(_refuses, servers.values()))


def _refuses(failures: str) -> bool:
    """Return whether all that one server reported, at all its addresses, is a refused login."""
    _, *reports = _FATAL.split(failures)
    return all(map(_LOGIN_REFUSED.match, reports)) and bool(reports or _NO_PASSWORD in failures)


def one_line(text: str) -> str:
    """Return a message of libpq in one line, with the full stops that its line breaks stand for."""
    return " ".join(_SENTENCES.sub(". ", text.strip()).split())
