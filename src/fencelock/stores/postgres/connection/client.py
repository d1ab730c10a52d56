"""psycopg connections for a source or a guard, and what their errors mean.

Promise: a connection waits `request_timeout_s` at most for each answer, so that a frozen server or a cut network is
noticed. A wait that is broken off, by its end or by an exception, is over at once: the server is not asked to cancel,
since the connection is closed next and the outcome unknown. Errors become those of the tree, with `definite` true to
the fact.
"""

import select
import time
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import waiting

from fencelock.errors import OutcomeUnknownError, SchemaError, SourceError, SourceUnavailableError
from fencelock.stores.errors import ErrorMapper
from fencelock.stores.postgres.connection import wire as exchange
from fencelock.stores.postgres.connection.forks import FORKS
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.postgres.connection.wire import Row, Trip

LOOK_S = 0.5
"""How often a waiting connection looks whether its patience is over."""
MAX_CONNECT_S = 5
MIN_CONNECT_S = 2
"""libpq takes whole seconds, and no fewer than two, for each address that it tries."""
_KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 3, "keepalives_count": 3}
"""Seconds, seconds, tries: a connection on which nothing is asked, the listening one, learns of a cut network."""
ENCODING = "utf8"
_IS_TERMINATED = {"57P01", "57P02", "57P05"}
_IS_CONNECTION = "08"
_DEFINITE: tuple[tuple[set[str], type[SourceError], str], ...] = (
    (
        {"3F000", "42P01", "42883", "42704"},
        SchemaError,
        "{url} holds no fencelock schema, or another version's ({said}): as its owner, run `fencelock install` on it",
    ),
    (
        {"25006"},
        SourceUnavailableError,
        "{url} takes no writes ({said}): it is a standby, or was made read-only",
    ),
    (
        {"42501"},
        SourceError,
        "{url} does not permit it ({said}): grant it to this role, or ask an operator",
    ),
    (
        {"40001", "40P01", "53100", "53200", "53300", "53400", "55P03", "57014", "57P03"},
        SourceUnavailableError,
        "{url} could not do it now ({said}): try again",
    ),
)
"""What an error of the server means when the server itself says that nothing was done."""
Result = TypeVar("Result")


class PostgresTimeoutError(Exception):
    """The server did not answer in time; never leaves this package."""


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A synchronous connection with an end to its patience."""

    request_timeout_s: float = MAX_CONNECT_S
    prepared: dict[str, bytes]
    looking: select.poll
    _forks = FORKS  # At the interpreter's end the module's own names may be gone before the last connection.

    def __del__(self) -> None:  # type: ignore[override]
        """Close what somebody forgot; psycopg would complain."""
        self._forks.close(self)

    def wait(self, gen: Any, interval: float = LOOK_S, timeout: float | None = None) -> Any:
        """Wait for psycopg's generator, until the patience is over at most."""
        request_timeout_s = self.request_timeout_s if timeout is None else timeout
        return waiting.wait(_limited(gen, request_timeout_s), self.pgconn.socket, min(interval, request_timeout_s))

    def run_prepared(self, statement: str, parameters: Sequence[Any]) -> list[Row]:
        """Run a statement that this connection prepares at its first time, and return its rows."""
        return self.wait(_prepared(self, statement, parameters))  # type: ignore[no-any-return]


class AsyncPostgresConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """The same for an event loop."""

    request_timeout_s: float = MAX_CONNECT_S
    prepared: dict[str, bytes]
    looking: select.poll
    _forks = FORKS  # At the interpreter's end the module's own names may be gone before the last connection.

    def __del__(self) -> None:  # type: ignore[override]
        """Close what somebody forgot; psycopg would complain."""
        self._forks.close(self)

    async def wait(self, gen: Any, interval: float = LOOK_S, timeout: float | None = None) -> Any:
        """Wait for psycopg's generator, until the patience is over at most."""
        request_timeout_s = self.request_timeout_s if timeout is None else timeout
        return await waiting.wait_async(
            _limited(gen, request_timeout_s), self.pgconn.socket, min(interval, request_timeout_s)
        )

    async def run_prepared(self, statement: str, parameters: Sequence[Any]) -> list[Row]:
        """Run a statement that this connection prepares at its first time, and return its rows."""
        return await self.wait(_prepared(self, statement, parameters))  # type: ignore[no-any-return]


