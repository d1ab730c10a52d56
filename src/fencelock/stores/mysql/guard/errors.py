"""Errors of a MySQL guard: refusals by the database's routines and triggers, and all others.

Promise: a refusal carries the numbers that the database named, with any Python client. An error is definite before
COMMIT was sent, also if the connection broke. Never shows a claim or a proof.
"""

import re
import shlex
from typing import NamedTuple

import pymysql

from fencelock.errors import (
    FencelockError,
    ForgedSequencerError,
    GuardError,
    RightError,
    SchemaError,
    SourceUnavailableError,
    StaleTokenError,
)
from fencelock.protocol.guard_requests import Floor
from fencelock.stores.errors import GUARD_PART, below_floor, closed_inside, ended_in_part, implausible, not_installed
from fencelock.stores.mysql.connection.errors import error_number, map_error
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.sql.errors import (
    BELOW_FLOOR,
    ENDED_INSIDE,
    IMPLAUSIBLE,
    REFUSALS,
    STALE,
    DefiniteError,
    find_definite,
    without_commit,
)

_OURS = re.compile(r"(FL0\d\d) .*", re.DOTALL)
_NUMBERS = re.compile(r"token (\d+) at mark (\d+) of resource (.*?): ")
_CEILING = re.compile(r"token (\d+) above ceiling (\d+) of resource (.*)", re.DOTALL)
_FLOOR = re.compile(r"token (\d+) is not above floor (\d+) of source (\S*) at resource (.*)", re.DOTALL)
_NO_RIGHT = re.compile(r"account (.*?) has no right to resource (.*)", re.DOTALL)
_OLD_SNAPSHOT, _FORGED, NO_RIGHT = "FL008", "FL013", "FL014"
_MESSAGE_CHARACTERS = 128
"""The server cuts a longer text, so its end is a part of a name."""
READ_ONLY = 1792
"""A write in a session that is bound, but in another transaction than the one that presented the lease."""
RECORD_CHANGED = 1020
"""MariaDB's error, with innodb_snapshot_isolation, for locking a row that is younger than the snapshot: it has rolled
back the transaction.
"""
CONFLICTS = {1213, RECORD_CHANGED}
"""A transaction that the server has rolled back, to end a deadlock or for its old snapshot: it may begin again."""
CONNECTION_ENDED = {1053, 1927, 2006, 2013, 4031}
"""The server ended an idle connection, an operator killed it, or the network cut it."""
_NO_ROUTINE = {1305, 1146, 1318, 1054}
_NUMBER_AND_TEXT = 2
_DEFINITE = (
    DefiniteError(
        {1205},
        SourceUnavailableError,
        "{url}: another open transaction holds the lock that this request waited for ({message}), and nothing was "
        "done: try again. If it keeps failing, find that transaction (information_schema.INNODB_TRX, XA RECOVER), and "
        "end it",
    ),
    DefiniteError(
        {1419},
        GuardError,
        "{url} has its binary log on, and lets this account create no triggers ({message}): grant it SUPER, or have an "
        "administrator SET GLOBAL log_bin_trust_function_creators = 1",
    ),
    DefiniteError(
        {1449},
        SchemaError,
        "{url} runs the guard's routines and triggers with the rights of an account that is gone ({message}): "
        "have it made again, with the rights that it had",
    ),
    DefiniteError(
        {1290, 1836},
        SourceUnavailableError,
        "{url} is read-only here, and a guarded transaction writes ({message}): it is a replica, or was made read-only",
    ),
    DefiniteError(
        {1044, 1142, 1143, 1227, 1370},
        GuardError,
        "{url} does not permit it ({message}): a holder needs EXECUTE on the routines fencelock_…; to protect tables "
        "and move marks, an account needs the rights of the one that installed them",
    ),
)
"""Errors after which the server has done nothing, and for which a guard has a remedy of its own."""


class MySQLReport(NamedTuple):
    """The number and the text of a server's or a client's error."""

    number: int
    text: str


def read_report(error: BaseException) -> MySQLReport | None:
    """Return the number and the text in a client's exception; None if no MySQL client raised it."""
    arguments = error.args
    if isinstance(error, pymysql.Error):
        return MySQLReport(error_number(error), str(arguments[-1]) if arguments else "")
    if len(arguments) == _NUMBER_AND_TEXT and isinstance(arguments[0], int) and not isinstance(error, OSError):
        return MySQLReport(arguments[0], str(arguments[1]))
    number, text = getattr(error, "errno", None), getattr(error, "msg", None)
    return MySQLReport(number, text) if isinstance(number, int) and isinstance(text, str) else None


