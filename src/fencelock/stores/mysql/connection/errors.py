"""Mapping the errors of PyMySQL and aiomysql to FencelockError.

Promise: a mapped error is definite if the server itself reported that it did nothing. A client's own error about a lost
connection, and any server error that may hit a routine after its COMMIT, is indefinite.
"""

from collections.abc import Sequence

import pymysql
from pymysql.constants import ER

from fencelock.errors import MissingDependencyError, SchemaError, SourceError, SourceUnavailableError
from fencelock.stores.errors import SOURCE_PART, ErrorMapper, login_refused, not_installed, not_permitted, unreachable
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.sql.errors import DefiniteError, connection_lost, find_definite

_CLIENT_ERRORS = range(2000, 3000)
"""Errors that the client library raises itself: the server reported nothing."""
_CONNECTION_KILLED, _STATEMENT_TIMEOUT = 1927, 1969
_READ_ONLY_TRANSACTION, _READ_ONLY_MODE, _ROLLED_BACK_BY_PLUGIN = 1792, 1836, 3101
_INDEFINITE = {
    ER.SERVER_SHUTDOWN,
    ER.QUERY_INTERRUPTED,
    ER.ERROR_DURING_COMMIT,
    ER.NEW_ABORTING_CONNECTION,
    ER.QUERY_TIMEOUT,
    _CONNECTION_KILLED,
    _STATEMENT_TIMEOUT,
}
"""Errors of the server that may hit a routine after its COMMIT."""
_NOT_PERMITTED = {
    ER.DBACCESS_DENIED_ERROR,
    ER.ACCESS_DENIED_ERROR,
    ER.TABLEACCESS_DENIED_ERROR,
    ER.COLUMNACCESS_DENIED_ERROR,
    ER.SPECIFIC_ACCESS_DENIED_ERROR,
    ER.PROCACCESS_DENIED_ERROR,
}
_OF_TABLES = {ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR}
_GRANT = "grant it to this role, or run `fencelock install` if there is no schema yet"
_TABLE_REMEDY = (
    "have the account do it that installed fencelock's tables. One that takes locks needs EXECUTE on the routines "
    "fencelock_…, and no right on these tables"
)
_ACCOUNT_LOCKED, _ACCOUNT_LOCKED_IN_MARIADB, _NO_PASSWORD_LOGIN = 3118, 4151, 1698
_LOGIN_REFUSED = {
    ER.DBACCESS_DENIED_ERROR,
    ER.ACCESS_DENIED_ERROR,
    ER.BAD_DB_ERROR,
    ER.HOST_NOT_PRIVILEGED,
    _NO_PASSWORD_LOGIN,
    _ACCOUNT_LOCKED,
    _ACCOUNT_LOCKED_IN_MARIADB,
}
"""Answers to a login which only a person can change."""
_LOGIN_REMEDY = (
    "correct the user, the password or the database in the URL, or have the server admit them (CREATE USER, "
    "CREATE DATABASE, GRANT)"
)
_DEFINITE = (
    DefiniteError(
        {ER.NO_SUCH_TABLE, ER.SP_DOES_NOT_EXIST, ER.SP_WRONG_NO_OF_ARGS, ER.BAD_FIELD_ERROR},
        SchemaError,
        str(not_installed("{url}", SOURCE_PART, "{message}")),
    ),
    DefiniteError(
        {ER.NO_SUCH_USER},
        SchemaError,
        "{url} has routines of an account that is gone ({message}): run `fencelock install` on it as one that stays",
    ),
    DefiniteError(
        {ER.OPTION_PREVENTS_STATEMENT, _READ_ONLY_TRANSACTION, _READ_ONLY_MODE},
        SourceUnavailableError,
        "{url} takes no writes ({message}): it is a replica, or was made read-only",
    ),
    DefiniteError(
        {
            ER.LOCK_WAIT_TIMEOUT,
            ER.LOCK_DEADLOCK,
            ER.DISK_FULL,
            ER.RECORD_FILE_FULL,
            ER.OUTOFMEMORY,
            ER.OUT_OF_RESOURCES,
            ER.CON_COUNT_ERROR,
            ER.TOO_MANY_USER_CONNECTIONS,
            ER.USER_LIMIT_REACHED,
            ER.UNKNOWN_COM_ERROR,
            _ROLLED_BACK_BY_PLUGIN,
        },
        SourceUnavailableError,
        "{url} could not do it now ({message}): try again",
    ),
)
"""Errors after which the server has done nothing."""


def missing_package(error: RuntimeError, info: MySQLConnectionInfo) -> MissingDependencyError:
    """Return the error for an account whose login method needs a package besides PyMySQL."""
    return MissingDependencyError(
        f"{info.url}: the account logs in by a method that needs a package which is not installed ({error}): "
        f"pip install 'PyMySQL[rsa,ed25519]', or connect by TLS, over which MySQL's own methods need none"
    )


def message_of(error: BaseException) -> str:
    """Return an error's message in one line, with its cause: aiomysql's own text names only the server."""
    message = " ".join(str(error.args[-1] if error.args else "").split()) or type(error).__name__
    return f"{message} ({error.__cause__})" if error.__cause__ is not None else message


def error_mapper(info: MySQLConnectionInfo) -> ErrorMapper:
    """Return a context manager that maps the errors of a request that was sent."""
    return ErrorMapper(lambda error: map_error(error, info))


def map_error(error: BaseException, info: MySQLConnectionInfo) -> SourceError | None:
    """Map an exception of a request that was sent to a SourceError; None if no MySQL client raised it."""
    if not isinstance(error, pymysql.Error):
        return None
    message, number = message_of(error), error_number(error)
    if not number or number in _CLIENT_ERRORS or number in _INDEFINITE:
        return connection_lost(info.url, message)
    if number in _NOT_PERMITTED:
        return not_permitted(info.url, message, _TABLE_REMEDY if number in _OF_TABLES else _GRANT)
    known = find_definite(_DEFINITE, number, info.url, message)
    return known if isinstance(known, SourceError) else SourceError(f"{info.url} refused: {message}")


def error_number(error: BaseException) -> int:
    """Return the number that the server or the client gave to an error; 0 for none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def is_reported(error: BaseException) -> bool:
    """Return whether the server reported an error, which ends its reply; the client raises the others itself."""
    number = error_number(error)
    return bool(number) and number not in _CLIENT_ERRORS


def is_login_refused(error: BaseException) -> bool:
    """Return whether the server refused a login, which only a person can mend."""
    return error_number(error) in _LOGIN_REFUSED


def not_connected(info: MySQLConnectionInfo, failures: Sequence[str], refused: int) -> SourceError:
    """Return the error for a connection that no server made, of which so many refused the login: one that is away may
    admit it later.
    """
    message = "; ".join(failures)
    if refused == len(failures):
        return login_refused(info.url, message, _LOGIN_REMEDY)
    return unreachable(info.url, message)
