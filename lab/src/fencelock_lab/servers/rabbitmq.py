"""A private RabbitMQ server, for tests of messages: it starts in seconds, so only campaigns use it.

Erlang's port mapper, which would otherwise stay behind as a daemon, is a process of the server's own here.
"""

import socket
from contextlib import suppress

from fencelock_lab.servers.fleet import LoneServerFleet
from fencelock_lab.servers.programs import EPMD, RABBITMQ, need
from fencelock_lab.servers.server import Server

_ANSWER_S = 2.0
_MAPPER_PORT, _DISTRIBUTION_PORT = "mapper", "distribution"
_START = 'epmd="$1"; port="$2"; shift 2; "$epmd" -address 127.0.0.1 -port "$port" & exec "$@"'


class RabbitServer(Server):
    """One node without plugins; its user `guest` reaches it from this machine."""

    def command(self) -> list[object]:
        """Return the command that starts it, after its port mapper."""
        for name in {_MAPPER_PORT, _DISTRIBUTION_PORT} - self.ports.keys():
            self.reserve_port(name)
        mapper = self.ports[_MAPPER_PORT]
        self.variables |= {
            "HOME": str(self.folder),  # Where Erlang keeps its cookie.
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_NODENAME": "rabbit@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": self.host,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.ports[_DISTRIBUTION_PORT]),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
        }
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        return ["env", *variables, "sh", "-c", _START, "sh", need(EPMD), mapper, need(RABBITMQ)]

    def is_ready(self) -> bool:
        """Return whether it answers a client's first bytes."""
        with suppress(OSError), socket.create_connection((self.host, self.port), _ANSWER_S) as connection:
            connection.sendall(b"AMQP\0\0\x09\x01")
            return bool(connection.recv(1))
        return False

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"amqp://guest:guest@{self.address}/%2F"


class RabbitFleet(LoneServerFleet[RabbitServer]):
    """Makes RabbitMQ servers."""

    kind = "rabbitmq"
    server = RabbitServer