def map_refusal(error: BaseException) -> GuardError | None:
    """Map an error of the guard's routines and triggers; None for any other error."""
    report = read_report(error)
    found = None if report is None else _OURS.match(report.text)
    if found is None:
        return None
    message, code = found.group(0), found.group(1)
    if code == ENDED_INSIDE:
        return ended_inside()
    if code == _OLD_SNAPSHOT:
        return old_snapshot(message)
    return _numbered(code, message) or REFUSALS.get(code, GuardError)(message)


def _numbered(code: str, message: str) -> GuardError | None:
    """Return the error for a refusal whose text names numbers or an account, or has no remedy; None for others."""
    if code == STALE and (found := _NUMBERS.search(message)):
        token, mark, resource = found.groups()
        return StaleTokenError(message, token=int(token), mark=int(mark), resource=resource)
    if code == IMPLAUSIBLE and (found := _CEILING.search(message)):
        token, ceiling, resource = found.groups()
        return implausible(resource, int(token), int(ceiling))
    if code == BELOW_FLOOR and (found := _FLOOR.search(message)):
        token, floor, source_id, resource = found.groups()
        return below_floor(_cut(resource, message), int(token), Floor(f"{source_id}…", int(floor)))
    if code == NO_RIGHT and (found := _NO_RIGHT.search(message)):
        account, resource = found[1], _cut(found[2], message)
        return RightError(
            f"account {account} has no right to resource {resource!r}: it may neither seal nor present nor close it. "
            f"As the owner of fencelock's routines, run `fencelock grant URL --resource "
            f"{shlex.quote(resource)} --role {shlex.quote(account.rpartition('@')[0])}`"
        )
    if code == _FORGED:
        return ForgedSequencerError(
            f"{message}. Take the sequencer from the lease. If the source has a new key, run `fencelock keys install`"
        )
    return None


def _cut(resource: str, message: str) -> str:
    """Return a name at the end of a message, with an ellipsis if the server may have cut it off."""
    return resource + "…" if len(message) >= _MESSAGE_CHARACTERS else resource


def map_block_error(error: BaseException) -> GuardError | None:
    """Map an error in the user's block; None leaves the user's error as it is."""
    if (refused := map_refusal(error)) is not None:
        return refused
    report = read_report(error)
    if report is None:
        return None
    if report.number == READ_ONLY:
        return ended_inside()
    return closed_inside() if report.number in CONNECTION_ENDED else None


def map_request_error(error: BaseException, info: MySQLConnectionInfo, *, is_commit: bool) -> FencelockError | None:
    """Map an error of a guard's request; None if no MySQL client raised it."""
    if (refused := map_refusal(error)) is not None:
        return refused
    report = read_report(error)
    if report is None:
        return None
    if report.number in _NO_ROUTINE:
        return not_installed(info.url, GUARD_PART, report.text)
    if report.number == RECORD_CHANGED:
        return old_snapshot(report.text)
    if (known := find_definite(_DEFINITE, report.number, info.url, report.text)) is not None:
        return known
    mapped = map_error(error if isinstance(error, pymysql.Error) else pymysql.OperationalError(*report), info)
    return mapped if is_commit else without_commit(mapped, info.url, report.text or type(error).__name__)


def old_snapshot(message: str) -> GuardError:
    """Return the error for a transaction that does not see a mark as it is."""
    return GuardError(
        f"{message}. The transaction looks at the database as it was before the mark was raised, perhaps by this very "
        f"lease: roll it back, and start it again after guard.seal(lease)"
    )


def ended_inside() -> GuardError:
    """Return the error for a block that ended its own transaction by plain SQL, or lost it."""
    return ended_in_part(
        "the guarded transaction ended inside its block (COMMIT, ROLLBACK, DDL, or a deadlock, after which MySQL rolls "
        "back everything): what the block has committed is written, under the right mark; the rest is not. Leave the "
        "end to the block, and use SAVEPOINT inside it"
    )


def unanswered_inside() -> GuardError:
    """Return the error for a block that ended in the middle of a statement."""
    return GuardError(
        "the guarded block ended in the middle of a statement: it was interrupted before its reply, or another thread "
        "runs it. Nothing of the block was written. After an interruption leave the block, and begin another"
    )
