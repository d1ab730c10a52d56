"""The set-ups of private servers that `fencelock verify --own` can start, by their names.

Promise: each server keeps its defaults for durability. In a cluster every connection between two servers goes through
a proxy of ours, so that one server can be isolated from the others. Looking a name up starts nothing.
"""

import re
import shutil
import struct
from pathlib import Path

from fencelock_lab.campaigns.history import SERVER_ISOLATE
from fencelock_lab.servers.cluster import Cluster
from fencelock_lab.servers.etcd import PEER_PORT, EtcdCluster, EtcdServer
from fencelock_lab.servers.guard_setups import DynamoDBSetup, RedisSetup, S3Setup
from fencelock_lab.servers.mariadb import MariaDBServer
from fencelock_lab.servers.network import Introduce
from fencelock_lab.servers.postgres import PostgresServer, system_programs
from fencelock_lab.servers.programs import copy_folder
from fencelock_lab.servers.server import HOST, Server
from fencelock_lab.servers.setup import Setup
from fencelock_lab.servers.zookeeper import (
    ELECTION_PORT,
    ENSEMBLE_TICK_MS,
    QUORUM_PORT,
    ZooKeeperEnsemble,
    ZooKeeperServer,
)

MAX_CONNECTIONS = 300
DATABASE = "app"
THREE = 3
_PEER_URL = re.compile(rb"\r\nX-Peerurls: (\S+)\r\n", re.IGNORECASE)
"""The header of a request between etcd members that has the peer URL of the one that asks."""
_ELECTION = struct.Struct(">qqi")
"""The beginning of a connection for an election: the protocol's version, the server's number, the address's length."""
_ELECTION_VERSION = -65536


class PostgresSetup(Setup):
    """One server. It detects a restored base backup by itself; a crash may lose grants that were not flushed."""

    name = "postgres"
    shown = ("postgresql://127.0.0.1/postgres", "postgresql://127.0.0.1/postgres")
    notices_restores = True
    forgets_s = 1.0

    def make(self) -> Cluster[Server]:
        """Return the server, not started yet."""
        self._server = PostgresServer(system_programs(), self.new_folder("postgres-0"), name=self.name)
        self._server.settings["max_connections"] = MAX_CONNECTIONS
        return Cluster([self._server])

    @property
    def url(self) -> str:
        """The URL of the database that every server has."""
        return self._server.url()

    def save(self, backup: Path) -> None:
        """Take a base backup."""
        self._server.back_up(backup / "data")

    def put_back(self, backup: Path) -> None:
        """Make the base backup the data folder."""
        shutil.rmtree(self._server.data)
        copy_folder(backup / "data", self._server.data)


class MariaDBSetup(Setup):
    """One server. It detects no restore: the operator raises the epoch."""

    name = "mariadb"
    shown = ("mysql://127.0.0.1/app", "mysql://127.0.0.1/app")

    def make(self) -> Cluster[Server]:
        """Return the server, not started yet."""
        self._server = MariaDBServer(self.new_folder("mariadb-0"), name=self.name)
        self._server.settings["max_connections"] = MAX_CONNECTIONS
        return Cluster([self._server])

    def start(self) -> None:
        """Start it, with a database for locks and tables."""
        super().start()
        self._server.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}".encode())

    @property
    def url(self) -> str:
        """The URL of the database."""
        return self._server.url(database=DATABASE)

    def save(self, backup: Path) -> None:
        """Take a dump, as of one moment."""
        (backup / "dump.sql").write_bytes(self._server.dump(DATABASE))

    def load(self, backup: Path) -> None:
        """Read the dump into the server."""
        self._server.execute((backup / "dump.sql").read_bytes())


class EtcdSetup(Setup):
    """One member. It detects no restored snapshot: the operator raises the epoch."""

    name = "etcd"
    shown = ("etcd://127.0.0.1/locks", "etcd://127.0.0.1/app")
    least_ttl = 1.0
    ttl = 1.0

    def make(self) -> Cluster[Server]:
        """Return the members, not started yet."""
        names = [f"etcd-{number + 1}" for number in range(self.size)]
        self._members = [EtcdServer(self.new_folder(name), name) for name in names]
        if self.size > 1:
            for server in self._members:
                port = self.network.lead_to(server.name, server.ports[PEER_PORT], self._introduce)
                server.peer_url = f"http://{HOST}:{port}"
        self._cluster = EtcdCluster(self._members)
        return Cluster(self._members)

    def _introduce(self, first: bytes) -> tuple[str, bytes]:
        """Return which member has opened a connection, and its first bytes; no name if it is not for the consensus."""
        found = _PEER_URL.search(first)
        urls = found[1].decode() if found else ""
        return next((server.name for server in self._members if server.peer_url in urls), ""), first

    @property
    def url(self) -> str:
        """The URL of the source."""
        return self._cluster.url("locks")

    @property
    def guard_url(self) -> str:
        """The URL of a guard beside the locks."""
        return self._cluster.url("app")

    def save(self, backup: Path) -> None:
        """Save a snapshot of the first member."""
        self._cluster.save(backup / "snapshot")

    def put_back(self, backup: Path) -> None:
        """Make each member anew from the snapshot."""
        self._cluster.restore(backup / "snapshot")


