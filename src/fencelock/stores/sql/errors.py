"""What the error mapping of the two SQL servers shares: tables of definite errors, and the words for lost connections.

Promise: an error is definite if the server itself reported that it did nothing; a lost connection is indefinite, except
where the caller knows that COMMIT was not sent. Never imports a client library.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from fencelock.errors import (
    FencelockError,
    ForgedSequencerError,
    GuardError,
    OutcomeUnknownError,
    RightError,
    SourceError,
    SourceUnavailableError,
    TokenCollisionError,
    UnfencedWriteError,
    UnprotectedTableError,
    WrongLockError,
)

REFUSALS: Mapping[str, type[GuardError]] = {
    "FL001": UnfencedWriteError,
    "FL003": TokenCollisionError,
    "FL004": WrongLockError,
    "FL013": ForgedSequencerError,
    "FL014": RightError,
    "FL018": UnprotectedTableError,
}
"""The class for each code that the guard's SQL functions raise, unless it needs a message of its own."""
STALE, ENDED_INSIDE, IMPLAUSIBLE, BELOW_FLOOR = "FL002", "FL007", "FL012", "FL017"


class DefiniteError(NamedTuple):
    """A group of server errors that share a meaning: their codes, the class to raise, and its message."""

    codes: AbstractSet[Any]
    kind: type[FencelockError]
    template: str
    """Filled in with `url`, and with `message`, which is the server's own."""


def find_definite(table: Sequence[DefiniteError], code: object, url: str, message: str) -> FencelockError | None:
    """Return the error for a code of the table; None if the table does not contain the code."""
    for codes, kind, template in table:
        if code in codes:
            return kind(template.format(url=url, message=message))
    return None


def connection_lost(url: str, message: str) -> SourceError:
    """Return the indefinite error for a connection that broke while a request was out."""
    return OutcomeUnknownError(f"{url} broke off ({message}): whether it did what was asked is unknown")


def without_commit(known: FencelockError | None, url: str, message: str) -> FencelockError | None:
    """Return the error of a guard's request that sent no COMMIT: a lost connection is definite there."""
    if known is None or known.definite:
        return known
    return SourceUnavailableError(
        f"{url} broke off ({message}): COMMIT was not sent, so nothing of this transaction was written: try again"
    )
