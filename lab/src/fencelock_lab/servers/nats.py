"""A private NATS server with JetStream, which delivers a message again until it is acknowledged.

Never: a source of tokens; fencelock refuses NATS as one. Tests and documents send messages through it.
"""

import socket
from contextlib import suppress
from pathlib import Path

from fencelock_lab.servers.cluster import Cluster
from fencelock_lab.servers.fleet import Fleet
from fencelock_lab.servers.programs import NATS, need
from fencelock_lab.servers.server import Server

_ANSWER_S = 2.0


class NatsServer(Server):
    """A server whose streams are kept in files."""

    def command(self) -> list[object]:
        """Return the command that starts it."""
        return [need(NATS), "--addr", self.host, "--port", self.port, "--jetstream", "--store_dir", self.folder]

    def is_ready(self) -> bool:
        """Return whether it greets clients."""
        with suppress(OSError), socket.create_connection((self.host, self.port), _ANSWER_S) as connection:
            return connection.recv(5) == b"INFO "
        return False

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"nats://{self.address}"


class NatsFleet(Fleet[NatsServer]):
    """Makes NATS servers, and shares one."""

    kind = "nats"

    def new_server(self) -> NatsServer:
        """Return a server, not started yet."""
        return self.own(NatsServer(self.new_folder("server")))

    def shared(self) -> NatsServer:
        """Return the running server that all users of the folder share, each with streams of its own."""
        (server,) = self.shared_cluster("", self._make, self._find).servers
        return server

    def _make(self) -> Cluster[NatsServer]:
        return Cluster([NatsServer(self.new_folder("server"))])

    def _find(self, folders: list[Path]) -> Cluster[NatsServer]:
        return Cluster([NatsServer(folder) for folder in folders])
