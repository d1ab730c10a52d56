"""Private etcd members: one alone, or a cluster of three whose members speak to each other through our own links.

Promise: each member flushes what it acknowledges, as by default. Elections are quick, so that a lease may be as short
as a second.
"""

import re
import secrets
import shutil
import urllib.request
from contextlib import suppress
from pathlib import Path

from fencelock_lab.campaigns.history import SERVER_ISOLATE
from fencelock_lab.servers.programs import ETCD, ETCDCTL, need, run
from fencelock_lab.servers.server import HOST, Server
from fencelock_lab.servers.setup import TreeSetup

HEARTBEAT_MS = 50
ELECTION_MS = 500
THREE = 3
_LOOK_S = 2.0
_CALLER = re.compile(rb"\r\nX-Peerurls: (\S+)\r\n", re.IGNORECASE)
"""In the head of whatever one member asks of another: the URL by which the asking one is reached."""


class EtcdServer(Server):
    """One member. `way` is the port by which the others reach it."""

    def __init__(self, folder: Path, name: str, setup: "EtcdSetup") -> None:
        super().__init__(folder, name)
        self._setup = setup
        self._peer_port, self._look_port = self.reserve_port(), self.reserve_port()
        self.way = setup.links.lead_to(name, self._peer_port, setup.caller) if setup.size > 1 else self._peer_port

    @property
    def peer_url(self) -> str:
        """Where the others reach it."""
        return f"http://{HOST}:{self.way}"

    def command(self) -> list[object]:
        """Return the command that starts it."""
        client = f"http://{HOST}:{self.port}"
        options = {
            "name": self.name,
            "data-dir": self.data,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": f"http://{HOST}:{self._peer_port}",
            "initial-advertise-peer-urls": self.peer_url,
            "listen-metrics-urls": f"http://{HOST}:{self._look_port}",
            "initial-cluster": self._setup.members,
            "heartbeat-interval": HEARTBEAT_MS,
            "election-timeout": ELECTION_MS,
            "log-level": "error",
            "logger": "zap",
        }
        return [need(ETCD), *(f"--{name}={value}" for name, value in options.items())]

    def is_ready(self) -> bool:
        """Tell whether it takes requests: it knows a leader then, and there is a quorum."""
        with suppress(OSError):
            return '"true"' in self._look("health")
        return False

    def is_leader(self) -> bool:
        """Tell whether it leads, or believes so."""
        with suppress(OSError):
            return "\netcd_server_is_leader 1\n" in self._look("metrics")
        return False

    def _look(self, page: str) -> str:
        with urllib.request.urlopen(f"http://{HOST}:{self._look_port}/{page}", timeout=_LOOK_S) as answer:
            told: str = answer.read().decode()
            return told


class EtcdSetup(TreeSetup):
    """One member. A restored snapshot is not noticed: the operator raises the epoch."""

    name = "etcd"
    shown = ("etcd://127.0.0.1/locks", "etcd://127.0.0.1/app")
    least_ttl = 1.0
    ttl = 1.0
    servers: list[EtcdServer]  # type: ignore[assignment]

    def make(self, number: int) -> EtcdServer:
        """Return a member, not started yet."""
        name = f"etcd-{number + 1}"
        return EtcdServer(self.folder / name, name, self)

    @property
    def members(self) -> str:
        """All members, as each of them is told."""
        return ",".join(f"{server.name}={server.peer_url}" for server in self.servers)

    def caller(self, first: bytes) -> tuple[str, bytes]:
        """Return which member has opened a connection; what is not of the consensus says nothing, and is nobody's."""
        found = _CALLER.search(first)
        urls = found[1].decode() if found else ""
        return next((server.name for server in self.servers if server.peer_url in urls), ""), first

    def url_below(self, base: str) -> str:
        """Return the URL of a prefix, with all members in it."""
        return f"etcd://{self.hosts}/{base}"

    def leads(self, server: Server) -> bool:
        """Tell whether a member leads, or believes so."""
        return isinstance(server, EtcdServer) and server.is_leader()

    def save(self, backup: Path) -> None:
        """Save a snapshot of the first member."""
        endpoint = f"--endpoints={HOST}:{self.servers[0].port}"
        run([need(ETCDCTL), endpoint, "snapshot", "save", backup / "snapshot"], backup, ETCDCTL_API="3")

    def put_back(self, backup: Path) -> None:
        """Make each member anew from the snapshot, of a cluster with a new token, as the manual says: what a member of
        the old one may still say is not for these.
        """
        token = secrets.token_hex(8)
        for server in self.servers:
            shutil.rmtree(server.data)
            options = {
                "data-dir": server.data,
                "name": server.name,
                "initial-cluster": self.members,
                "initial-cluster-token": token,
                "initial-advertise-peer-urls": server.peer_url,
            }
            named = (f"--{name}={value}" for name, value in options.items())
            run([need(ETCDCTL), "snapshot", "restore", backup / "snapshot", *named], server.folder, ETCDCTL_API="3")


class Etcd3Setup(EtcdSetup):
    """A cluster of three, whose leader can be cut off from the others."""

    name = "etcd3"
    size = THREE
    faults = (*EtcdSetup.faults, SERVER_ISOLATE)
