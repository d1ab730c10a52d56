"""Private ZooKeeper servers, one alone or an ensemble: started, stopped, killed, frozen and thawed by pid alone.

Every write is flushed before it is acknowledged, as by default.
"""

import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlencode

from kazoo.client import KazooClient

from tests.helpers import wait_until
from tests.private_server import PrivateServer, Wrap, give, reserve_port
from tests.servers import need

JAR = "/usr/share/java/zookeeper.jar"
LOCK_FILE = "pid"
CONNECT_S = 2.0
MAX_SESSION_MS = 700_000
"""By default it is 20 ticks, and the tests' ticks are short."""


class ZooKeeperServer(PrivateServer):
    """A server over `folder / "data"`, which may be empty; `peers` are the lines of its ensemble, if it is in one."""

    def __init__(self, folder: Path, *, tick_ms: int, host: str = "127.0.0.1", wrap: Wrap | None = None) -> None:
        super().__init__(folder, host=host, wrap=wrap)
        self.tick_ms = tick_ms
        self.peers: dict[str, str] = {}
        self.settings |= {
            "tickTime": tick_ms,
            "initLimit": 50,
            "syncLimit": 10,
            "maxClientCnxns": 0,
            "maxSessionTimeout": MAX_SESSION_MS,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def command(self) -> list[str | Path]:
        """Write its settings, and return the command that starts it."""
        self.data.mkdir(exist_ok=True)
        give(self.data)
        listen = {"dataDir": self.data, "clientPort": self.port, "clientPortAddress": self.host}
        lines = (f"{name}={value}\n" for name, value in (self.settings | listen | self.peers).items())
        settings = self.data / "zoo.cfg"
        settings.write_text("".join(lines))
        # -Xrs leaves SIGQUIT its meaning, so that whatever ends servers of killed test runs ends this one too.
        java = [need("java"), "-Xmx256m", "-Xrs", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        java += ["-Dzookeeper.jmx.log4j.disable=true", "-cp", f"/etc/zookeeper/conf:{need(JAR)}"]
        return [*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", settings]

    def launch(self) -> None:
        """Start it without waiting."""
        super().launch()
        (self.data / LOCK_FILE).write_text(f"{self.pid}\n")

    def is_ready(self) -> bool:
        """Tell whether it takes connections, of an ensemble that has a leader."""
        return self.mode() is not None

    def mode(self) -> str | None:
        """Return what it is: standalone, leader or follower; None while it serves nobody."""
        return self.report().get("Mode")

    def report(self) -> dict[str, str]:
        """Return what it says of itself."""
        with suppress(OSError):
            lines = self.ask("srvr").splitlines()
            return {
                name: value.strip() for name, separator, value in (line.partition(":") for line in lines) if separator
            }
        return {}

    def ask(self, word: str) -> str:
        """Return the answer to one of its four-letter words."""
        with closing(socket.create_connection((self.host, self.port), CONNECT_S)) as talking:
            talking.sendall(word.encode())
            return b"".join(iter(lambda: talking.recv(65536), b"")).decode()

    def stop(self) -> None:
        """Ask it to end."""
        self.wait_for_end(signal.SIGTERM)

    def restart(self) -> None:
        self.stop()
        self.start()

    def url(self, base: str = "/fencelock", *, user: str = "", password: str = "", **params: str | int) -> str:
        """Return the address of a source or guard under `base`; `params` are more of its parameters."""
        return url_of([self], base, user=user, password=password, **params)

    def client(self, timeout: float = 10.0) -> KazooClient:
        """Return a client of kazoo's own, started; whoever asked for it stops it."""
        return started_client(self.address, timeout)


class Ensemble:
    """Several servers that elect a leader. Use it in a `with` block."""

    def __init__(
        self, folders: Sequence[Path], *, tick_ms: int, hosts: Sequence[str] = (), wraps: Sequence[Wrap] = ()
    ) -> None:
        self.tick_ms = tick_ms
        self.servers = [
            ZooKeeperServer(
                folder,
                tick_ms=tick_ms,
                host=hosts[number] if hosts else "127.0.0.1",
                wrap=wraps[number] if wraps else None,
            )
            for number, folder in enumerate(folders)
        ]
        # Reserved for as long as the ensemble lives, like the servers' own ports.
        self._reserved = [reserve_port() for _ in range(2 * len(folders))]
        ports = iter([reserved.getsockname()[1] for reserved in self._reserved])
        peers = {
            f"server.{number}": f"{server.host}:{next(ports)}:{next(ports)}" for number, server in self._numbered()
        }
        for number, server in self._numbered():
            server.peers = peers
            server.data.mkdir(exist_ok=True)
            (server.data / "myid").write_text(f"{number}\n")

    def _numbered(self) -> Iterator[tuple[int, ZooKeeperServer]]:
        return enumerate(self.servers, start=1)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start every server that does not run, and return once each is in the ensemble."""
        for server in self.servers:
            if not server.is_running():
                server.launch()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until every server follows one leader."""
        for server in self.servers:
            server.wait_until_ready()
        self.leader()

    def stop(self) -> None:
        """Ask each to end."""
        for server in self.servers:
            server.stop()

    def kill(self) -> None:
        """Kill every server that runs, one after the other."""
        for server in self.servers:
            if server.is_running():
                server.kill()

    def crash(self) -> None:
        """Kill all, and start all again."""
        self.kill()
        self.start()

    def leader(self) -> ZooKeeperServer:
        """Return the server that leads, waiting for one; a frozen server is not asked."""
        return wait_until(lambda: next((server for server in self.running() if server.mode() == "leader"), None))

    def followers(self) -> list[ZooKeeperServer]:
        """Return those that follow the present leader."""
        self.leader()
        return [server for server in self.running() if server.mode() == "follower"]

    def running(self) -> list[ZooKeeperServer]:
        """Return the servers that run and are not frozen."""
        return [server for server in self.servers if server.is_running() and not is_frozen(server)]

    def url(self, base: str = "/fencelock", *, user: str = "", password: str = "", **params: str | int) -> str:
        """Return the address of a source or guard under `base` that names every server."""
        return url_of(self.servers, base, user=user, password=password, **params)

    def client(self, timeout: float = 10.0) -> KazooClient:
        """Return a client of kazoo's own that knows every server, started; whoever asked for it stops it."""
        return started_client(",".join(server.address for server in self.servers), timeout)

    def close(self) -> None:
        """End all, in whatever state they are, and remove their folders."""
        for server in self.servers:
            server.close()
        for reserved in self._reserved:
            reserved.close()


def is_frozen(server: ZooKeeperServer) -> bool:
    """Tell whether a running server is stopped as by SIGSTOP."""
    return server.processes()[0].status() == "stopped"


def url_of(
    servers: Sequence[ZooKeeperServer], base: str, *, user: str = "", password: str = "", **params: str | int
) -> str:
    """Return the URL of a base on these servers."""
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
    hosts = ",".join(server.address for server in servers)
    query = urlencode({"tick_ms": servers[0].tick_ms, **params}, quote_via=quote)
    return f"zookeeper://{login}{hosts}{quote(base)}?{query}"


def started_client(hosts: str, timeout: float) -> KazooClient:
    """Return a started client of kazoo's own."""
    client = KazooClient(hosts, timeout=timeout)
    client.start(timeout=30)
    return client
