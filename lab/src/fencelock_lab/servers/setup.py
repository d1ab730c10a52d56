"""What all set-ups of private servers have in common: they start, end, are hidden, and go back to an older backup.

Promise: while a backup is restored no client reaches a server; a client that gets through finds the operator's steps
done. A closed set-up leaves neither a process nor a file, and neither does one whose process is killed.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Self
from unittest.mock import patch

import fencelock
from fencelock_lab.campaigns.history import SERVER_FREEZE, SERVER_KILL, SERVER_RESTART, SERVER_RESTORE
from fencelock_lab.servers.cluster import Cluster
from fencelock_lab.servers.fleet import ServerFolder
from fencelock_lab.servers.network import Network
from fencelock_lab.servers.processes import wait_for
from fencelock_lab.servers.programs import new_folder
from fencelock_lab.servers.server import Server

Remedy = Callable[[str], None]
"""What an operator does at a restored set-up, whose URL it is given, before anybody else may use it."""


class Setup:
    """Private servers of one kind that form one source. A context manager."""

    name: ClassVar[str]
    shown: ClassVar[tuple[str, str]]
    """The URLs of source and guard as a dry run shows them."""
    least_ttl: ClassVar[float] = 0.2
    """The shortest lease that these servers grant."""
    ttl: ClassVar[float] = 0.5
    """The ttl of a campaign that is given none."""
    faults: ClassVar[tuple[str, ...]] = (SERVER_KILL, SERVER_FREEZE, SERVER_RESTART, SERVER_RESTORE)
    notices_restores: ClassVar[bool] = False
    """Whether the source detects a restore by itself, so that no operator needs to raise its epoch."""
    forgets_s: ClassVar[float] = 0.0
    """How many seconds of the latest grants a crash of the server may lose, as the store's reference says."""
    longest_freeze_s: ClassVar[float] = float("inf")
    """How long the servers may be frozen and still promise what the store's reference says."""
    variables: ClassVar[Mapping[str, str]] = {}
    """What clients need in their environment, which this process has while the servers run."""
    size: ClassVar[int] = 1

    def __init__(self) -> None:
        self._folder = ServerFolder(f"fencelock-own-{self.name}-", on_disk=True)
        self.network = Network()
        self._environment = patch.dict(os.environ, self.variables)
        try:
            self.cluster = self.make()
        except BaseException:
            self._folder.close()
            raise

    def __enter__(self) -> Self:
        self._environment.start()
        try:
            for server in self.servers:
                server.prepare()
            self.start()
            with fencelock.connect(self.url) as source:
                source.install()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End all servers, and remove everything."""
        self._environment.stop()
        self.cluster.close()
        self.network.close()
        self._folder.close()

    @property
    def servers(self) -> list[Server]:
        """All servers."""
        return self.cluster.servers

    def new_folder(self, name: str) -> Path:
        """Return a new folder for a server, or for a backup."""
        return new_folder(self._folder.path / name)

    # --- what a subclass says -----------------------------------------------------------------------------------------
    def make(self) -> Cluster[Server]:
        """Return the servers, not started yet."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """The URL of the source, with the ports on which the servers listen now."""
        raise NotImplementedError

    @property
    def guard_url(self) -> str:
        """Where resources are guarded unless the user says otherwise: at the same servers."""
        return self.url

    def save(self, backup: Path) -> None:
        """Take a backup of the running servers."""
        raise NotImplementedError

    def put_back(self, backup: Path) -> None:
        """Replace the files of the servers, none of which runs, by those of the backup."""

    def load(self, backup: Path) -> None:
        """Read the backup into the servers, which run and are hidden."""

    # --- what a campaign does to them ---------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the servers that do not run, and return once all take requests."""
        self.cluster.start()

    def wait_until_ready(self) -> None:
        """Wait until all servers take requests."""
        self.cluster.wait_until_ready()

    def leader(self) -> Server | None:
        """Return the server that leads, or None if none does now."""
        return self.cluster.find_leader()

    def wait_for_leader_but(self, isolated: Server) -> None:
        """Wait until another server than the isolated one leads."""
        others = [server for server in self.servers if server is not isolated]
        wait_for(lambda: any(server.is_leader() for server in others), f"no server led without {isolated.name}")

    def back_up(self) -> None:
        """Take a backup while the servers run; it replaces the former one."""
        shutil.rmtree(self._backup, ignore_errors=True)
        self.save(self.new_folder(self._backup.name))

    @property
    def _backup(self) -> Path:
        return self._folder.path / "backup"

    def restore(self, remedy: Remedy) -> None:
        """Restore the backup on the servers, none of which runs, and apply the remedy before clients find them."""
        self.network.forget()
        self.put_back(self._backup)
        self._hide(is_hidden=True)
        self.start()
        self.load(self._backup)
        remedy(self.url)
        self.cluster.stop()
        self._hide(is_hidden=False)
        self.start()

    def _hide(self, *, is_hidden: bool) -> None:
        for server in self.servers:
            server.hide(is_hidden=is_hidden)
