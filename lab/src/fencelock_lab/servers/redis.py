"""Private Redis and Valkey servers that flush every write, as the other servers do, alone or in a cluster of three.

Never: a source of tokens; fencelock refuses Redis as one.
"""

import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fencelock_lab.servers.cluster import Cluster
from fencelock_lab.servers.fleet import Fleet
from fencelock_lab.servers.processes import wait_for
from fencelock_lab.servers.programs import REDIS, VALKEY, need
from fencelock_lab.servers.server import Server

_ANSWER_S = 2.0
_SLOTS = 16384
_BUS = "bus"
_PROGRAMS = {"redis": REDIS, "valkey": VALKEY}
FLUSHING: dict[str, str | int] = {"save": "", "appendonly": "yes", "appendfsync": "always"}
CLUSTERED: dict[str, str | int] = {"cluster-enabled": "yes", "cluster-node-timeout": 6000}


class RedisServer(Server):
    """A server that appends each write to a file, and flushes it."""

    def __init__(self, folder: Path, kind: str = "redis") -> None:
        super().__init__(folder)
        self._program = _PROGRAMS[kind]
        self.settings = dict(FLUSHING)

    def command(self) -> list[object]:
        """Return the command that starts it."""
        listen = {"port": self.port, "bind": self.host, "dir": self.folder}
        bus = {"cluster-port": self.ports[_BUS]} if _BUS in self.ports else {}
        options = {**listen, **bus, **self.settings}
        return [need(self._program), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def is_ready(self) -> bool:
        """Return whether it answers."""
        with suppress(OSError):
            return self.ask("PING") == "+PONG"
        return False

    def ask(self, *words: object) -> str:
        """Return the answer to a command, as it came: nothing more than its first bytes, if it is long."""
        with socket.create_connection((self.host, self.port), _ANSWER_S) as connection:
            parts = [str(word).encode() for word in words]
            connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in parts))
            return connection.recv(65536).decode().strip()

    def be_in_cluster(self) -> None:
        """Be a server of a cluster from the first start on."""
        self.settings |= CLUSTERED
        self.reserve_port(_BUS)

    @property
    def bus_port(self) -> int:
        """The port on which the servers of a cluster talk."""
        return self.ports[_BUS]

    def version(self) -> str:
        """Return the version of the program."""
        printed = subprocess.run([need(self._program), "--version"], stdout=subprocess.PIPE, text=True, check=True)
        return printed.stdout.partition("v=")[2].split()[0]

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"redis://{self.address}"


class RedisCluster(Cluster[RedisServer]):
    """Servers that share the slots among them, without replicas."""

    def start(self) -> None:
        """Start every server that does not run; at the first start, give each its slots, and have them meet."""
        is_new = not any((server.folder / "nodes.conf").exists() for server in self.servers)
        super().start()
        if is_new and len(self.servers) > 1:
            self._found()
        wait_for(self._is_whole, "the servers did not form a cluster")

    def _found(self) -> None:
        share = -(-_SLOTS // len(self.servers))
        for number, server in enumerate(self.servers):
            first = number * share
            assert server.ask("CLUSTER", "ADDSLOTSRANGE", first, min(first + share, _SLOTS) - 1) == "+OK"
            # Each its own: of two equal epochs the servers would have to agree first.
            assert server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1) == "+OK"
        for other in self.servers[1:]:
            met = self.servers[0].ask("CLUSTER", "MEET", other.host, other.port, other.bus_port)
            assert met == "+OK", met

    def _is_whole(self) -> bool:
        if len(self.servers) == 1:
            return True
        with suppress(OSError):
            return all("cluster_state:ok" in server.ask("CLUSTER", "INFO") for server in self.servers)
        return False

    @property
    def url(self) -> str:
        """A URL that names all servers."""
        return f"redis://{self.addresses}"


class RedisFleet(Fleet[RedisServer]):
    """Makes Redis servers, and shares one of each kind, and a cluster."""

    kind = "redis"

    def new_server(self, kind: str = "redis") -> RedisServer:
        """Return a server, not started yet."""
        return self.own(RedisServer(self.new_folder("server"), kind))

    def shared(self, kind: str = "redis", size: int = 1) -> RedisCluster:
        """Return the running servers of this kind that all users of the folder share, each with prefixes of its own."""

        def make() -> RedisCluster:
            cluster = find([self.new_folder(f"{kind}{number}") for number in range(size)])
            if size > 1:
                for server in cluster.servers:
                    server.be_in_cluster()
            return cluster

        def find(folders: Iterable[Path]) -> RedisCluster:
            return RedisCluster(RedisServer(folder, kind) for folder in folders)

        cluster = self.shared_cluster(f"{kind}{size}", make, find)
        assert isinstance(cluster, RedisCluster)
        return cluster
