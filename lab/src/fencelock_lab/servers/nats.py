"""A private NATS server with JetStream, which delivers a message again until it is acknowledged.

Never: a source of tokens; fencelock refuses NATS as one. Tests and documents send messages through it.
"""

import socket
from contextlib import suppress

from fencelock_lab.servers.fleet import LoneServerFleet
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


class NatsFleet(LoneServerFleet[NatsServer]):
    """Makes NATS servers, and shares one."""

    kind = "nats"
    server = NatsServer
