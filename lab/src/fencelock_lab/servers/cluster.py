"""Several servers that form one cluster, or one server alone, used as one.

Promise: a server that is frozen or down is never asked who leads.
"""

from collections.abc import Iterable
from typing import Generic, Self, TypeVar

from fencelock_lab.servers.processes import wait_for
from fencelock_lab.servers.server import Server

AnyServer = TypeVar("AnyServer", bound=Server)


class Cluster(Generic[AnyServer]):
    """The servers of one cluster, not started yet. A context manager."""

    def __init__(self, servers: Iterable[AnyServer]) -> None:
        self.servers = list(servers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self) -> None:
        """Start every server that does not run, and return once all take requests; SourceError if one ends."""
        for server in self.servers:
            if not server.is_running():
                server.launch()
        for server in self.servers:
            server.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until every running server takes requests."""
        for server in self.servers:
            if server.is_running():
                server.wait_until_ready()

    def stop(self) -> None:
        """Stop every running server as an operator does."""
        for server in self.servers:
            if server.is_running():
                server.stop()

    def kill(self) -> None:
        """Kill every running server, one after the other."""
        for server in self.servers:
            if server.is_running():
                server.kill()

    def crash(self) -> None:
        """Kill all servers and start them again."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End all servers, whatever state they are in, and remove their folders."""
        for server in self.servers:
            server.close()

    def is_running(self) -> bool:
        """Return whether every server runs."""
        return all(server.is_running() for server in self.servers)

    def running(self) -> list[AnyServer]:
        """Return the servers that run and are not frozen."""
        return [server for server in self.servers if server.is_running() and not server.is_frozen()]

    def find_leader(self) -> AnyServer | None:
        """Return the server that leads, or None if none does now."""
        return next((server for server in self.running() if server.is_leader()), None)

    def leader(self) -> AnyServer:
        """Return the server that leads, as soon as there is one."""
        leader = wait_for(self.find_leader, "no server led")
        assert leader is not None
        return leader

    @property
    def addresses(self) -> str:
        """Host and port of every server, as a URL names them."""
        return ",".join(server.address for server in self.servers)
