"""PyMySQL and aiomysql connections for a source or a guard, and what their errors mean.

Promise: a connection waits `patience_s` at most for the server to go on, so that a frozen server or a cut network is
noticed. Each begins with autocommit on, READ COMMITTED, UTC, utf8mb4 and a strict mode, set in one round trip; where a
URL asks for TLS, nothing secret is sent without it. Errors become those of the tree, with `definite` true to the fact.
"""

import asyncio
import os
import select
import socket
import ssl
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import aiomysql
import pymysql
from pymysql.constants import CLIENT, COMMAND, CR, ER

from fenceline.errors import OutcomeUnknownError, SchemaError, SourceError, SourceUnavailableError
from fenceline.stores.mysql.conninfo import PREFERRED, Address, Place
from fenceline.stores.mysql.forks import FORKS

MAX_CONNECT_S = 5.0
"""How long one address is tried."""
_SETTLE = (
    "SET NAMES utf8mb4, autocommit = 1, completion_type = 0, time_zone = '+00:00', "
    "sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'), innodb_lock_wait_timeout = {lock_wait_s}, "
    "/*M! tx_isolation = 'READ-COMMITTED' */ /*!80003 transaction_isolation = 'READ-COMMITTED' */"
)
"""The two servers name the isolation level differently, and each reads the comment that is meant for it."""
_IS_WRITABLE = "SELECT CONCAT(@@global.read_only) IN ('0', 'OFF')"
_QUIT = struct.pack("<iB", 1, COMMAND.COM_QUIT)
Rows = Sequence[tuple[Any, ...]]
_CLIENTS_OWN = range(2000, 3000)
"""Errors that the client makes itself: the server has not said that nothing was done."""
_CONNECTION_KILLED, _STATEMENT_TIMEOUT = 1927, 1969
_READ_ONLY_TRANSACTION, _READ_ONLY_MODE, _ROLLED_BACK_BY_PLUGIN = 1792, 1836, 3101
_DOUBTFUL = {
    ER.SERVER_SHUTDOWN,
    ER.QUERY_INTERRUPTED,
    ER.ERROR_DURING_COMMIT,
    ER.NEW_ABORTING_CONNECTION,
    ER.QUERY_TIMEOUT,
    _CONNECTION_KILLED,
    _STATEMENT_TIMEOUT,
}
"""Errors of the server that may hit a routine after its COMMIT."""
_DEFINITE: tuple[tuple[set[int], type[SourceError], str], ...] = (
    (
        {ER.NO_SUCH_TABLE, ER.SP_DOES_NOT_EXIST, ER.SP_WRONG_NO_OF_ARGS, ER.BAD_FIELD_ERROR},
        SchemaError,
        "{url} holds no fenceline schema, or another version's ({said}): as its owner, run `fenceline install` on it",
    ),
    (
        {ER.OPTION_PREVENTS_STATEMENT, _READ_ONLY_TRANSACTION, _READ_ONLY_MODE},
        SourceUnavailableError,
        "{url} takes no writes ({said}): it is a replica, or was made read-only",
    ),
    (
        {
            ER.DBACCESS_DENIED_ERROR,
            ER.ACCESS_DENIED_ERROR,
            ER.TABLEACCESS_DENIED_ERROR,
            ER.COLUMNACCESS_DENIED_ERROR,
            ER.SPECIFIC_ACCESS_DENIED_ERROR,
            ER.PROCACCESS_DENIED_ERROR,
        },
        SourceError,
        "{url} does not permit it ({said}): grant it to this role, or run `fenceline install` if it has no schema yet",
    ),
    (
        {
            ER.LOCK_WAIT_TIMEOUT,
            ER.LOCK_DEADLOCK,
            ER.DISK_FULL,
            ER.RECORD_FILE_FULL,
            ER.OUTOFMEMORY,
            ER.OUT_OF_RESOURCES,
            ER.CON_COUNT_ERROR,
            ER.TOO_MANY_USER_CONNECTIONS,
            ER.USER_LIMIT_REACHED,
            ER.UNKNOWN_COM_ERROR,
            _ROLLED_BACK_BY_PLUGIN,
        },
        SourceUnavailableError,
        "{url} could not do it now ({said}): try again",
    ),
)
"""What an error of the server means when the server itself says that nothing was done."""


