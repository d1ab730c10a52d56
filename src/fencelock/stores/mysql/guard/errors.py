"""What an error of a MySQL client means for a guard: refusals of the database's routines and triggers, and the rest.

Promise: a refusal carries the numbers that the database has named, whichever client of Python brought it; whether
something may have happened is told as it is: before COMMIT was sent, a broken connection has done nothing. Never: a
claim in a message.
"""

import re
from typing import NamedTuple

import pymysql

from fencelock.errors import (
    FencelockError,
    GuardError,
    SchemaError,
    SourceUnavailableError,
    StaleTokenError,
    TokenCollisionError,
    UnfencedWriteError,
    WrongLockError,
)
from fencelock.stores.mysql.connection.errors import error_number, map_error
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo

_OURS = re.compile(r"(FL0\d\d) .*", re.DOTALL)
_NUMBERS = re.compile(r"token (\d+) at mark (\d+) of resource (.*?): ")
_STALE, _ENDED, _LOOKS_BACK = "FL002", "FL007", "FL008"
_KINDS: dict[str, type[GuardError]] = {
    "FL001": UnfencedWriteError,
    "FL003": TokenCollisionError,
    "FL004": WrongLockError,
}
READ_ONLY = 1792
"""A write in a transaction of a session that was bound: another transaction than the one that presented."""
RECORD_CHANGED = 1020
"""What MariaDB says, with innodb_snapshot_isolation, of a row to be locked that is younger than the snapshot: it has
undone the transaction.
"""
CUT_OFF = {1053, 1927, 2006, 2013, 4031}
"""The connection ended: by the server, which ends an idle one, by an operator, or on its way."""
_NO_RIGHTS = {1044, 1142, 1143, 1227, 1370}
_BINARY_LOG = 1419
_NO_ACCOUNT = 1449
_READ_ONLY_SERVER = {1290, 1836}
_NUMBER_AND_TEXT = 2
_NO_ROUTINE = {1305, 1146, 1318, 1054}


class MySQLReport(NamedTuple):
    """What a server, or a client, says in an error."""

    number: int
    text: str


def report_of(error: BaseException) -> MySQLReport | None:
    """Return what the error of a client says; None if it is none of a MySQL client's."""
    arguments = error.args
    if isinstance(error, pymysql.Error):
        return MySQLReport(error_number(error), str(arguments[-1]) if arguments else "")
    if len(arguments) == _NUMBER_AND_TEXT and isinstance(arguments[0], int) and not isinstance(error, OSError):
        return MySQLReport(arguments[0], str(arguments[1]))
    number, text = getattr(error, "errno", None), getattr(error, "msg", None)
    return MySQLReport(number, text) if isinstance(number, int) and isinstance(text, str) else None


def refusal(error: BaseException) -> GuardError | None:
    """Return what the guard's own routines and triggers mean; None for any other error."""
    report = report_of(error)
    found = None if report is None else _OURS.match(report.text)
    if found is None:
        return None
    said, code = found.group(0), found.group(1)
    if code == _ENDED:
        return ended_inside()
    if code == _LOOKS_BACK:
        return looks_back(said)
    if code == _STALE and (numbers := _NUMBERS.search(said)):
        token, mark, resource = numbers.groups()
        return StaleTokenError(said, token=int(token), mark=int(mark), resource=resource)
    return _KINDS.get(code, GuardError)(said)


def looks_back(said: str) -> GuardError:
    """Return the error for a transaction that does not see a mark as it is."""
    return GuardError(
        f"{said}. The transaction looks at the database as it was before the mark was raised, perhaps by this very "
        f"lease: roll it back, and begin it anew after guard.seal(lease)"
    )


def ended_inside() -> GuardError:
    """Return the error for a block that ended its own transaction by plain SQL, or lost it."""
    return GuardError(
        "the guarded transaction ended inside its block (COMMIT, ROLLBACK, DDL, a deadlock, of which MySQL makes a "
        "rollback of everything): what the block has committed is written, under the mark as it should be; the rest is "
        "not. Leave the end to the block, and use SAVEPOINT inside it"
    )


def cut_off() -> GuardError:
    """Return the error for a block whose connection ended before it."""
    return GuardError(
        "the connection of the guarded transaction was closed inside its block: by the block itself, by the network, "
        "or by the server, which ends one that is idle for longer than its lease has left. Nothing of it was written"
    )


def explained(error: BaseException) -> GuardError | None:
    """Return what an error in the user's block means in the guard's words; None: it is the user's own."""
    if (said := refusal(error)) is not None:
        return said
    report = report_of(error)
    if report is None:
        return None
    if report.number == READ_ONLY:
        return ended_inside()
    return cut_off() if report.number in CUT_OFF else None


def no_schema(info: MySQLConnectionInfo) -> SchemaError:
    """Return the error for a database without the guard's routines."""
    return SchemaError(
        f"{info.url} holds no guard's schema, or one of another version: run `fencelock protect {info.url} "
        f"--resource … --lock … --table …` as an account that may create tables, routines and triggers there"
    )


def map_guard_error(error: BaseException, info: MySQLConnectionInfo, *, is_commit: bool) -> FencelockError | None:
    """Return the error of the tree for one that a request ran into; None: it is none of a client's."""
    if (said := refusal(error)) is not None:
        return said
    report = report_of(error)
    if report is None:
        return None
    if report.number in _NO_ROUTINE:
        return no_schema(info)
    if (told := _told(report, info)) is not None:
        return told
    known = map_error(error if isinstance(error, pymysql.Error) else pymysql.OperationalError(*report), info)
    if known is not None and not known.definite and not is_commit:
        return SourceUnavailableError(
            f"{info.url} broke off ({report.text or type(error).__name__}): COMMIT was not sent, so nothing of this "
            f"transaction was written: try again"
        )
    return known


def _told(report: MySQLReport, info: MySQLConnectionInfo) -> FencelockError | None:
    """Return what the server says where it has done nothing, and a guard has a remedy of its own."""
    number, said = report
    if number == RECORD_CHANGED:
        return looks_back(said)
    if number == _BINARY_LOG:
        return GuardError(
            f"{info.url} has its binary log on, and lets this account make no triggers ({said}): grant it SUPER, or "
            f"have an administrator SET GLOBAL log_bin_trust_function_creators = 1"
        )
    if number == _NO_ACCOUNT:
        return SchemaError(
            f"{info.url} runs the guard's routines and triggers with the rights of an account that is gone ({said}): "
            f"have it made again, with the rights that it had"
        )
    if number in _READ_ONLY_SERVER:
        return SourceUnavailableError(
            f"{info.url} is read-only here, and a guarded transaction writes ({said}): it is a replica, or was made so"
        )
    if number in _NO_RIGHTS:
        return GuardError(
            f"{info.url} does not permit it ({said}): a holder needs EXECUTE on the routines fencelock_…; whoever "
            f"protects tables and moves marks needs to be the one that made them, or its like"
        )
    return None
