"""Errors of a PostgreSQL guard: refusals by the database's functions and triggers, and all others.

Promise: a refusal carries the numbers that the database named. An error is definite before COMMIT was sent, also if the
connection broke. Never shows a proof.
"""

import json

import psycopg

from fencelock.errors import FencelockError, GuardError, SchemaError, SourceUnavailableError, StaleTokenError
from fencelock.protocol.guard_requests import Floor
from fencelock.stores.errors import GUARD_PART, below_floor, ended_in_part, idle_inside, implausible, not_installed
from fencelock.stores.postgres.connection.errors import PostgresReport, map_error, read_report
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
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

_OUR_CLASS = "FL"
_IDLE_TIMEOUT = "25P03"
_FAILED_TRANSACTION = "25P02"
_CONFLICT = "40001"
CONFLICTS = (_CONFLICT, "40P01")
"""A transaction that cannot see what another has done, or that the server ended for a deadlock: it may begin again."""
_SAVEPOINTS = "psycopg: `with connection.transaction():`, SQLAlchemy: begin_nested(), Django: atomic()"
_DEFINITE = (
    DefiniteError(
        {"55P03"},
        SourceUnavailableError,
        "{url}: another open transaction holds the lock that this request waited for ({message}), and nothing was "
        "done: try again. If it keeps failing, find that transaction (pg_locks, pg_prepared_xacts), and end it",
    ),
    DefiniteError(
        {"22P05"}, GuardError, "{url} cannot store such a name ({message}): use one that the database's encoding has"
    ),
    DefiniteError(
        {"25006"},
        SourceUnavailableError,
        "{url} is read-only here, and a guarded transaction writes: it is a standby, or the session is read-only",
    ),
    DefiniteError(
        {"42501"},
        GuardError,
        "{url} does not permit it ({message}): a holder needs USAGE on the schema fencelock; to protect tables and "
        "move marks, a role has to be the schema's owner, or a member of it",
    ),
)
"""Errors after which the server has done nothing, and for which a guard has a remedy of its own."""


def map_refusal(error: BaseException) -> GuardError | None:
    """Map an error of the guard's functions and triggers, or the end of an idle block; None for any other error."""
    report = read_report(error)
    if report is None:
        return None
    if report.state == _IDLE_TIMEOUT:
        return idle_inside()
    if not report.state.startswith(_OUR_CLASS):
        return None
    if report.state == ENDED_INSIDE:
        return ended_inside()
    return _refusal(report)


def _refusal(report: PostgresReport) -> GuardError:
    message = ". ".join(filter(None, (report.message, report.hint)))
    if report.state not in (STALE, IMPLAUSIBLE, BELOW_FLOOR):
        return REFUSALS.get(report.state, GuardError)(message)
    numbers = json.loads(report.detail or "{}")
    resource, token = str(numbers["resource"]), int(numbers["token"])
    if report.state == IMPLAUSIBLE:
        return implausible(resource, token, int(numbers["ceiling"]))
    if report.state == BELOW_FLOOR:
        return below_floor(resource, token, Floor(numbers["source"], int(numbers["mark"])))
    return StaleTokenError(message, token=token, mark=int(numbers["mark"]), resource=resource)


def map_request_error(error: BaseException, info: PostgresConnectionInfo, *, is_commit: bool) -> FencelockError | None:
    """Map an error of a guard's request; None if no PostgreSQL client raised it."""
    if (refused := map_refusal(error)) is not None:
        return refused
    message = str(error).partition("\n")[0]
    report = read_report(error)
    if report is not None and (known := find_definite(_DEFINITE, report.state, info.url, message)) is not None:
        return known
    mapped = map_error(error, info)
    if isinstance(mapped, SchemaError):
        return not_installed(info.url, GUARD_PART, message)
    return mapped if is_commit else without_commit(mapped, info.url, message or type(error).__name__)


def map_callers_error(error: BaseException) -> GuardError | None:
    """Map an error that comes from the state of the caller's transaction; None for any other error."""
    report = read_report(error)
    make = None if report is None else {_CONFLICT: old_snapshot, _FAILED_TRANSACTION: failed_inside}.get(report.state)
    return None if make is None else make()


def is_users_error(error: BaseException, native: psycopg.Connection | psycopg.AsyncConnection | None) -> bool:
    """Return whether COMMIT failed by the user's own work: a deferred constraint, a conflict."""
    return (
        isinstance(error, psycopg.Error)
        and error.sqlstate is not None
        and not error.sqlstate.startswith(_OUR_CLASS)
        and error.sqlstate not in (_IDLE_TIMEOUT, _FAILED_TRANSACTION)
        and native is not None
        and not native.closed
    )


def ended_inside() -> GuardError:
    """Return the error for a block that ended its own transaction by plain SQL."""
    return ended_in_part(
        "the guarded transaction ended inside its block (COMMIT, ROLLBACK): writes before a COMMIT are committed, "
        "under the right mark; protected tables refused later ones. Leave the end to the block, and use savepoints "
        f"inside it ({_SAVEPOINTS})"
    )


def failed_inside() -> GuardError:
    """Return the error for a block whose transaction had failed before its end."""
    return GuardError(
        "a statement of the guarded block failed and its error was caught, but PostgreSQL had ended the transaction "
        "with it, and wrote nothing of it. Put a statement that may fail into a savepoint "
        f"({_SAVEPOINTS})"
    )


def old_snapshot() -> GuardError:
    """Return the error for a transaction that may not see what a later holder has changed."""
    return GuardError(
        "the transaction looks at the database as it was before a mark was raised, perhaps by this very lease: "
        "roll it back, and start it again after guard.seal(lease)"
    )
