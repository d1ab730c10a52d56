"""Private etcd members, alone or in a cluster.

Promise: each member flushes what it acknowledges, as by default. Elections are quick, so that a lease may be as short
as a second.
"""

import re
import secrets
import shutil
import subprocess
import urllib.request
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from fencelock_lab.servers.cluster import Cluster
from fencelock_lab.servers.fleet import Fleet
from fencelock_lab.servers.processes import DEADLINE_S, wait_for
from fencelock_lab.servers.programs import ETCD, ETCDCTL, Wrap, as_runner, environment, need, run
from fencelock_lab.servers.server import HOST, Server

HEARTBEAT_MS = 50
ELECTION_MS = 500
MIN_TTL_S = 1
"""The shortest ttl that these members grant."""
PEER_PORT, _METRICS_PORT = "peer", "metrics"
_ANSWER_S = 2.0


class EtcdServer(Server):
    """One member over a data folder that is empty at first."""

    def __init__(self, folder: Path, name: str, *, host: str = HOST, wrap: Wrap = as_runner) -> None:
        super().__init__(folder, name=name, host=host, wrap=wrap)
        self.scheme = "http"
        self.reserve_port(_METRICS_PORT)
        self.peer_url = f"http://{host}:{self.reserve_port(PEER_PORT)}"
        """Where the other members reach it; a proxy before it has another URL."""
        self.peers: dict[str, str] = {}
        """The peer URLs of all members, by their names; the cluster fills it in."""

    def command(self) -> list[object]:
        """Return the command that starts it."""
        client = f"{self.scheme}://{self.address}"
        options = {
            "name": self.name,
            "data-dir": self.data,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": f"http://{self.host}:{self.ports[PEER_PORT]}",
            "initial-advertise-peer-urls": self.peer_url,
            "listen-metrics-urls": f"http://{self.host}:{self.ports[_METRICS_PORT]}",
            "initial-cluster": self.initial_cluster,
            "heartbeat-interval": HEARTBEAT_MS,
            "election-timeout": ELECTION_MS,
            "log-level": "warn",
            "logger": "zap",
            **self.settings,
        }
        return [need(ETCD), *(f"--{name}={value}" for name, value in options.items())]

    def is_ready(self) -> bool:
        """Return whether it takes requests: it knows a leader then, and there is a quorum."""
        with suppress(OSError):
            return '"true"' in self._page("health")
        return False

    @property
    def initial_cluster(self) -> str:
        """All members, as each of them is told."""
        return ",".join(f"{name}={url}" for name, url in self.peers.items())

    def is_leader(self) -> bool:
        """Return whether it leads, or believes so."""
        return self.metrics().get("etcd_server_is_leader") == 1

    def metrics(self) -> dict[str, float]:
        """Return its metrics by name and labels."""
        with suppress(OSError):
            lines = re.findall(r"^(\S+) (\S+)$", self._page("metrics"), re.MULTILINE)
            return {name: float(value) for name, value in lines}
        return {}

    def calls(self) -> dict[str, int]:
        """Return how many messages it has received, by the name of the method."""
        found = {}
        for name, value in wait_for(self.metrics, f"{self.name} told no metrics").items():
            if match := re.match(r'grpc_server_msg_received_total\{grpc_method="(\w+)"', name):
                found[match[1]] = int(value)
        return found

    def version(self) -> str:
        """Return the version of the program."""
        (version,) = (name.split('"')[1] for name in self.metrics() if name.startswith("etcd_server_version{"))
        return version

    def restore(self, snapshot: Path, token: str) -> None:
        """Replace its data, while it is down, by a snapshot; `token` names the new cluster."""
        shutil.rmtree(self.data)
        options = {
            "data-dir": self.data,
            "name": self.name,
            "initial-cluster": self.initial_cluster,
            "initial-cluster-token": token,
            "initial-advertise-peer-urls": self.peer_url,
        }
        named = (f"--{name}={value}" for name, value in options.items())
        run([need(ETCDCTL), "snapshot", "restore", snapshot, *named], self.folder, ETCDCTL_API="3")

    def _page(self, name: str) -> str:
        url = f"http://{self.host}:{self.ports[_METRICS_PORT]}/{name}"
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as reply:
            text: str = reply.read().decode()
            return text


