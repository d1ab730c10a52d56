"""A Django connection that a guard uses for one transaction; the guard's statements go to the driver directly.

Promise: the guard's statements, which contain a proof, appear in no query log. Never: begins or ends a transaction.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, InterfaceError, OperationalError

from fencelock.errors import (
    BlockLostError,
    FencelockError,
    GuardError,
    OutcomeUnknownError,
    SourceError,
    SourceUnavailableError,
)
from fencelock.protocol.guard_requests import Present, Unpresent
from fencelock.protocol.stores import SQLGuardStore
from fencelock.stores.errors import closed_inside, note_lost


class DjangoConnection:
    """A framework connection of a guard, over Django's."""

    def __init__(self, connection: Any, store: SQLGuardStore) -> None:
        self.connection = connection
        self._url = store.url
        driver = connection.connection
        self._driver = driver
        self._is_presented = False
        self._guard_connection = store.framework_connection(driver, driver, connection.Database.paramstyle)

    def perform(self, request: Any) -> Any:
        """Answer one request."""
        if isinstance(request, Unpresent) and self.connection.needs_rollback:
            # Django would roll back, and return from the block as if it were committed.
            raise closed_by_block() if self.connection.closed_in_transaction else marked_error()
        with self._mapping_errors():
            reply = self._guard_connection.perform(request)
        self._is_presented = self._is_presented or isinstance(request, Present)
        return reply

    def prepare(self) -> None:
        """Prepare the session before its transaction begins."""
        with self._mapping_errors():
            self._guard_connection.prepare()

    def restore(self) -> None:
        """Clean the session; close the connection if that fails, or if Django could not end the transaction on it."""
        if self.connection.connection is not self._driver:
            return
        if not self.connection.autocommit:
            self.connection.close()
            return
        try:
            with self._mapping_errors():
                self._guard_connection.restore()
        except FencelockError:
            self.connection.close()

    @contextmanager
    def _mapping_errors(self) -> Iterator[None]:
        try:
            with self.connection.wrap_database_errors:
                yield
        except Error as error:
            is_broken = isinstance(error, OperationalError | InterfaceError)
            kind = SourceUnavailableError if is_broken else SourceError
            first = str(error).partition("\n")[0] or type(error).__name__
            raise kind(f"{self._url} refused it ({first}): nothing of this transaction was written") from error
        except FencelockError as error:
            if isinstance(error, SourceUnavailableError):
                self.connection.close()
            raise
        except BaseException:
            # It is unknown how far the driver has come: its next statement could read the reply to this one.
            self.connection.close()
            raise

    def map_error(self, error: Exception, *, is_commit: bool) -> FencelockError | None:
        """Return the FencelockError for an error that leaves the block; None if it is the user's own."""
        map_error = self._guard_connection.map_commit_error if is_commit else self._guard_connection.map_error
        cause = error.__cause__ if isinstance(error, Error) else None
        if cause is not None and (mapped := map_error(cause)) is not None:
            return mapped
        # Django replaces the connection if ROLLBACK fails after COMMIT; if its statement after COMMIT fails, it stays
        # outside of autocommit mode.
        is_lost = self.connection.connection is not self._driver or not self.connection.autocommit
        if is_commit and isinstance(error, Error) and is_lost:
            first = str(error).partition("\n")[0]
            return OutcomeUnknownError(
                f"{self._url} broke the connection at COMMIT ({first}): whether the block was written is unknown"
            )
        if is_lost and self._is_presented and not is_commit:
            if isinstance(error, SourceError) and error.definite:
                return closed_inside()
            note_lost(error)
        return None


def unreachable_error(url: str, error: Error) -> SourceUnavailableError:
    """Return the error for a block that found no connection."""
    first = str(error).partition("\n")[0]
    return SourceUnavailableError(f"{url} cannot be reached ({first}): the block has not begun")


def closed_by_block() -> BlockLostError:
    """Return the error for a block that closed its own connection; Django itself raises none at the block's end."""
    return BlockLostError(
        "the block closed the connection of its own guarded transaction (connection.close(), connections.close_all()): "
        "nothing of it was written. Leave the connection open until the block has ended"
    )


def marked_error() -> GuardError:
    """Return the error for a block that Django rolls back without an exception."""
    return GuardError(
        "the guarded transaction was marked for rollback inside its block, by an error that the block caught (of "
        "save(), bulk_create(), atomic(savepoint=False), …) or by set_rollback(True): nothing of it was written. Put a "
        "statement that may fail into `with transaction.atomic():`; to roll back, let an exception leave the block"
    )