class Connection(pymysql.Connection):
    """A synchronous connection with an end to its patience."""

    _goodbye = _QUIT  # At the interpreter's end the module's own names may be gone before the last connection.
    _needs_tls = False
    _sock: socket.socket | None
    _result: Any
    _read_timeout: float | None
    _write_timeout: float | None
    ssl: bool

    def __del__(self) -> None:
        """Close what somebody forgot."""
        self.hang_up()

    def open_to(self, place: Place, patience_s: float) -> None:
        """Connect, and wait so long for each answer from then on."""
        self._needs_tls = place.needs_tls
        self.connect()
        self._read_timeout = self._write_timeout = patience_s

    def _request_authentication(self) -> None:
        """Log in; who asked for TLS tells a server without it no name and no password."""
        if self.ssl and not self.server_capabilities & CLIENT.SSL:
            _check_tls(needs_tls=self._needs_tls)
            self.ssl = False
            self.client_flag &= ~CLIENT.SSL
        super()._request_authentication()

    def _write_bytes(self, data: bytes) -> None:
        """Send; what was broken off in the middle is never gone on with."""
        try:
            super()._write_bytes(data)
        except BaseException:
            self._force_close()
            raise

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement without a cursor, which costs half as much again, and return the rows of its first result,
        once all of it has ended: a routine commits after it has said them.
        """
        self.query(statement % tuple(map(self.escape, parameters)))
        rows: Rows = self._result.rows or ()
        while self._result.has_next:
            self.next_result()
        return rows

    @property
    def descriptor(self) -> int:
        """The socket's number, -1 of a closed connection."""
        return -1 if self._sock is None else self._sock.fileno()

    def hang_up(self) -> None:
        """Say goodbye, and close without waiting; never raises."""
        try:
            if self._sock is not None:
                self._sock.settimeout(0)
                self._sock.sendall(self._goodbye)
        except Exception:  # noqa: S110 - a server that hears no goodbye sees the end
            pass
        finally:
            self._force_close()

    def let_go(self) -> None:
        """Close the descriptor without a word, and touch nothing else: a thread of the parent may have been reading
        when it forked, and what it has locked stays locked.
        """
        sock, self._sock = self._sock, None
        if sock is not None:
            os.close(sock.detach())


