"""A connection of SQLAlchemy's as a guard borrows it: the guard's statements go to the driver directly.

Promise: what the guard says appears in no log of SQLAlchemy's, since a claim is in it; a connection that broke is
invalidated, as SQLAlchemy does for its own statements; while it is lent, nobody but the block ends its transaction.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from fencelock.errors import FencelockError, GuardError, OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.protocol.stores import SQLGuardStore


class SQLAlchemyConnection:
    """A Core connection, lent to a guard for one transaction."""

    def __init__(self, connection: Connection, store: SQLGuardStore) -> None:
        self.connection = connection
        self._url = store.url
        self._is_ended = False
        self._is_commit = False
        self._fairy: Any = connection.connection
        self._borrowed = store.framework_connection(
            self._fairy, self._fairy.driver_connection, connection.dialect.paramstyle
        )

    def perform(self, request: Any) -> Any:
        """Answer one request."""
        with self._asking():
            return self._borrowed.perform(request)

    def prepare(self) -> None:
        """Make the session ready, before its transaction begins."""
        with self._asking():
            self._borrowed.prepare()

    def restore(self) -> None:
        """Leave nothing in the session; one that cannot be cleaned goes back to no pool."""
        if self.connection.closed or self.connection.invalidated:
            return
        try:
            # A commit that was refused inside the block has left SQLAlchemy's transaction half ended.
            self.connection.rollback()
        except DBAPIError:
            self.connection.invalidate()
        else:
            self._clean()

    def _clean(self) -> None:
        try:
            with self._asking():
                self._borrowed.restore()
        except FencelockError:
            self.connection.invalidate()

    def meaning(self, error: Exception) -> FencelockError | None:
        """Return the error of the tree for one that leaves the block; None: it is the user's own."""
        map_error = self._borrowed.map_commit_error if self._is_commit else self._borrowed.map_error
        if said := next(filter(None, map(map_error, _driver_errors(error))), None):
            return said
        if self._is_commit and isinstance(error, DBAPIError) and error.connection_invalidated:
            return OutcomeUnknownError(
                f"{self._url} broke off at COMMIT ({_first_line(error)}): whether the block was written is unknown"
            )
        return None

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except FencelockError as error:
            self._drop_if_broken(error.__cause__)
            raise
        except self.connection.dialect.loaded_dbapi.Error as error:
            is_broken = self._drop_if_broken(error)
            kind = SourceUnavailableError if is_broken else SourceError
            did = "broke off" if is_broken else "refused"
            raise kind(f"{self._url} {did} ({_first_line(error)}): nothing of this transaction was written") from error
        except BaseException:
            # Nobody knows how far the driver came.
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
        """Raise GuardError if the driver commits each statement by itself; SQLite's guard begins by itself."""
        dialect = self.connection.dialect
        if dialect.name != "sqlite" and dialect.detect_autocommit_setting(self._fairy):
            raise GuardError(
                "the connection is in AUTOCOMMIT, so a check would be worth nothing a moment later: use an engine, or "
                "execution_options(isolation_level=…), with transactions"
            )

    @contextmanager
    def until_commit(self) -> Iterator[ExitStack]:
        """Yield a stack that is left right before COMMIT is sent: listeners of the user's to a session's own commit may
        write. After an exception it is not left at all.
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
        """Refuse each COMMIT of the transaction within the block; what ends it, close() too, takes back what was
        presented: the connection may be in the pool a moment later.
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
        raise ended_inside()

    def _give_up(self, connection: Connection) -> None:
        if connection.invalidated:
            return
        try:
            with self._asking():
                connection.dialect.do_rollback(self._fairy)
        except FencelockError:
            return  # It broke, and is invalidated.
        self._clean()

    def check_kept(self) -> None:
        """Raise GuardError if the block has tried to commit, or lost its connection, though it swallowed the error."""
        if self._is_ended:
            raise ended_inside()
        if self.connection.invalidated:
            raise GuardError(
                "the connection of the guarded block was lost, or invalidated, and the error was caught: nothing of "
                "the block was written. Let the error leave the block, and call it again"
            )


def ended_inside() -> GuardError:
    """Return the error for a block that ended its own transaction."""
    return GuardError(
        "the block tried to end its own guarded transaction (commit(), rollback(), close()): nothing of it was "
        "written. The end of the block commits, and an exception out of it rolls back; inside it use begin_nested()"
    )


def _driver_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the driver's errors in one of SQLAlchemy's: an asynchronous driver's is wrapped twice."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        yield error.orig
        if error.orig.__cause__ is not None:
            yield error.orig.__cause__


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
