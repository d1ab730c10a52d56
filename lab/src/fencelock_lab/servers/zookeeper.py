"""Private ZooKeeper servers, alone or in an ensemble.

Promise: each write is flushed before it is acknowledged, as by default.
"""

import shutil
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from fencelock_lab.servers.cluster import Cluster
from fencelock_lab.servers.fleet import Fleet, copied
from fencelock_lab.servers.programs import JAVA, ZOOKEEPER, Wrap, as_runner, copy_folder, need, new_folder
from fencelock_lab.servers.server import HOST, Server

if TYPE_CHECKING:
    from kazoo.client import KazooClient

TICK_MS = 200
"""The tick of a server alone. A guard's session lasts ten of them, and a busy machine must not miss it."""
ENSEMBLE_TICK_MS = 200
SHARED_TICK_MS = 400
"""The tick of an ensemble that all share: it may miss ten on a busy machine before its members give each other up."""
MAX_SESSION_MS = 700_000
"""The default is 20 ticks, and these ticks are short."""
QUORUM_PORT, ELECTION_PORT = "quorum", "election"
_ANSWER_S = 2.0
_STARTING_ANSWER_S = 0.1
"""A server that has just begun to listen never answers its first client: the next one is answered at once."""
_CHUNK_BYTES = 65536
_ARCHIVE = "classes.jsa"


class ZooKeeperServer(Server):
    """A server over a data folder that is empty at first; `peers` are the settings of its ensemble, if it has one."""

    def __init__(
        self,
        folder: Path,
        *,
        tick_ms: int = TICK_MS,
        name: str = "",
        host: str = HOST,
        wrap: Wrap = as_runner,
    ) -> None:
        super().__init__(folder, name=name, host=host, wrap=wrap)
        self.tick_ms = tick_ms
        self.peers: dict[str, str] = {}
        self.options: list[str] = []
        """Further options of Java."""
        self.classes: Path | None = None
        """An archive of Java's classes, with which a start takes a quarter less of a core's time."""
        self.settings |= {
            "tickTime": tick_ms,
            "initLimit": 50,
            "syncLimit": 10,
            "maxClientCnxns": 0,
            "maxSessionTimeout": MAX_SESSION_MS,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }

    def command(self) -> list[object]:
        """Write its settings, and return the command that starts it."""
        if not self.data.exists():
            new_folder(self.data)
        listen = {"dataDir": self.data, "clientPort": self.port, "clientPortAddress": self.host}
        settings = self.folder / "zoo.cfg"
        settings.write_text(
            "".join(f"{name}={value}\n" for name, value in (self.settings | listen | self.peers).items())
        )
        java = [
            need(JAVA),
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            *self.options,
            *([f"-XX:SharedArchiveFile={self.classes}"] if self.classes and self.classes.exists() else []),
        ]
        java += ["-Dzookeeper.jmx.log4j.disable=true", "-cp", f"{need(ZOOKEEPER)}"]
        return [*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", settings]

    def is_ready(self) -> bool:
        """Return whether it takes requests; in an ensemble it follows a leader then, or leads."""
        with suppress(OSError):
            return "Mode: " in self.ask("srvr", _STARTING_ANSWER_S)
        return False

    def is_leader(self) -> bool:
        """Return whether it leads."""
        return self.mode() in {"leader", "standalone"}

    def mode(self) -> str | None:
        """Return what it says that it is: standalone, leader or follower; None while it takes no requests."""
        return self.report().get("Mode")

    def report(self) -> dict[str, str]:
        """Return what its command `srvr` tells."""
        with suppress(OSError):
            lines = (line.partition(":") for line in self.ask("srvr").splitlines())
            return {name: value.strip() for name, separator, value in lines if separator}
        return {}

    def ask(self, word: str, answer_s: float = _ANSWER_S) -> str:
        """Return the answer to one of its four-letter commands."""
        with socket.create_connection((self.host, self.port), answer_s) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(_CHUNK_BYTES), b"")).decode()

    def version(self) -> str:
        """Return the version of the program."""
        return self.report()["Zookeeper version"].partition("-")[0]

    def url(self, base: str = "/fencelock", *, user: str = "", password: str = "", **params: str | int) -> str:
        """Return the URL of a source or guard under `base`; `params` are further parameters of it."""
        return _url_of([self], base, user=user, password=password, **params)

    def client(self, timeout: float = 10.0) -> "KazooClient":
        """Return a started client of kazoo's own, which the caller stops."""
        return _started_client(self.address, timeout)


