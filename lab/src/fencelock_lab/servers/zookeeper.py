"""A private ensemble of three ZooKeeper servers, which speak to each other through our own links.

Promise: each write is flushed before it is acknowledged, as by default. Each pair of servers has ways of its own, so
that one server can be cut off from the others.

A server tells those that it calls for an election by which address it is to be called back. The link puts the way to it
in that address's place, or calls back would go past the links.
"""

import shutil
import socket
import struct
from contextlib import suppress
from pathlib import Path

from fencelock_lab.campaigns.history import SERVER_ISOLATE
from fencelock_lab.servers.network import Introduce
from fencelock_lab.servers.programs import JAVA, ZOOKEEPER, need, run
from fencelock_lab.servers.server import HOST, Server
from fencelock_lab.servers.setup import TreeSetup

TICK_MS = 200
MAX_SESSION_MS = 700_000
THREE = 3
_LOOK_S = 2.0
_OPENING = struct.Struct(">qqi")
"""What an election's connection begins with: the protocol's version, who calls, and the length of its address."""
_VERSION = -65536


class ZooKeeperServer(Server):
    """One server of the ensemble, with its ports for data and for elections."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, f"zookeeper-{number}")
        self.number = number
        self.quorum_port, self.election_port = self.reserve_port(), self.reserve_port()
        self.peers: list[str] = []
        """The ensemble, as this server is told of it."""

    def command(self) -> list[object]:
        """Write its settings, and return the command that starts it."""
        settings = {
            "tickTime": TICK_MS,
            "initLimit": 25,
            "syncLimit": 5,
            "dataDir": self.data,
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "maxClientCnxns": 0,
            "maxSessionTimeout": MAX_SESSION_MS,
            "admin.enableServer": "false",
            "standaloneEnabled": "false",
            "4lw.commands.whitelist": "srvr",
        }
        lines = [*(f"{name}={value}" for name, value in settings.items()), *self.peers]
        (self.folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
        java = [need(JAVA), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
        # Elections are quick: who hears nothing asks again within a second, not within a minute.
        java += ["-Dzookeeper.fastleader.maxNotificationInterval=1000", "-Dzookeeper.cnxTimeout=1000"]
        java += ["-Dzookeeper.jmx.log4j.disable=true", "-cp", f"/etc/zookeeper/conf:{need(ZOOKEEPER)}"]
        return [*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", self.folder / "zoo.cfg"]

    def is_ready(self) -> bool:
        """Tell whether it takes requests: it follows a leader then, or leads."""
        return self.mode() in {"leader", "follower"}

    def mode(self) -> str:
        """Return what it says that it is; nothing while it serves nobody."""
        with suppress(OSError), socket.create_connection((HOST, self.port), _LOOK_S) as talking:
            talking.sendall(b"srvr")
            told = b"".join(iter(lambda: talking.recv(65536), b"")).decode()
            return told.partition("Mode: ")[2].partition("\n")[0]
        return ""


class ZooKeeper3Setup(TreeSetup):
    """An ensemble of three. Restored data are not noticed: the operator raises the epoch."""

    name = "zookeeper3"
    shown = ("zookeeper://127.0.0.1/locks", "zookeeper://127.0.0.1/app")
    least_ttl = 1.0
    ttl = 2.0
    size = THREE
    faults = (*TreeSetup.faults, SERVER_ISOLATE)
    servers: list[ZooKeeperServer]  # type: ignore[assignment]

    def make(self, number: int) -> ZooKeeperServer:
        """Return a server, not started yet."""
        return ZooKeeperServer(self.folder / f"zookeeper-{number + 1}", number + 1)

    def prepare(self, server: Server) -> None:
        """Tell the server who it is, and by which ways it reaches the others."""
        assert isinstance(server, ZooKeeperServer)
        run(["mkdir", server.data], server.folder)
        (server.data / "myid").write_text(f"{server.number}\n")
        if not self._elections:
            self._lay_ways()
        for other in self.servers:
            pair = (server.number, other.number)
            ports = (other.quorum_port, other.election_port)
            if other is not server:
                ports = (self._quorums[pair], self._elections[pair])
            server.peers.append(f"server.{other.number}={HOST}:{ports[0]}:{ports[1]}")

    def _lay_ways(self) -> None:
        for caller in self.servers:
            for called in self.servers:
                if called is not caller:
                    pair, plain = (caller.number, called.number), _caller(caller.name)
                    self._quorums[pair] = self.links.lead_to(called.name, called.quorum_port, plain)
                    election = self._election_caller(caller, called)
                    self._elections[pair] = self.links.lead_to(called.name, called.election_port, election)

    def __init__(self) -> None:
        self._quorums: dict[tuple[int, int], int] = {}
        self._elections: dict[tuple[int, int], int] = {}
        super().__init__()

    def _election_caller(self, caller: ZooKeeperServer, called: ZooKeeperServer) -> Introduce:
        """Return what puts the way back to the caller in the place of the address that it tells."""

        def introduce(first: bytes) -> tuple[str, bytes]:
            if len(first) < _OPENING.size:
                return caller.name, first
            version, number, length = _OPENING.unpack_from(first)
            if version != _VERSION:
                return caller.name, first
            address = f"{HOST}:{self._elections[called.number, caller.number]}".encode()
            opening = _OPENING.pack(version, number, len(address)) + address
            return caller.name, opening + first[_OPENING.size + length :]

        return introduce

    def url_below(self, base: str) -> str:
        """Return the URL of a base, with all servers in it."""
        return f"zookeeper://{self.hosts}/{base}?tick_ms={TICK_MS}"

    def leads(self, server: Server) -> bool:
        """Tell whether a server leads."""
        return isinstance(server, ZooKeeperServer) and server.mode() == "leader"

    def save(self, backup: Path) -> None:
        """Copy what the leader has written: its snapshots, and the log since."""
        leader = self.leader()
        assert leader is not None, "an ensemble that is ready has a leader"
        run(["cp", "--archive", leader.data / "version-2", backup], backup)

    def put_back(self, backup: Path) -> None:
        """Give each server the same copy."""
        for server in self.servers:
            shutil.rmtree(server.data / "version-2")
            run(["cp", "--archive", backup / "version-2", server.data], backup)


def _caller(name: str) -> Introduce:
    return lambda first: (name, first)
