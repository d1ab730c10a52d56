"""What an error of psycopg means for a guard: refusals of the database's own functions and triggers, and all the rest.

Promise: a refusal carries the numbers that the database has named; whether something may have happened is told as it
is: before COMMIT was sent, a broken connection has done nothing. Never: a claim in a message.
"""

import json

import psycopg

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
from fencelock.stores.postgres.connection.errors import map_error, read_report
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo

_OUR_CLASS = "FL"
_STALE = "FL002"
_KINDS: dict[str, type[GuardError]] = {
    "FL001": UnfencedWriteError,
    "FL003": TokenCollisionError,
    "FL004": WrongLockError,
}
_ENDED = "FL007"
_IDLE = "25P03"
_NO_TRANSACTION_LEFT = "25P02"
_DEFINITE: dict[str, tuple[type[FencelockError], str]] = {
    "55P03": (
        SourceUnavailableError,
        (
            "{url}: an open transaction holds what was waited for ({said}), and nothing was done: try again. If it "
            "stays so, see whose it is (pg_locks, pg_prepared_xacts), and end it"
        ),
    ),
    "22P05": (GuardError, "{url} cannot have such a name ({said}): use one that the database's encoding has"),
    "25006": (
        SourceUnavailableError,
        "{url} is read-only here, and a guarded transaction writes: it is a standby, or the session is read-only",
    ),
    "42501": (
        GuardError,
        (
            "{url} does not permit it ({said}): a holder needs USAGE on the schema fencelock; whoever protects tables "
            "and moves marks has to be the schema's owner, or a member of it"
        ),
    ),
}
"""What else the server says, when it has done nothing."""


def refusal(error: BaseException) -> GuardError | None:
    """Return what the guard's own functions and triggers mean, or the server that ended a frozen block; else None."""
    report = read_report(error)
    if report is None:
        return None
    if report.state == _IDLE:
        return GuardError(
            "the guarded transaction was idle for longer than its lease had left, so the server ended it, and nothing "
            "of it was written: acquire the lock again; if slow work belongs between statements, do it before the block"
        )
    if not report.state.startswith(_OUR_CLASS):
        return None
    if report.state == _ENDED:
        return ended_inside()
    said = ". ".join(filter(None, (report.message, report.hint)))
    if report.state == _STALE:
        numbers = json.loads(report.detail or "{}")
        return StaleTokenError(
            said, token=int(numbers["token"]), mark=int(numbers["mark"]), resource=str(numbers["resource"])
        )
    return _KINDS.get(report.state, GuardError)(said)


def ended_inside() -> GuardError:
    """Return the error for a block that ended its own transaction by plain SQL."""
    return GuardError(
        "the block ended its own guarded transaction (COMMIT, ROLLBACK): what it wrote before a COMMIT is written, "
        "under the mark as it should be; what came later is not, and protected tables refused it. Leave the end to "
        "the block, and use `with connection.transaction():` inside it"
    )


def is_users(error: BaseException, connection: psycopg.Connection | psycopg.AsyncConnection | None) -> bool:
    """Tell whether the end of a block failed by something of the user's own: a deferred constraint, a conflict."""
    return (
        isinstance(error, psycopg.Error)
        and error.sqlstate is not None
        and not error.sqlstate.startswith(_OUR_CLASS)
        and error.sqlstate not in (_IDLE, _NO_TRANSACTION_LEFT)
        and connection is not None
        and not connection.closed
    )


def no_schema(info: PostgresConnectionInfo) -> SchemaError:
    """Return the error for a database without the guard's functions."""
    return SchemaError(
        f"{info.url} holds no guard's schema, or one of another version: run `fencelock protect {info.url} "
        f"--resource … --lock … --table …` as a role that may create a schema there"
    )


def map_guard_error(error: BaseException, info: PostgresConnectionInfo, *, is_commit: bool) -> FencelockError | None:
    """Return the error of the tree for one that a request ran into; None: it is none of psycopg's."""
    if (said := refusal(error)) is not None:
        return said
    first_line = str(error).partition("\n")[0]
    report = read_report(error)
    if report is not None and report.state in _DEFINITE:
        kind, message = _DEFINITE[report.state]
        return kind(message.format(url=info.url, said=first_line))
    known = map_error(error, info)
    if isinstance(known, SchemaError):
        return no_schema(info)
    if known is not None and not known.definite and not is_commit:
        return SourceUnavailableError(
            f"{info.url} broke off ({first_line or type(error).__name__}): COMMIT was not sent, so nothing of this "
            f"transaction was written: try again"
        )
    return known