class ZooKeeperEnsemble(Cluster[ZooKeeperServer]):
    """Servers that elect a leader, not started yet."""

    def __init__(self, servers: Iterable[ZooKeeperServer]) -> None:
        super().__init__(servers)
        for number, server in enumerate(self.servers, start=1):
            if not server.data.exists():
                new_folder(server.data)
                (server.data / "myid").write_text(f"{number}\n")
            for port in (QUORUM_PORT, ELECTION_PORT):
                server.reserve_port(port)
        peers = {
            f"server.{number}": f"{server.host}:{server.ports[QUORUM_PORT]}:{server.ports[ELECTION_PORT]}"
            for number, server in enumerate(self.servers, start=1)
        }
        for server in self.servers:
            server.peers = dict(peers)

    def wait_until_ready(self) -> None:
        """Wait until every running server follows one leader."""
        super().wait_until_ready()
        self.leader()

    def url(self, base: str = "/fencelock", *, user: str = "", password: str = "", **params: str | int) -> str:
        """Return the URL of a source or guard under `base` that names every server."""
        return _url_of(self.servers, base, user=user, password=password, **params)

    def client(self, timeout: float = 10.0) -> "KazooClient":
        """Return a started client of kazoo's own that knows every server; the caller stops it."""
        return _started_client(self.addresses, timeout)

    def save(self, folder: Path) -> None:
        """Copy what the leader has written into the folder: its snapshots, and the log since."""
        copy_folder(self.leader().data / "version-2", folder)

    def restore(self, folder: Path) -> None:
        """Give each server, none of which runs, the same copy."""
        for server in self.servers:
            shutil.rmtree(server.data / "version-2")
            copy_folder(folder / "version-2", server.data)


def _url_of(servers: Sequence[ZooKeeperServer], base: str, *, user: str, password: str, **params: str | int) -> str:
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
    hosts = ",".join(server.address for server in servers)
    query = urlencode({"tick_ms": servers[0].tick_ms, **params}, quote_via=quote)
    return f"zookeeper://{login}{hosts}{quote(base)}?{query}"


def _started_client(hosts: str, timeout: float) -> Any:
    from kazoo.client import KazooClient

    client = KazooClient(hosts, timeout=timeout)
    client.start(timeout=30)
    return client


class ZooKeeperFleet(Fleet[ZooKeeperServer]):
    """Makes ZooKeeper servers and ensembles."""

    kind = "zookeeper"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.archives_classes = False
        """Whether new servers share an archive of classes, which takes the first one a start more."""

    def new_server(self, *, tick_ms: int = TICK_MS) -> ZooKeeperServer:
        """Return a server, not started yet."""
        return self.own(self._server("server", tick_ms=tick_ms))

    def _server(self, name: str, **options: Any) -> ZooKeeperServer:
        server = ZooKeeperServer(self.new_folder(name), **options)
        if self.archives_classes:
            server.classes = self.template("classes", self._archive) / _ARCHIVE
        return server

    def _archive(self, folder: Path) -> None:
        """Have a server leave an archive of the classes that it has used."""
        server = ZooKeeperServer(self.new_folder("server"))
        server.options += ["-XX:+IgnoreUnrecognizedVMOptions", f"-XX:ArchiveClassesAtExit={folder / _ARCHIVE}"]
        with server:
            client = server.client()
            client.create("/used")
            client.stop()
            client.close()
            server.stop()

    def copy_of(self, data: Path, *, tick_ms: int = TICK_MS) -> ZooKeeperServer:
        """Return a server over a copy of a stopped server's data folder, not started yet."""
        server = self.new_server(tick_ms=tick_ms)
        copied(data, server.data)
        return server

    def new_ensemble(
        self,
        size: int = 3,
        *,
        tick_ms: int = ENSEMBLE_TICK_MS,
        hosts: Sequence[str] = (),
        wraps: Sequence[Wrap] = (),
    ) -> ZooKeeperEnsemble:
        """Return an ensemble of so many servers, not started yet; `hosts` and `wraps` say where they run."""
        ensemble = self._ensemble(size, tick_ms, hosts, wraps)
        for server in ensemble.servers:
            self.own(server)
        return ensemble

    def _ensemble(
        self, size: int, tick_ms: int, hosts: Sequence[str] = (), wraps: Sequence[Wrap] = ()
    ) -> ZooKeeperEnsemble:
        where = list(zip(hosts, wraps, strict=True)) or [(HOST, as_runner)] * size
        return ZooKeeperEnsemble(self._server("member", tick_ms=tick_ms, host=host, wrap=wrap) for host, wrap in where)

    def shared(self) -> ZooKeeperServer:
        """Return the running server that all users of the folder share."""

        def make() -> Cluster[ZooKeeperServer]:
            return Cluster([self._server("server")])

        def find(folders: list[Path]) -> Cluster[ZooKeeperServer]:
            return Cluster(ZooKeeperServer(folder) for folder in folders)

        return self.shared_cluster("1", make, find).servers[0]

    def shared_ensemble(self) -> ZooKeeperEnsemble:
        """Return the running ensemble of three that all users of the folder share."""

        def find(folders: list[Path]) -> ZooKeeperEnsemble:
            return ZooKeeperEnsemble(ZooKeeperServer(folder, tick_ms=SHARED_TICK_MS) for folder in folders)

        ensemble = self.shared_cluster("3", lambda: self._ensemble(3, SHARED_TICK_MS), find)
        assert isinstance(ensemble, ZooKeeperEnsemble)
        return ensemble