class EtcdCluster(Cluster[EtcdServer]):
    """Members of one cluster, not started yet."""

    def __init__(self, servers: Iterable[EtcdServer]) -> None:
        super().__init__(servers)
        peers = {server.name: server.peer_url for server in self.servers}
        for server in self.servers:
            server.peers = peers

    def url(self, prefix: str = "", login: str = "", query: str = "") -> str:
        """Return the URL of a source that names all members."""
        return f"etcd://{login}{'@' if login else ''}{self.addresses}{'/' if prefix else ''}{prefix}{query}"

    def ctl(self, *arguments: object, user: str | None = None) -> str:
        """Run etcdctl, which must succeed, and return its output."""
        done = subprocess.run(
            self.ctl_command(*arguments, user=user),
            env=ctl_environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ctl_command(self, *arguments: object, user: str | None = None) -> list[str]:
        """Return the command of an etcdctl for this cluster; it needs `ctl_environment`."""
        login = [f"--user={user}"] if user else []
        return [need(ETCDCTL), f"--endpoints={self.addresses}", *login, *map(str, arguments)]

    def keys(self, prefix: str) -> list[str]:
        """Return the names of all keys that begin with the prefix."""
        return [key for key in self.ctl("get", "--prefix", "--keys-only", prefix).split("\n") if key]

    def leases(self) -> list[str]:
        """Return the ids of all leases, as hexadecimal digits."""
        return re.findall(r"^([0-9a-f]+)$", self.ctl("lease", "list"), re.MULTILINE)

    def save(self, snapshot: Path) -> None:
        """Save a snapshot of the first member."""
        endpoint = f"--endpoints={self.servers[0].address}"
        run([need(ETCDCTL), endpoint, "snapshot", "save", snapshot], snapshot.parent, ETCDCTL_API="3")

    def restore(self, snapshot: Path) -> None:
        """Make each member, none of which runs, anew from the snapshot.

        The new cluster has a new token, as etcd's manual demands: its members refuse messages of the old one.
        """
        token = secrets.token_hex(8)
        for server in self.servers:
            server.restore(snapshot, token)


def ctl_environment() -> dict[str, str]:
    """Return the environment in which etcdctl speaks the API of version 3."""
    return environment(ETCDCTL_API="3")


class EtcdFleet(Fleet[EtcdServer]):
    """Makes etcd clusters."""

    kind = "etcd"

    def new_cluster(self, size: int, *, hosts: Sequence[str] = (), wraps: Sequence[Wrap] = ()) -> EtcdCluster:
        """Return a cluster of so many members, not started yet; `hosts` and `wraps` say where they run."""
        cluster = self._cluster(size, hosts, wraps)
        for server in cluster.servers:
            self.own(server)
        return cluster

    def _cluster(self, size: int, hosts: Sequence[str] = (), wraps: Sequence[Wrap] = ()) -> EtcdCluster:
        where = list(zip(hosts, wraps, strict=True)) or [(HOST, as_runner)] * size
        return EtcdCluster(
            EtcdServer(self.new_folder(f"n{number}"), f"n{number}", host=host, wrap=wrap)
            for number, (host, wrap) in enumerate(where, start=1)
        )

    def shared(self, size: int) -> EtcdCluster:
        """Return the running cluster of this size that all users of the folder share."""

        def find(folders: list[Path]) -> EtcdCluster:
            return EtcdCluster(EtcdServer(folder, f"n{number}") for number, folder in enumerate(folders, start=1))

        cluster = self.shared_cluster(str(size), lambda: self._cluster(size), find)
        assert isinstance(cluster, EtcdCluster)
        return cluster
