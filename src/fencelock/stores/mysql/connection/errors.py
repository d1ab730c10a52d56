"""What an error of PyMySQL or aiomysql means: the tree's own, with `definite` true to the fact.

Promise: an error is definite where the server itself has said that nothing was done; what the client makes of a lost
connection, and what may hit a routine after its COMMIT, is not.
"""

import pymysql
from pymysql.constants import ER

from fencelock.errors import (
    MissingDependencyError,
    OutcomeUnknownError,
    SchemaError,
    SourceError,
    SourceUnavailableError,
)
from fencelock.stores.errors import ErrorMapper
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo

_CLIENTS_OWN = range(2000, 3000)
"""Errors that the client makes itself: the server has not said that nothing was done."""
_CONNECTION_KILLED, _STATEMENT_TIMEOUT = 1927, 1969
_READ_ONLY_TRANSACTION, _READ_ONLY_MODE, _ROLLED_BACK_BY_PLUGIN = 1792, 1836, 3101
_DOUBTFUL = {
    ER.SERVER_SHUTDOWN,
    ER.QUERY_INTERRUPTED,
    ER.ERROR_DURING_COMMIT,
    ER.NEW_ABORTING_CONNECTION,
    ER.QUERY_TIMEOUT,
    _CONNECTION_KILLED,
    _STATEMENT_TIMEOUT,
}
"""Errors of the server that may hit a routine after its COMMIT."""
_DEFINITE: tuple[tuple[set[int], type[SourceError], str], ...] = (
    (
        {ER.NO_SUCH_TABLE, ER.SP_DOES_NOT_EXIST, ER.SP_WRONG_NO_OF_ARGS, ER.BAD_FIELD_ERROR},
        SchemaError,
        "{url} holds no fencelock schema, or another version's ({said}): as its owner, run `fencelock install` on it",
    ),
    (
        {ER.NO_SUCH_USER},
        SchemaError,
        "{url} has routines of an account that is gone ({said}): run `fencelock install` on it as one that stays",
    ),
    (
        {ER.OPTION_PREVENTS_STATEMENT, _READ_ONLY_TRANSACTION, _READ_ONLY_MODE},
        SourceUnavailableError,
        "{url} takes no writes ({said}): it is a replica, or was made read-only",
    ),
    (
        {
            ER.DBACCESS_DENIED_ERROR,
            ER.ACCESS_DENIED_ERROR,
            ER.TABLEACCESS_DENIED_ERROR,
            ER.COLUMNACCESS_DENIED_ERROR,
            ER.SPECIFIC_ACCESS_DENIED_ERROR,
            ER.PROCACCESS_DENIED_ERROR,
        },
        SourceError,
        "{url} does not permit it ({said}): grant it to this role, or run `fencelock install` if it has no schema yet",
    ),
    (
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
        "{url} could not do it now ({said}): try again",
    ),
)
"""What an error of the server means when the server itself says that nothing was done."""


def unreachable(said: list[str], place: MySQLConnectionInfo) -> SourceError:
    """Return what failed attempts to connect mean."""
    return SourceUnavailableError(f"{place.url} cannot be reached: {'; '.join(said)}")


def lacking(error: RuntimeError, place: MySQLConnectionInfo) -> MissingDependencyError:
    """Return the error for an account that logs in by a method for which PyMySQL needs another package."""
    return MissingDependencyError(
        f"{place.url}: the account logs in by a method that needs a package which is not installed ({error}): "
        f"pip install 'PyMySQL[rsa,ed25519]', or connect by TLS, over which MySQL's own methods need none"
    )


def said_by(error: BaseException) -> str:
    """Return what an error says, in one line, its cause included: aiomysql's own text says no more than where."""
    words = " ".join(str(error.args[-1] if error.args else "").split()) or type(error).__name__
    return f"{words} ({error.__cause__})" if error.__cause__ is not None else words


def mapping_errors(place: MySQLConnectionInfo) -> ErrorMapper:
    """Return a block in which what comes out of a request that was sent is raised as what it means."""
    return ErrorMapper(lambda error: map_error(error, place))


def map_error(error: BaseException, place: MySQLConnectionInfo) -> SourceError | None:
    """Return what an exception out of a request that was sent means; None: it is not the store's."""
    if not isinstance(error, pymysql.Error):
        return None
    said, number = said_by(error), error_number(error)
    if not number or number in _CLIENTS_OWN or number in _DOUBTFUL:
        return OutcomeUnknownError(f"{place.url} broke off ({said}): whether it did what was asked is unknown")
    for numbers, kind, message in _DEFINITE:
        if number in numbers:
            return kind(message.format(url=place.url, said=said))
    return SourceError(f"{place.url} refused: {said}")


def error_number(error: BaseException) -> int:
    """Return the number that the server or the client gave an error; 0: none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0
