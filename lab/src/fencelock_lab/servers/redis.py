"""A private Redis server that flushes every write, as the other servers do: for benchmarks, and as Celery's broker.

Never: a source of tokens; fencelock refuses Redis as one.
"""

import socket
import subprocess
from contextlib import suppress

from fencelock_lab.servers.fleet import Fleet
from fencelock_lab.servers.programs import REDIS, need
from fencelock_lab.servers.server import Server

_ANSWER_S = 2.0


class RedisServer(Server):
    """A server that appends each write to a file, and flushes it."""

    def command(self) -> list[object]:
        """Return the command that starts it."""
        listen = ["--port", self.port, "--bind", self.host, "--dir", self.folder]
        return [need(REDIS), *listen, "--save", "", "--appendonly", "yes", "--appendfsync", "always"]

    def is_ready(self) -> bool:
        """Return whether it answers."""
        with suppress(OSError), socket.create_connection((self.host, self.port), _ANSWER_S) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5) == b"+PONG"
        return False

    def version(self) -> str:
        """Return the version of the program."""
        printed = subprocess.run([need(REDIS), "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
        return printed.partition("v=")[2].split()[0]

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"redis://{self.address}"


class RedisFleet(Fleet[RedisServer]):
    """Makes Redis servers."""

    kind = "redis"

    def new_server(self) -> RedisServer:
        """Return a server, not started yet."""
        return self.own(RedisServer(self.new_folder("server")))