class Etcd3Setup(EtcdSetup):
    """A cluster of three, whose leader can be isolated from the others."""

    name = "etcd3"
    size = THREE
    faults = (*EtcdSetup.faults, SERVER_ISOLATE)


class ZooKeeper3Setup(Setup):
    """An ensemble of three. It does not detect restored data: the operator raises the epoch."""

    name = "zookeeper3"
    shown = ("zookeeper://127.0.0.1/locks", "zookeeper://127.0.0.1/app")
    least_ttl = 1.0
    ttl = 2.0
    size = THREE
    faults = (*Setup.faults, SERVER_ISOLATE)

    def make(self) -> Cluster[Server]:
        """Return the servers, not started yet."""
        names = [f"zookeeper-{number + 1}" for number in range(self.size)]
        self._ensemble = ZooKeeperEnsemble(
            ZooKeeperServer(self.new_folder(name), name=name, tick_ms=ENSEMBLE_TICK_MS) for name in names
        )
        for server in self._ensemble.servers:
            server.settings |= {"initLimit": 25, "syncLimit": 5, "standaloneEnabled": "false"}
            # Elections are quick: a server that hears nothing asks again within a second, not within a minute.
            server.options = ["-Dzookeeper.fastleader.maxNotificationInterval=1000", "-Dzookeeper.cnxTimeout=1000"]
        self._connect_by_proxies()
        return Cluster(list[Server](self._ensemble.servers))

    def _connect_by_proxies(self) -> None:
        """Give each pair of servers ports of its own, so that every connection shows which server has opened it."""
        numbered = list(enumerate(self._ensemble.servers, start=1))
        elections: dict[tuple[int, int], int] = {}
        for caller, from_server in numbered:
            for called, to_server in numbered:
                if caller != called:
                    plain = _introduction(from_server.name)
                    quorum = self.network.lead_to(to_server.name, to_server.ports[QUORUM_PORT], plain)
                    back = _election_introduction(from_server.name, elections, (called, caller))
                    election = self.network.lead_to(to_server.name, to_server.ports[ELECTION_PORT], back)
                    elections[caller, called] = election
                    from_server.peers[f"server.{called}"] = f"{HOST}:{quorum}:{election}"

    @property
    def url(self) -> str:
        """The URL of the source."""
        return self._ensemble.url("/locks")

    @property
    def guard_url(self) -> str:
        """The URL of a guard beside the locks."""
        return self._ensemble.url("/app")

    def save(self, backup: Path) -> None:
        """Copy what the leader has written."""
        self._ensemble.save(backup)

    def put_back(self, backup: Path) -> None:
        """Give each server the same copy."""
        self._ensemble.restore(backup)


def _introduction(name: str) -> Introduce:
    return lambda first: (name, first)


def _election_introduction(name: str, elections: dict[tuple[int, int], int], back: tuple[int, int]) -> Introduce:
    """Return what names the caller, and replaces the address in its first bytes by our port for calls back to it.

    A server tells each server that it calls for an election by which address it is to be called back; without this,
    calls back would bypass the proxies.
    """

    def introduce(first: bytes) -> tuple[str, bytes]:
        if len(first) < _ELECTION.size:
            return name, first
        version, number, length = _ELECTION.unpack_from(first)
        if version != _ELECTION_VERSION:
            return name, first
        address = f"{HOST}:{elections[back]}".encode()
        return name, _ELECTION.pack(version, number, len(address)) + address + first[_ELECTION.size + length :]

    return introduce


SETUPS: dict[str, type[Setup]] = {
    kind.name: kind
    for kind in (
        PostgresSetup,
        MariaDBSetup,
        EtcdSetup,
        Etcd3Setup,
        ZooKeeper3Setup,
        RedisSetup,
        S3Setup,
        DynamoDBSetup,
    )
}
