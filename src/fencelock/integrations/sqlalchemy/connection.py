"""A SQLAlchemy connection that a guard uses for one transaction; the guard's statements go to the driver directly.

Promise: the guard's statements, which contain a proof, do not appear in SQLAlchemy's log. A broken connection is
invalidated, as SQLAlchemy does for its own statements. Only the end of the block ends the transaction.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from fencelock.errors import (
    BlockLostError,
    FencelockError,
    GuardError,
    OutcomeUnknownError,
    SourceError,
    SourceUnavailableError,
)
from fencelock.integrations.fencing import COMMITTED
from fencelock.protocol.guard_requests import Present
from fencelock.protocol.stores import SQLGuardStore
from fencelock.stores.errors import closed_inside, note_lost


class SQLAlchemyConnection:
    """A framework connection of a guard, over a Core connection."""

    def __init__(self, connection: Connection, store: SQLGuardStore) -> None:
        self.connection = connection
        self._url = store.url
        self._is_presented = False
        self._is_lost = False
        self._is_ended = False
        self._is_commit = False
        self._fairy: Any = connection.connection
        self._guard_connection = store.framework_connection(
            self._fairy, self._fairy.driver_connection, connection.dialect.paramstyle
        )

    def perform(self, request: Any) -> Any:
        """Answer one request."""
        with self._mapping_errors():
            reply = self._guard_connection.perform(request)
        self._is_presented = self._is_presented or isinstance(request, Present)
        return reply

    def prepare(self) -> None:
        """Prepare the database session before its transaction begins."""
        with self._mapping_errors():
            self._guard_connection.prepare()

    def restore(self) -> None:
        """Clean the database session; invalidate the connection if that fails, so that no pool reuses it."""
        if self.connection.closed:
            return
        if self.connection.invalidated:
            self._is_lost = True
            return
        try:
            # A commit that was refused inside the block leaves SQLAlchemy's transaction half ended.
            self.connection.rollback()
        except DBAPIError:
            self.connection.invalidate()
        else:
            self._clean()

    def _clean(self) -> None:
        try:
            with self._mapping_errors():
                self._guard_connection.restore()
        except FencelockError:
            self.connection.invalidate()

    def map_error(self, error: Exception, *, is_committed: bool) -> FencelockError | None:
        """Return the FencelockError for an error that leaves the block; None if it is the user's own."""
        if self._is_commit and is_committed:
            error.add_note(COMMITTED)
            return None
        map_error = self._guard_connection.map_commit_error if self._is_commit else self._guard_connection.map_error
        if mapped := next(filter(None, map(map_error, _driver_errors(error))), None):
            return mapped
        if self._is_commit and isinstance(error, DBAPIError) and error.connection_invalidated:
            return OutcomeUnknownError(
                f"{self._url} broke the connection at COMMIT ({_first_line(error)}): whether the block was written is "
                f"unknown"
            )
        if self._is_presented and self._is_lost:
            if isinstance(error, SourceError) and error.definite:
                return closed_inside()
            note_lost(error)
        return None

    @contextmanager
    def _mapping_errors(self) -> Iterator[None]:
        try:
            yield
        except FencelockError as error:
            self._drop_if_broken(error.__cause__)
            raise
        except self.connection.dialect.loaded_dbapi.Error as error:
            is_broken = self._drop_if_broken(error)
            kind = SourceUnavailableError if is_broken else SourceError
            did = "broke the connection" if is_broken else "refused"
            raise kind(f"{self._url} {did} ({_first_line(error)}): nothing of this transaction was written") from error
        except BaseException:
            # It is unknown how far the driver has come, so the connection cannot be used again.
            self.connection.invalidate()
            raise

    def _drop_if_broken(self, error: BaseException | None) -> bool:
        dialect = self.connection.dialect
        if not isinstance(error, dialect.loaded_dbapi.Error):
            return False
        is_broken = dialect.is_disconnect(error, self._fairy, None)
        if is_broken:
            self.connection.invalidate(error)
        return is_broken

    def check_transaction(self) -> None:
        """Raise GuardError if the driver commits each statement; on SQLite the guard itself begins a transaction."""
        dialect = self.connection.dialect
        if dialect.name != "sqlite" and dialect.detect_autocommit_setting(self._fairy):
            raise GuardError(
                "the connection is in AUTOCOMMIT, so a check would mean nothing a moment later: use an engine, or "
                "execution_options(isolation_level=…), with transactions"
            )

    @contextmanager
    def until_commit(self) -> Iterator[ExitStack]:
        """Yield a stack that is closed right before COMMIT is sent, after the user's own commit listeners, which may
        write. After an exception it is not closed.
        """
        stack = ExitStack()

        def leave(connection: Connection, *_: object) -> None:
            try:
                stack.close()
            except BaseException:
                self._give_up(connection)
                raise
            self._is_commit = True

        for name in ("commit", "prepare_twophase"):
            event.listen(self.connection, name, leave)
        try:
            yield stack
        finally:
            for name in ("commit", "prepare_twophase"):
                event.remove(self.connection, name, leave)

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Refuse each COMMIT within the block. If anything else ends the transaction, close() included, withdraw
        what was presented at once, because the connection may return to the pool.
        """
        event.listen(self.connection, "commit", self._refuse, insert=True)
        event.listen(self.connection, "rollback", self._give_up)
        try:
            yield
        finally:
            event.remove(self.connection, "commit", self._refuse)
            event.remove(self.connection, "rollback", self._give_up)

    def _refuse(self, connection: Connection) -> None:
        self._is_ended = True
        self._give_up(connection)
        raise ended_inside_error()

    def _give_up(self, connection: Connection) -> None:
        if connection.invalidated:
            return
        try:
            with self._mapping_errors():
                connection.dialect.do_rollback(self._fairy)
        except FencelockError:
            return  # The connection broke and is invalidated.
        self._clean()

    def check_still_open(self) -> None:
        """Raise GuardError if the block tried to commit, BlockLostError if it lost its connection, and swallowed the
        error.
        """
        if self._is_ended:
            raise ended_inside_error()
        if self.connection.invalidated:
            raise BlockLostError(
                "the connection of the guarded block was lost, or invalidated, and the error was caught: nothing of "
                "the block was written. Let the error leave the block, and call it again"
            )


def ended_inside_error() -> GuardError:
    """Return the error for a block that ended its own transaction."""
    return GuardError(
        "the block tried to end its own guarded transaction (commit(), rollback(), close()): nothing of it was "
        "written. The end of the block commits, and an exception out of it rolls back; inside it use begin_nested()"
    )


def unreachable_error(url: str, error: DBAPIError) -> SourceUnavailableError:
    """Return the error for a block that found no connection."""
    return SourceUnavailableError(f"{url} cannot be reached ({_first_line(error)}): the block has not begun")


def _driver_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the driver's errors inside one of SQLAlchemy's; an asynchronous driver's error is wrapped twice."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        yield error.orig
        if error.orig.__cause__ is not None:
            yield error.orig.__cause__


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
