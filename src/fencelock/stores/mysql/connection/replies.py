"""The note that a request of a connection is out: sent, or about to be, and its reply not read whole yet.

Promise: PyMySQL and aiomysql take the next bytes from the server for the reply to their last statement. An exception
between the two, which a signal handler or a cancellation may raise on any line, would let a later statement read an
earlier one's reply. Here a note is made before a request is sent, and cleared once its reply was read whole; while it
stands, nothing else is sent. Who keeps connections closes one whose note stands.
Never clears the note because of an exception, unless the server reported the error: an error ends its reply.

A reply has a time in all, because one that drips would keep its reader for ever: PyMySQL limits each wait alone.
"""

import io
import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiomysql
import pymysql
from pymysql.connections import MysqlPacket

from fencelock.stores.mysql.connection.errors import is_reported

_LEAST_S = 0.001
"""The shortest wait; a limit of 0 would be none."""


class OpenRequest:
    """Part of a client library's connection: the note. It is a lock, which only one of several threads gets."""

    _result: Any

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._note = threading.Lock()
        super().__init__(*arguments, **named)

    @property
    def is_out(self) -> bool:
        """Whether a request is out, or was interrupted: then the connection cannot be used again."""
        return self._note.locked()

    def begin_request(self) -> None:
        """Note that a request is out; InterfaceError if one is."""
        if not self._note.acquire(blocking=False):
            raise pymysql.InterfaceError(
                0,
                "nothing was sent: an earlier statement of this connection was interrupted, or another thread's is "
                "running, and its reply would be taken for this one's",
            )

    @contextmanager
    def reading(self, *, is_next: bool = False) -> Iterator[None]:
        """Clear the note after a block that reads a reply to its end; keep it if an exception cut that off.

        `is_next`: the block reads what follows, for which nothing was sent.
        """
        try:
            if is_next:
                self.begin_request()
            yield
            self.end_request()
        except BaseException as error:
            if isinstance(error, pymysql.MySQLError) and is_reported(error):
                self.end_request()
            elif self._result is not None:
                self._result.unbuffered_active = False  # Its cursor would read the rest, in order to close.
            raise

    def end_request(self) -> None:
        """Clear the note: the reply was read whole."""
        if self._note.locked():
            self._note.release()

    def end_with_last_row(self, packet: Any) -> None:
        """End the result with its last packet. The client does so a moment later, and if it were interrupted before, it
        would wait for another row.
        """
        if self._result._check_packet_is_eof(packet):  # noqa: SLF001 - neither client has a public name for it
            self._result.unbuffered_active = False
            packet.rewind()


class ReplyTime:
    """The time that the reply to a request may take in all."""

    is_shortened = False
    """Whether the socket waits for a shorter time than PyMySQL has asked it to."""

    def __init__(self) -> None:
        self._end_s = math.inf
        self._is_first = True

    def begin(self, limit_s: float | None) -> None:
        """Begin with a request."""
        self._end_s = math.inf if limit_s is None else time.monotonic() + limit_s
        self._is_first = True

    def shorten(self, sock: socket.socket) -> None:
        """Limit the next wait to what is left; the first one has the socket's own limit."""
        if not self._is_first and self._end_s < math.inf:
            # What has come already is read in any case: this process may have been frozen until now.
            sock.settimeout(max(self._end_s - time.monotonic(), _LEAST_S))
            self.is_shortened = True
        self._is_first = False


class ReplyReader(io.RawIOBase):
    """What PyMySQL reads from a socket, within the time of a reply."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, reply_time: ReplyTime) -> None:
        self._raw = raw
        self._sock = sock
        self._time = reply_time

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> Any:
        """Read what has come, as a socket's own file does."""
        self._time.shorten(self._sock)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Close the socket's file."""
        self._raw.close()
        super().close()


class NotingConnection(OpenRequest, pymysql.Connection):
    """A PyMySQL connection with the note."""

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        """Send a command, unless the reply to another one is out."""
        # What the user has left of the last reply. PyMySQL would read it below, where the note is made already.
        while (left := self._result) is not None and (left.unbuffered_active or left.has_next):
            if left.unbuffered_active:
                left._finish_unbuffered_query()  # noqa: SLF001 - PyMySQL has no public name for it
            else:
                self.next_result()
        self.begin_request()
        super()._execute_command(command, sql)

    def next_result(self, unbuffered: bool = False) -> Any:
        """Read the next result of the last statement."""
        with self.reading(is_next=True):
            return super().next_result(unbuffered)

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        with self.reading():
            return super()._read_query_result(unbuffered)

    def _read_ok_packet(self) -> Any:
        with self.reading():
            return super()._read_ok_packet()

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """Set the character set, and read the reply."""
        with self.reading():
            super().set_character_set(charset, collation)

    def show_warnings(self) -> Any:
        """Return the warnings of the last statement."""
        with self.reading():
            return super().show_warnings()

    def _read_packet(self, packet_type: type[MysqlPacket] = MysqlPacket) -> Any:
        if self._result is None or not self._result.unbuffered_active:
            return super()._read_packet(packet_type)
        # One of the rows that the user reads one by one: each has a note of its own.
        with self.reading(is_next=True):
            packet = super()._read_packet(packet_type)
            self.end_with_last_row(packet)
        return packet


class AsyncNotingConnection(OpenRequest, aiomysql.Connection):
    """An aiomysql connection with the note."""

    async def _execute_command(self, command: int, sql: str | bytes) -> None:
        """Send a command, unless the reply to another one is out."""
        # What the user has left of the last reply. aiomysql would read it below, where the note is made already.
        while (left := self._result) is not None and (left.unbuffered_active or left.has_next):
            if left.unbuffered_active:
                await left._finish_unbuffered_query()  # noqa: SLF001 - aiomysql has no public name for it
            else:
                await self.next_result()
        self.begin_request()
        await super()._execute_command(command, sql)

    async def next_result(self) -> Any:
        """Read the next result of the last statement."""
        with self.reading(is_next=True):
            return await super().next_result()

    async def _read_query_result(self, unbuffered: bool = False) -> None:
        with self.reading():
            await super()._read_query_result(unbuffered)

    async def _read_ok_packet(self) -> Any:
        with self.reading():
            return await super()._read_ok_packet()

    async def set_charset(self, charset: str) -> None:
        """Set the character set, and read the reply."""
        with self.reading():
            await super().set_charset(charset)

    async def show_warnings(self) -> Any:
        """Return the warnings of the last statement."""
        with self.reading():
            return await super().show_warnings()

    async def _read_packet(self, packet_type: type[MysqlPacket] = MysqlPacket) -> Any:
        if self._result is None or not self._result.unbuffered_active:
            return await super()._read_packet(packet_type)
        # One of the rows that the user reads one by one: each has a note of its own.
        with self.reading(is_next=True):
            packet = await super()._read_packet(packet_type)
            self.end_with_last_row(packet)
        return packet
