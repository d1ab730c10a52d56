"""PyMySQL and aiomysql connections for a source or a guard.

Promise: a connection waits `request_timeout_s` at most for the server to go on, so that a frozen server or a cut
network is noticed. Each begins with autocommit on, READ COMMITTED, UTC, utf8mb4 and a strict mode, set in one round
trip; where a URL asks for TLS, nothing secret is sent without it.
"""

import asyncio
import os
import select
import socket
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aiomysql
import pymysql
from pymysql.constants import CLIENT, COMMAND, CR

from fencelock.stores.mysql.connection.errors import lacking, said_by, unreachable
from fencelock.stores.mysql.connection.forks import FORKS
from fencelock.stores.mysql.connection.url import PREFERRED, Address, MySQLConnectionInfo

MAX_CONNECT_S = 5.0
"""How long one address is tried."""
_SETTLE = (
    "SET NAMES utf8mb4, autocommit = 1, completion_type = 0, time_zone = '+00:00', "
    "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_safe_updates = 0, "
    "innodb_lock_wait_timeout = {lock_wait_s}, "
    "/*M! tx_isolation = 'READ-COMMITTED' */ /*!80003 transaction_isolation = 'READ-COMMITTED' */"
)
"""The two servers name the isolation level differently, and each reads the comment that is meant for it. The modes are
these and none of the server's: a routine keeps those under which it was made, and in some of them `NOT a <=> b` means
something else.
"""
_IS_WRITABLE = "SELECT CONCAT(@@global.read_only) IN ('0', 'OFF')"
_QUIT = struct.pack("<iB", 1, COMMAND.COM_QUIT)
Rows = Sequence[tuple[Any, ...]]


class MySQLConnection(pymysql.Connection):
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

    def open_to(self, place: MySQLConnectionInfo, request_timeout_s: float) -> None:
        """Connect, and wait so long for each answer from then on."""
        self._needs_tls = place.needs_tls
        self.connect()
        self.wait_for(request_timeout_s)

    def wait_for(self, request_timeout_s: float | None) -> None:
        """Wait so long for an answer from here on; None: as long as it takes."""
        self._read_timeout = self._write_timeout = request_timeout_s

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
    def closed(self) -> bool:
        """Whether it is none any more."""
        return self._sock is None

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


class AsyncMySQLConnection(aiomysql.Connection):
    """The same for an event loop."""

    _needs_tls = False
    _ssl_context: ssl.SSLContext | None
    _reader: asyncio.StreamReader | None
    _writer: asyncio.StreamWriter | None
    _result: Any
    request_timeout_s: float | None = MAX_CONNECT_S

    def __del__(self) -> None:
        """Close what somebody forgot; aiomysql would complain."""
        self.hang_up()

    async def open_to(self, place: MySQLConnectionInfo, request_timeout_s: float) -> None:
        """Connect, and wait so long for each answer from then on."""
        self._needs_tls = place.needs_tls
        self.client_flag &= ~CLIENT.MULTI_STATEMENTS
        try:
            async with asyncio.timeout(MAX_CONNECT_S):
                await self._connect()
        except BaseException:
            self.hang_up()
            raise
        self.wait_for(request_timeout_s)

    def wait_for(self, request_timeout_s: float | None) -> None:
        """Wait so long for an answer from here on; None: as long as it takes."""
        self.request_timeout_s = request_timeout_s

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
            async with asyncio.timeout(self.request_timeout_s):
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
    place: MySQLConnectionInfo,
    request_timeout_s: float,
    kind: type[MySQLConnection] = MySQLConnection,
    *,
    lock_wait_s: int | None = None,
) -> MySQLConnection:
    """Return an open connection in autocommit mode to the first server that takes writes; SourceUnavailableError if
    there is none. `lock_wait_s` is how long a statement waits for a row: inside the patience unless said.
    """
    said = []
    for address in place.addresses:
        native = kind(**_parameters(place, address, request_timeout_s, lock_wait_s), defer_connect=True)
        FORKS.add(native)
        try:
            native.open_to(place, request_timeout_s)
            if len(place.addresses) == 1 or _is_writable(native):
                return native
            said.append(f"{address.host}:{address.port} takes no writes")
        except pymysql.Error as error:
            said.append(said_by(error))
        except RuntimeError as error:
            FORKS.close(native)
            raise lacking(error, place) from error
        FORKS.close(native)
    raise unreachable(said, place)


async def open_async_connection(
    place: MySQLConnectionInfo,
    request_timeout_s: float,
    kind: type[AsyncMySQLConnection] = AsyncMySQLConnection,
    *,
    lock_wait_s: int | None = None,
) -> AsyncMySQLConnection:
    """The same for an event loop."""
    said = []
    for address in place.addresses:
        native = kind(**_async_parameters(place, address, request_timeout_s, lock_wait_s))
        FORKS.add(native)
        try:
            await native.open_to(place, request_timeout_s)
            if len(place.addresses) == 1 or await _is_writable_async(native):
                return native
            said.append(f"{address.host}:{address.port} takes no writes")
        except (pymysql.Error, TimeoutError) as error:
            said.append(said_by(error))
        except RuntimeError as error:
            FORKS.close(native)
            raise lacking(error, place) from error
        FORKS.close(native)
    raise unreachable(said, place)


def _is_writable(native: MySQLConnection) -> bool:
    with native.cursor() as cursor:
        cursor.execute(_IS_WRITABLE)
        return cursor.fetchone() == (1,)  # type: ignore[no-any-return]


async def _is_writable_async(native: AsyncMySQLConnection) -> bool:
    async with native.cursor() as cursor:
        await cursor.execute(_IS_WRITABLE)
        return await cursor.fetchone() == (1,)  # type: ignore[no-any-return]


def _parameters(
    place: MySQLConnectionInfo, address: Address, request_timeout_s: float, lock_wait_s: int | None
) -> dict[str, Any]:
    """Return the arguments of PyMySQL's connection."""
    connect_s = min(MAX_CONNECT_S, request_timeout_s)
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
        "init_command": _SETTLE.format(lock_wait_s=lock_wait_s or max(1, int(request_timeout_s) - 1)),
        "ssl": tls,
        "ssl_disabled": tls is None,
        "connect_timeout": connect_s,
        "read_timeout": connect_s,
        "write_timeout": connect_s,
        "program_name": "fencelock",
    }


def _async_parameters(
    place: MySQLConnectionInfo, address: Address, request_timeout_s: float, lock_wait_s: int | None
) -> dict[str, Any]:
    """Return the arguments of aiomysql's connection, which takes a password as text in Latin 1."""
    given = _parameters(place, address, request_timeout_s, lock_wait_s)
    same = ("host", "port", "unix_socket", "user", "charset", "autocommit", "init_command", "ssl", "program_name")
    return {
        **{name: given[name] for name in same},
        "db": place.database,
        "password": place.password.encode().decode("latin1"),
    }


def is_alive(native: MySQLConnection | AsyncMySQLConnection) -> bool:
    """Tell whether an idle connection of this process is one still: a server that ended it has something to read."""
    if not FORKS.is_ours(native) or native.descriptor < 0:
        return False
    if isinstance(native, AsyncMySQLConnection) and native.has_something_to_read:
        return False
    looking = select.poll()
    looking.register(native.descriptor, select.POLLIN)
    return not looking.poll(0)
