"""PyMySQL and aiomysql connections with a bounded wait, and the registry that protects them across forks.

Promise: a connection waits at most `request_timeout_s` for a reply to begin, and as long again for its end, so that a
frozen server, a cut network and a reply that drips are noticed. Each begins with autocommit on, READ COMMITTED, UTC,
utf8mb4 and a strict mode, set in one round trip. If a URL asks for TLS, nothing secret is sent without it. A forked
child drops the connections that it inherited.
"""

import asyncio
import io
import os
import select
import socket
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pymysql
from pymysql.constants import CLIENT, COMMAND, CR

from fencelock.stores import streams
from fencelock.stores.forks import Forks
from fencelock.stores.mysql.connection.replies import AsyncNotingConnection, NotingConnection, ReplyReader, ReplyTime
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo

MAX_CONNECT_S = 5.0
"""The longest attempt to connect to one address."""
_UNKNOWN_S = -1.0
_QUIT = struct.pack("<iB", 1, COMMAND.COM_QUIT)
Rows = Sequence[tuple[Any, ...]]


def _close(native: "MySQLConnection | AsyncMySQLConnection") -> None:
    native.hang_up()


def _drop(native: "MySQLConnection | AsyncMySQLConnection") -> None:
    native.drop()


FORKS: "Forks[MySQLConnection | AsyncMySQLConnection]" = Forks(close=_close, drop=_drop)
"""The open connections of this process: see `stores/forks.py`."""


class MySQLConnection(NotingConnection):
    """A synchronous connection that bounds each wait."""

    # At interpreter exit the module's globals may be gone before the last connection is collected.
    _quit, _both_ways = _QUIT, socket.SHUT_RDWR
    _needs_tls = False
    _sock: socket.socket | None
    _result: Any
    _read_timeout: float | None
    _write_timeout: float | None
    _current_timeout: float | None
    _file: io.BufferedReader | None = None
    ssl: bool

    def __init__(self, **arguments: Any) -> None:
        self._reply_time = ReplyTime()
        super().__init__(**arguments)

    def __del__(self) -> None:
        """Close a connection that nobody closed."""
        self.hang_up()

    @property
    def _rfile(self) -> io.BufferedReader | None:
        """What PyMySQL reads from."""
        return self._file

    @_rfile.setter
    def _rfile(self, file: io.BufferedReader | None) -> None:
        if file is not None and self._sock is not None:
            file = io.BufferedReader(ReplyReader(file.detach(), self._sock, self._reply_time))
        self._file = file

    def open_to(self, info: MySQLConnectionInfo, request_timeout_s: float) -> None:
        """Connect, and bound the wait for each later answer."""
        self._needs_tls = info.needs_tls
        self._reply_time.begin(self._read_timeout)
        self.connect()
        self.limit_wait(request_timeout_s)

    def limit_wait(self, request_timeout_s: float | None) -> None:
        """Bound the wait for each later answer; None removes the bound."""
        self._read_timeout = self._write_timeout = request_timeout_s

    def _request_authentication(self) -> None:
        """Log in, but send no name and no password to a server without TLS if the URL asks for it."""
        if self.ssl and not self.server_capabilities & CLIENT.SSL:
            _check_tls(needs_tls=self._needs_tls)
            self.ssl = False
            self.client_flag &= ~CLIENT.SSL
        super()._request_authentication()

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        super()._execute_command(command, sql)
        self._reply_time.begin(self._read_timeout)

    def _write_bytes(self, data: bytes) -> None:
        """Send; if sending breaks off in the middle, close, since the stream cannot be continued."""
        if self._reply_time.is_shortened:
            self._current_timeout, self._reply_time.is_shortened = _UNKNOWN_S, False
        try:
            super()._write_bytes(data)
        except BaseException:
            self._force_close()
            raise

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement without a cursor, which costs half as much again, and return the rows of its first result.

        It returns after the last result: a routine commits after it has sent its rows.
        """
        self.query(_filled(self, statement, parameters))
        rows: Rows = self._result.rows or ()
        while self._result.has_next:
            self.next_result()
        return rows

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return self._sock is None

    @property
    def descriptor(self) -> int:
        """The socket's descriptor, -1 if the connection is closed."""
        return -1 if self._sock is None else self._sock.fileno()

    def hang_up(self) -> None:
        """Send QUIT, and close without waiting; never raises."""
        try:
            if self._sock is not None:
                self._sock.settimeout(0)
                try:
                    self._sock.sendall(self._quit)
                finally:
                    # A thread that still reads ends by this; to close the file would wait for it.
                    self._sock.shutdown(self._both_ways)
        except Exception:  # noqa: S110 - without QUIT the server sees the socket close
            pass
        finally:
            self._force_close()

    def drop(self) -> None:
        """Close only the descriptor, in a forked child: a thread of the parent may have been reading at the fork, and
        the locks that it held stay locked here.
        """
        sock, self._sock = self._sock, None
        if sock is not None:
            os.close(sock.detach())


