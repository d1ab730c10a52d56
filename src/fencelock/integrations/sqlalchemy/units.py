"""The session or the Core connection on which a guarded block runs.

Promise: one that is already in a transaction is refused, because it may have read before the check. In the block, a
session uses one connection, the one on which the lease was presented, and contains no object that was read before.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from fencelock.errors import ConfigError, GuardError
from fencelock.integrations.sqlalchemy.connection import ended_inside_error


class Unit(Protocol):
    """A session or connection on which a guarded block runs."""

    @property
    def engine(self) -> Engine:
        """The engine of its connection."""

    def check_idle(self) -> None:
        """Raise GuardError if it is in a transaction."""

    def connected(self) -> AbstractContextManager[Connection]:
        """Provide the connection for the block."""

    def begun(self, connection: Connection) -> AbstractContextManager[None]:
        """Begin on that connection; commit at the end, or roll back."""

    def finish(self) -> None:
        """Flush pending changes; GuardError if the block has ended its own transaction."""

    def is_committed(self) -> bool:
        """Return whether an error at the end of the block came after its commit, from the user's own listeners."""


class CoreUnit:
    """A Core connection."""

    def __init__(self, connection: Connection) -> None:
        self.engine = connection.engine
        self._connection = connection
        self._transaction: Any = None

    def check_idle(self) -> None:
        """Raise GuardError if the connection is in a transaction."""
        if self._connection.in_transaction():
            raise _in_transaction_error("connection")

    def connected(self) -> AbstractContextManager[Connection]:
        """Provide the user's own connection, which stays open afterwards."""
        return nullcontext(self._connection)

    @contextmanager
    def begun(self, connection: Connection) -> Iterator[None]:
        """Begin; commit at the end, or roll back."""
        with connection.begin() as self._transaction:
            yield

    def finish(self) -> None:
        """Raise GuardError unless the transaction is still the one that was begun."""
        if self._connection.get_transaction() is not self._transaction:
            raise ended_inside_error()

    def is_committed(self) -> bool:
        """Return False: a connection has no listeners that run after COMMIT."""
        return False


class SessionUnit:
    """A session, with the engine or connection that `bind_arguments` select."""

    def __init__(self, session: Session, bind_arguments: Mapping[str, Any] | None) -> None:
        self._session = session
        self._bind = _bind_of(session, bind_arguments or {})
        self.engine = self._bind.engine
        self._transaction: Any = None

    def check_idle(self) -> None:
        """Raise GuardError if the session, or the connection that it is bound to, is in a transaction."""
        if self._session.in_transaction():
            raise _in_transaction_error("session")
        if isinstance(self._bind, Connection) and self._bind.in_transaction():
            raise _in_transaction_error("session's connection")

    def connected(self) -> AbstractContextManager[Connection]:
        """Provide a connection of the engine for this block, or the one that the session is bound to."""
        return nullcontext(self._bind) if isinstance(self._bind, Connection) else self._bind.connect()

    @contextmanager
    def begun(self, connection: Connection) -> Iterator[None]:
        """Begin on the connection; commit at the end, or roll back."""
        session = self._session
        # The session's objects were read before the seal: an update computed from them would be lost.
        session.expire_all()
        with session.begin() as transaction:
            self._transaction = transaction
            session.connection(bind_arguments={"bind": connection})
            yield

    def finish(self) -> None:
        """Flush pending changes while the lease is still presented."""
        transaction = self._session.get_transaction()
        if transaction is None or transaction is not self._transaction:
            raise ended_inside_error()
        if not transaction.is_active:
            raise GuardError(
                "a flush of the guarded block failed and its error was caught, but the session had rolled back: "
                "nothing of the block was written. Put statements that may fail into begin_nested()"
            )
        self._session.flush()

    def is_committed(self) -> bool:
        """Return whether the transaction of the block is over, and the session has not rolled it back."""
        # A session closes a transaction that it could not commit; it keeps one whose `after_commit` listeners failed.
        return self._transaction is not None and self._session.get_transaction() is self._transaction


def _bind_of(session: Session, bind_arguments: Mapping[str, Any]) -> Engine | Connection:
    try:
        return session.get_bind(**bind_arguments)
    except UnboundExecutionError as error:
        raise ConfigError(
            "the session has several engines, or none: name the one that has the resource, with "
            "fenced(…, bind_arguments={'mapper': Model}), as for session.connection()"
        ) from error


def _in_transaction_error(what: str) -> GuardError:
    return GuardError(
        f"the {what} is in a transaction already, which may have read what a newer holder has changed since: commit() "
        f"or rollback() it first, and read and write inside the block (each query begins one, so do add() and a "
        f"changed attribute)"
    )
