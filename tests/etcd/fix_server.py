"""Private etcd members and clusters: started, stopped, killed, frozen and thawed by their pids alone.

Every member's folder, ports and log are its own. Elections are quick, so that the shortest ttl that a member grants is
one second. A member that a test kills is a real one: nothing of it survives but its data folder.
"""

import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.helpers import DEADLINE_S, wait_until
from tests.private_server import PrivateServer, Wrap, environment, reserve_port
from tests.servers import need

LOCK_FILE = "pid"
HEARTBEAT_MS = 50
ELECTION_MS = 500
MIN_TTL_S = 1
"""The shortest ttl that these members grant."""
_LOOK_S = 2.0


class EtcdServer(PrivateServer):
    """One member over the data folder `folder / "data"`, which is empty at first."""

    def __init__(self, folder: Path, name: str, *, host: str = "127.0.0.1", wrap: Wrap | None = None) -> None:
        super().__init__(folder, host=host, wrap=wrap)
        self.name = name
        self.program = need("/usr/bin/etcd")
        self.peers: dict[str, str] = {}
        """Where the cluster's members speak to each other, by their names; said by the cluster."""
        self.scheme = "http"
        self._more = [reserve_port(), reserve_port()]
        self.peer_port, self.look_port = (reserved.getsockname()[1] for reserved in self._more)

    # Starting and stopping

    def command(self) -> list[str | Path]:
        """Return the command that starts it; its pid is in a file that names whose data it serves."""
        client = f"{self.scheme}://{self.host}:{self.port}"
        options = {
            "name": self.name,
            "data-dir": self.data,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": self.peer_url(),
            "initial-advertise-peer-urls": self.peer_url(),
            "listen-metrics-urls": f"http://{self.host}:{self.look_port}",
            "initial-cluster": ",".join(f"{name}={url}" for name, url in self.peers.items()),
            "heartbeat-interval": HEARTBEAT_MS,
            "election-timeout": ELECTION_MS,
            "log-level": "warn",
            "logger": "zap",
            **self.settings,
        }
        line = f'mkdir -p -m 700 "$0" && echo $$ > "$0/{LOCK_FILE}" && exec "$@"'
        return ["sh", "-c", line, self.data, self.program, *(f"--{name}={value}" for name, value in options.items())]

    def is_ready(self) -> bool:
        """Tell whether it takes requests: it knows a leader then, and there is a quorum."""
        with suppress(OSError):
            return '"true"' in self._look("health")
        return False

    def stop(self) -> None:
        """Stop it as an operator does."""
        self.wait_for_end(signal.SIGTERM)

    def close(self) -> None:
        """End it, in whatever state it is, and remove its folder."""
        super().close()
        for reserved in self._more:
            reserved.close()

    # Looking at it

    def peer_url(self) -> str:
        return f"http://{self.host}:{self.peer_port}"

    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"

    def is_leader(self) -> bool:
        return self.metrics().get("etcd_server_is_leader") == 1

    def metrics(self) -> dict[str, float]:
        """Return what it counts, by the name with its labels."""
        with suppress(OSError):
            lines = re.findall(r"^(\S+) (\S+)$", self._look("metrics"), re.MULTILINE)
            return {name: float(value) for name, value in lines}
        return {}

    def calls(self) -> dict[str, int]:
        """Return how many messages it has had, by the name of the method."""
        found = {}
        for name, value in self.metrics().items():
            if match := re.match(r'grpc_server_msg_received_total\{grpc_method="(\w+)"', name):
                found[match[1]] = int(value)
        return found

    def _look(self, page: str) -> str:
        with urllib.request.urlopen(f"http://{self.host}:{self.look_port}/{page}", timeout=_LOOK_S) as answer:
            return answer.read().decode()


class EtcdCluster:
    """Some members that are one cluster; not started yet."""

    def __init__(self, servers: Iterable[EtcdServer]) -> None:
        self.servers = list(servers)
        for server in self.servers:
            server.peers = {other.name: other.peer_url() for other in self.servers}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start those that do not run, and return once all take requests."""
        for server in self.servers:
            if not server.is_running():
                server.launch()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until every running member takes requests."""
        for server in self.servers:
            if server.is_running():
                server.wait_until_ready()

    def stop(self) -> None:
        """Stop all members as an operator does."""
        for server in self.servers:
            if server.is_running():
                server.stop()

    def kill(self) -> None:
        """Kill all members."""
        for server in self.servers:
            if server.is_running():
                server.kill()

    def restart(self) -> None:
        """Kill all members and start them again."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End all members, and remove their folders."""
        for server in self.servers:
            server.close()

    def leader(self) -> EtcdServer:
        """Return the member that leads, once there is one."""
        return wait_until(lambda: next((server for server in self.servers if server.is_leader()), None))

    def url(self, prefix: str = "", login: str = "", query: str = "") -> str:
        """Return the URL of a source with all members in it."""
        hosts = ",".join(server.endpoint() for server in self.servers)
        return f"etcd://{login}{'@' if login else ''}{hosts}{'/' if prefix else ''}{prefix}{query}"

    def ctl(self, *arguments: str | Path, user: str | None = None) -> str:
        """Run etcdctl, which must succeed, and return what it printed."""
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

    def ctl_command(self, *arguments: str | Path, user: str | None = None) -> list[str | Path]:
        """Return the command of an etcdctl at this cluster; it needs `ctl_environment`."""
        login = [f"--user={user}"] if user else []
        endpoints = ",".join(server.endpoint() for server in self.servers)
        return [need("/usr/bin/etcdctl"), f"--endpoints={endpoints}", *login, *arguments]

    def keys(self, prefix: str) -> list[str]:
        """Return the names of all keys that begin with the prefix."""
        return [key for key in self.ctl("get", "--prefix", "--keys-only", prefix).split("\n") if key]

    def leases(self) -> list[str]:
        """Return the ids of all leases, as hexadecimal digits."""
        return re.findall(r"^([0-9a-f]+)$", self.ctl("lease", "list"), re.MULTILINE)


def ctl_environment() -> dict[str, str]:
    """Return the environment in which etcdctl speaks the API of version 3."""
    return environment(ETCDCTL_API="3")