class AsyncMySQLConnection(AsyncNotingConnection):
    """An asynchronous connection that bounds each wait."""

    _needs_tls = False
    _ssl_context: ssl.SSLContext | None
    _reader: asyncio.StreamReader | None
    _writer: asyncio.StreamWriter | None
    _result: Any
    request_timeout_s: float | None = MAX_CONNECT_S
    _end_s: float | None = None
    """The loop's time at which the reply to the last request is no longer awaited."""

    def __del__(self) -> None:
        """Close a connection that nobody closed; aiomysql would only warn."""
        self.hang_up()

    async def open_to(self, info: MySQLConnectionInfo, request_timeout_s: float) -> None:
        """Connect, and bound the wait for each later answer."""
        self._needs_tls = info.needs_tls
        # aiomysql asks for it by itself, and nothing here sends several statements at once.
        self.client_flag &= ~CLIENT.MULTI_STATEMENTS
        try:
            async with asyncio.timeout(MAX_CONNECT_S):
                await self._connect()
        except BaseException:
            self.hang_up()
            raise
        self.limit_wait(request_timeout_s)

    def limit_wait(self, request_timeout_s: float | None) -> None:
        """Bound the wait for each later answer; None removes the bound."""
        self.request_timeout_s = request_timeout_s

    async def _request_authentication(self) -> None:
        if self._ssl_context and not self.server_capabilities & CLIENT.SSL:
            _check_tls(needs_tls=self._needs_tls)
            self._ssl_context = None
            self.client_flag &= ~CLIENT.SSL
        await super()._request_authentication()

    def escape(self, obj: object) -> str:
        """Return a value as a literal; aiomysql's own code for bytes needs an older PyMySQL."""
        return f"X'{obj.hex()}'" if isinstance(obj, bytes) else super().escape(obj)

    async def _execute_command(self, command: int, sql: str | bytes) -> None:
        await super()._execute_command(command, sql)
        limit_s = self.request_timeout_s
        self._end_s = None if limit_s is None else self._loop.time() + limit_s

    async def _read_bytes(self, num_bytes: int) -> bytes:
        try:
            # What has come already is read in any case: this process may have been frozen until now.
            async with asyncio.timeout_at(self._end_s):
                return await super()._read_bytes(num_bytes)  # type: ignore[no-any-return]
        except TimeoutError:
            self.close()
            raise pymysql.OperationalError(CR.CR_SERVER_LOST, "the server did not answer in time") from None

    async def run(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement as the synchronous connection does."""
        await self.query(_filled(self, statement, parameters))
        rows: Rows = self._result.rows or ()
        while self._result.has_next:
            await self.next_result()
        return rows

    @property
    def descriptor(self) -> int:
        """The socket's descriptor, -1 if the connection is closed."""
        return -1 if self._writer is None else streams.socket_of(self._writer).fileno()

    @property
    def has_something_to_read(self) -> bool:
        """Whether the loop has received unrequested data, or the end of the connection."""
        reader, writer = self._reader, self._writer
        if reader is None or writer is None:
            return True
        return bool(vars(reader)["_buffer"]) or reader.at_eof() or writer.is_closing()

    def hang_up(self) -> None:
        """Send QUIT, and close without waiting; never raises."""
        writer, self._writer, self._reader = self._writer, None, None
        if writer is None:
            return
        with suppress(Exception):
            writer.write(_QUIT)
        streams.abort(writer, self._loop)

    def drop(self) -> None:
        """Close only the descriptor, in a forked child: the transport and the loop are the parent's."""
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            streams.drop(writer)


def _filled(native: MySQLConnection | AsyncMySQLConnection, statement: str, parameters: Sequence[Any]) -> str:
    """Return the statement with its parameters as literals. An integer is one as it is, and `escape` takes a while."""
    return statement % tuple([value if type(value) is int else native.escape(value) for value in parameters])


def _check_tls(*, needs_tls: bool) -> None:
    if needs_tls:
        raise pymysql.OperationalError(CR.CR_SSL_CONNECTION_ERROR, "the URL asks for TLS, and the server offers none")


def is_alive(native: MySQLConnection | AsyncMySQLConnection) -> bool:
    """Return whether an idle connection is still usable; a readable idle socket means that the server closed it."""
    if not FORKS.is_ours(native) or native.descriptor < 0:
        return False
    if isinstance(native, AsyncMySQLConnection) and native.has_something_to_read:
        return False
    readable = select.poll()
    readable.register(native.descriptor, select.POLLIN)
    return not readable.poll(0)