class AsyncConnection(aiomysql.Connection):
    """The same for an event loop."""

    _needs_tls = False
    _ssl_context: ssl.SSLContext | None
    _reader: asyncio.StreamReader | None
    _writer: asyncio.StreamWriter | None
    _result: Any
    patience_s = MAX_CONNECT_S

    def __del__(self) -> None:
        """Close what somebody forgot; aiomysql would complain."""
        self.hang_up()

    async def open_to(self, place: Place, patience_s: float) -> None:
        """Connect, and wait so long for each answer from then on."""
        self._needs_tls = place.needs_tls
        self.client_flag &= ~CLIENT.MULTI_STATEMENTS
        try:
            async with asyncio.timeout(MAX_CONNECT_S):
                await self._connect()
        except BaseException:
            self.hang_up()
            raise
        self.patience_s = patience_s

    async def _request_authentication(self) -> None:
        if self._ssl_context and not self.server_capabilities & CLIENT.SSL:
            _check_tls(needs_tls=self._needs_tls)
            self._ssl_context = None
            self.client_flag &= ~CLIENT.SSL
        await super()._request_authentication()

    def escape(self, obj: object) -> str:
        """Return a value as SQL has it; aiomysql's own way for bytes needs an older PyMySQL."""
        return f"X'{obj.hex()}'" if isinstance(obj, bytes) else super().escape(obj)

    async def _read_bytes(self, num_bytes: int) -> bytes:
        try:
            async with asyncio.timeout(self.patience_s):
                return await super()._read_bytes(num_bytes)  # type: ignore[no-any-return]
        except TimeoutError:
            self.close()
            raise pymysql.OperationalError(CR.CR_SERVER_LOST, "the server did not answer in time") from None

    async def run(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement without a cursor, as a synchronous connection does."""
        await self.query(statement % tuple(map(self.escape, parameters)))
        rows: Rows = self._result.rows or ()
        while self._result.has_next:
            await self.next_result()
        return rows

    @property
    def descriptor(self) -> int:
        """The socket's number, -1 of a closed connection."""
        return -1 if self._writer is None else _socket_of(self._writer).fileno()

    @property
    def has_something_to_read(self) -> bool:
        """Whether the loop has read what nobody has asked for, the connection's end included."""
        reader, writer = self._reader, self._writer
        if reader is None or writer is None:
            return True
        return bool(vars(reader)["_buffer"]) or reader.at_eof() or writer.is_closing()

    def hang_up(self) -> None:
        """Say goodbye, and close without waiting; never raises."""
        writer, self._writer, self._reader = self._writer, None, None
        if writer is None:
            return
        with suppress(Exception):
            writer.write(_QUIT)
        with suppress(Exception):
            writer.transport.abort()
        if self._loop.is_closed():
            _end_without_loop(writer.transport)

    def let_go(self) -> None:
        """Close the descriptor without a word, past the transport and the loop: they are the parent's."""
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            os.close(_socket_of(writer).detach())


def _socket_of(writer: asyncio.StreamWriter) -> socket.socket:
    """Return the socket itself, which asyncio shows from behind a screen."""
    shown = writer.get_extra_info("socket")
    return getattr(shown, "_sock", shown)  # type: ignore[no-any-return]


def _end_without_loop(transport: Any) -> None:
    """Do what nobody is left to run: close the socket of a transport that has only begun to close."""
    below = vars(getattr(transport, "_ssl_protocol", transport)).get("_transport", transport)
    with suppress(Exception):
        below._call_connection_lost(None)  # noqa: SLF001 - a closed loop has no other way


def _check_tls(*, needs_tls: bool) -> None:
    if needs_tls:
        raise pymysql.OperationalError(CR.CR_SSL_CONNECTION_ERROR, "the URL asks for TLS, and the server offers none")


def open_connection(
    place: Place, patience_s: float, kind: type[Connection] = Connection, *, lock_wait_s: int | None = None
) -> Connection:
    """Return an open connection in autocommit mode to the first server that takes writes; SourceUnavailableError if
    there is none. `lock_wait_s` is how long a statement waits for a row: inside the patience unless said.
    """
    said = []
    for address in place.addresses:
        native = kind(**_parameters(place, address, patience_s, lock_wait_s), defer_connect=True)
        FORKS.add(native)
        try:
            native.open_to(place, patience_s)
            if len(place.addresses) == 1 or _is_writable(native):
                return native
            said.append(f"{address.host}:{address.port} takes no writes")
        except pymysql.Error as error:
            said.append(_said(error))
        FORKS.close(native)
    raise unreachable(said, place)


async def open_async_connection(
    place: Place, patience_s: float, kind: type[AsyncConnection] = AsyncConnection, *, lock_wait_s: int | None = None
) -> AsyncConnection:
    """The same for an event loop."""
    said = []
    for address in place.addresses:
        native = kind(**_async_parameters(place, address, patience_s, lock_wait_s))
        FORKS.add(native)
        try:
            await native.open_to(place, patience_s)
            if len(place.addresses) == 1 or await _is_writable_async(native):
                return native
            said.append(f"{address.host}:{address.port} takes no writes")
        except (pymysql.Error, TimeoutError) as error:
            said.append(_said(error))
        FORKS.close(native)
    raise unreachable(said, place)


def _is_writable(native: Connection) -> bool:
    with native.cursor() as cursor:
        cursor.execute(_IS_WRITABLE)
        return cursor.fetchone() == (1,)  # type: ignore[no-any-return]


async def _is_writable_async(native: AsyncConnection) -> bool:
    async with native.cursor() as cursor:
        await cursor.execute(_IS_WRITABLE)
        return await cursor.fetchone() == (1,)  # type: ignore[no-any-return]


def _parameters(place: Place, address: Address, patience_s: float, lock_wait_s: int | None) -> dict[str, Any]:
    """Return the arguments of PyMySQL's connection."""
    connect_s = min(MAX_CONNECT_S, patience_s)
    tls = None if address.unix_socket is not None and place.ssl_mode == PREFERRED else place.tls()
    return {
        "host": address.host,
        "port": address.port,
        "unix_socket": address.unix_socket,
        "user": place.user or None,
        "password": place.password.encode(),
        "database": place.database,
        "charset": "utf8mb4",
        "autocommit": None,
        "init_command": _SETTLE.format(lock_wait_s=lock_wait_s or max(1, int(patience_s) - 1)),
        "ssl": tls,
        "ssl_disabled": tls is None,
        "connect_timeout": connect_s,
        "read_timeout": connect_s,
        "write_timeout": connect_s,
        "program_name": "fenceline",
    }


def _async_parameters(place: Place, address: Address, patience_s: float, lock_wait_s: int | None) -> dict[str, Any]:
    """Return the arguments of aiomysql's connection, which takes a password as text in Latin 1."""
    given = _parameters(place, address, patience_s, lock_wait_s)
    same = ("host", "port", "unix_socket", "user", "charset", "autocommit", "init_command", "ssl", "program_name")
    return {
        **{name: given[name] for name in same},
        "db": place.database,
        "password": place.password.encode().decode("latin1"),
    }


def is_alive(native: Connection | AsyncConnection) -> bool:
    """Tell whether an idle connection of this process is one still: a server that ended it has something to read."""
    if not FORKS.is_ours(native) or native.descriptor < 0:
        return False
    if isinstance(native, AsyncConnection) and native.has_something_to_read:
        return False
    looking = select.poll()
    looking.register(native.descriptor, select.POLLIN)
    return not looking.poll(0)


def unreachable(said: list[str], place: Place) -> SourceError:
    """Return what failed attempts to connect mean."""
    return SourceUnavailableError(f"{place.url} cannot be reached: {'; '.join(said)}")


def _said(error: BaseException) -> str:
    """Return what an error says, in one line, its cause included: aiomysql's own text says no more than where."""
    words = " ".join(str(error.args[-1] if error.args else "").split()) or type(error).__name__
    return f"{words} ({error.__cause__})" if error.__cause__ is not None else words


@contextmanager
def naming_errors(place: Place) -> Iterator[None]:
    """Raise what comes out of a request that was sent as an error of the tree, if it is the store's."""
    try:
        yield
    except BaseException as error:
        if (known := meaning(error, place)) is None:
            raise
        raise known from error


def meaning(error: BaseException, place: Place) -> SourceError | None:
    """Return what an exception out of a request that was sent means; None: it is not the store's."""
    if not isinstance(error, pymysql.Error):
        return None
    said, number = _said(error), error_number(error)
    if not number or number in _CLIENTS_OWN or number in _DOUBTFUL:
        return OutcomeUnknownError(f"{place.url} broke off ({said}): whether it did what was asked is unknown")
    for numbers, kind, message in _DEFINITE:
        if number in numbers:
            return kind(message.format(url=place.url, said=said))
    return SourceError(f"{place.url} refused: {said}")


def error_number(error: BaseException) -> int:
    """Return the number that the server or the client gave an error; 0: none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0