def _limited(gen: Generator[Any, Any, Result], request_timeout_s: float) -> Generator[Any, Any, Result]:
    """Pass everything between psycopg's generator and whoever waits for it, until the patience is over."""
    end_s = time.monotonic() + request_timeout_s
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= end_s:
                raise PostgresTimeoutError("no answer in time")
            wanted = gen.send(ready)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def _prepared(
    connection: PostgresConnection | AsyncPostgresConnection, statement: str, parameters: Sequence[Any]
) -> Trip[list[Row]]:
    """Ask without a cursor, which costs as much again as the trip."""
    names = connection.prepared
    name = names.get(statement) or (yield from exchange.prepare(connection.pgconn, statement, names, ENCODING))
    return (yield from exchange.run_prepared(connection.pgconn, name, parameters, ENCODING))


def open_connection(
    place: PostgresConnectionInfo, request_timeout_s: float, kind: type[PostgresConnection] = PostgresConnection
) -> PostgresConnection:
    """Return an open connection in autocommit mode; SourceUnavailableError if there is none to be had."""
    try:
        connection = kind.connect(autocommit=True, **_parameters(place, request_timeout_s))
    except psycopg.Error as error:
        raise unreachable(error, place) from error
    _take_charge(connection, request_timeout_s)
    return connection


async def open_async_connection(
    place: PostgresConnectionInfo,
    request_timeout_s: float,
    kind: type[AsyncPostgresConnection] = AsyncPostgresConnection,
) -> AsyncPostgresConnection:
    """The same for an event loop."""
    try:
        connection = await kind.connect(autocommit=True, **_parameters(place, request_timeout_s))
    except psycopg.Error as error:
        raise unreachable(error, place) from error
    _take_charge(connection, request_timeout_s)
    return connection


def _take_charge(connection: PostgresConnection | AsyncPostgresConnection, request_timeout_s: float) -> None:
    FORKS.add(connection)
    connection.request_timeout_s = request_timeout_s
    connection.prepared = {}
    connection.looking = select.poll()
    connection.looking.register(connection.pgconn.socket, select.POLLIN)


def _parameters(place: PostgresConnectionInfo, request_timeout_s: float) -> dict[str, Any]:
    patience = max(MIN_CONNECT_S, min(MAX_CONNECT_S, round(request_timeout_s)))
    # A database of another encoding would else be spoken to in that one, which lacks what a holder's name may have.
    return {"connect_timeout": patience, **_KEEPALIVES, **place.parameters, "client_encoding": ENCODING}


def is_alive(connection: PostgresConnection | AsyncPostgresConnection) -> bool:
    """Tell whether an idle connection of this process is one still: a server that ended it has something to read."""
    return FORKS.is_ours(connection) and not connection.closed and not connection.looking.poll(0)


def is_pooled(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], backend_id: int) -> bool:
    """Tell whether a pooler stands between, which says that it is another backend than the one that answers."""
    return connection.info.backend_pid != backend_id


def unreachable(error: psycopg.Error, place: PostgresConnectionInfo) -> SourceError:
    """Return what a failed attempt to connect means."""
    said = " ".join(line.strip() for line in str(error).splitlines()) or type(error).__name__
    return SourceUnavailableError(f"{place.url} cannot be reached: {said}")


def mapping_errors(place: PostgresConnectionInfo) -> ErrorMapper:
    """Return a block in which what comes out of a request that was sent is raised as what it means."""
    return ErrorMapper(lambda error: map_error(error, place))


def map_error(error: BaseException, place: PostgresConnectionInfo) -> SourceError | None:
    """Return what an exception out of a request that was sent means; None: it is not the store's."""
    if isinstance(error, PostgresTimeoutError):
        return OutcomeUnknownError(f"{place.url} did not answer in time: whether it did what was asked is unknown")
    if not isinstance(error, psycopg.Error):
        return None
    said = (error.diag.message_primary or str(error)).strip()
    state = error.sqlstate
    if state is None or state in _IS_TERMINATED or state.startswith(_IS_CONNECTION):
        return OutcomeUnknownError(f"{place.url} broke off ({said}): whether it did what was asked is unknown")
    return answered(state, said, place)


def answered(state: str, said: str, place: PostgresConnectionInfo) -> SourceError:
    """Return what a server means that answers with an error, and so has done nothing."""
    for states, kind, message in _DEFINITE:
        if state in states:
            return kind(message.format(url=place.url, said=said))
    return SourceError(f"{place.url} refused: {said}")
