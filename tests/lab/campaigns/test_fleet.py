"""Servers that several users share: started by the first one who asks, and known only once they run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fencelock.errors import SourceError
from fencelock_lab.servers.cluster import Cluster
from fencelock_lab.servers.fleet import Fleet
from fencelock_lab.servers.server import Server


class Sleeper(Server):
    """A server that sleeps until it is ended; a broken one ends at once."""

    is_broken = False

    def command(self) -> list[object]:
        return ["false" if self.is_broken else "sleep", "60"]

    def is_ready(self) -> bool:
        return not self.is_broken


class SleeperFleet(Fleet[Sleeper]):
    kind = "sleeper"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.made: list[Sleeper] = []

    def shared(self, *broken: bool) -> Cluster[Sleeper]:
        def make() -> Cluster[Sleeper]:
            servers = [Sleeper(self.new_folder("server"), wrap=lambda words: [str(word) for word in words])]
            servers += [Sleeper(self.new_folder("server"), wrap=servers[0]._wrap) for _ in broken[1:]]
            for server, is_broken in zip(servers, broken, strict=True):
                server.is_broken = is_broken
            self.made += servers
            return Cluster(servers)

        return self.shared_cluster("", make, lambda folders: Cluster([Sleeper(folder) for folder in folders]))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[SleeperFleet]:
    made = SleeperFleet(tmp_path)
    yield made
    for server in made.made:
        server.close()


def test_the_servers_are_started_once_for_all_who_share_them(fleet: SleeperFleet, tmp_path: Path) -> None:
    first = fleet.shared(False)
    assert fleet.shared(False) is first
    other = SleeperFleet(tmp_path)
    assert [server.pid for server in other.shared(False).servers] == [server.pid for server in first.servers]
    assert other.made == []


def test_servers_that_did_not_start_are_ended_and_started_anew_for_the_next_user(fleet: SleeperFleet) -> None:
    with pytest.raises(SourceError, match="ended by itself"):
        fleet.shared(False, True)
    assert [server.is_running() for server in fleet.made] == [False, False]
    assert fleet.shared(False).is_running()
