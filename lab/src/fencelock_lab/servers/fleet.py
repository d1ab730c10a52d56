"""All private servers of one program: in one folder, prepared from templates, shared where they may be, and all ended.

Promise: nothing of the servers is left when the folder is closed or the process that opened it dies, however it dies.
Several processes may use one folder: a shared server is started by the first one that asks for it, once.
"""

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fencelock_lab.servers import watcher
from fencelock_lab.servers.cluster import AnyServer, Cluster
from fencelock_lab.servers.programs import copy_folder, give

if TYPE_CHECKING:
    from fencelock_lab.servers.server import Server

_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder in it is private
_MEMORY_BYTES = 4 * 2**30
"""Room that several servers need for certain: one takes 60 MiB at first."""


class ServerFolder:
    """A new folder for servers. A context manager: in the end everything inside it is ended and removed.

    It lies in memory if there is room, where a flush costs nothing and a killed process loses nothing; `on_disk` puts
    it on a disk, for measurements and power cuts.
    """

    def __init__(self, prefix: str = "fencelock-servers-", *, on_disk: bool = False) -> None:
        in_memory = not on_disk and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=_MEMORY if in_memory else None))
        self.path.chmod(0o755)  # Servers reach their own folders in it as another user.
        command = [sys.executable, "-P", "-m", watcher.__name__, str(self.path)]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End every server in the folder, and remove the folder."""
        watcher.end_all(self.path)
        # A forked child may hold the other end of the watcher's pipe, so its end is not waited for.
        self._watcher.terminate()
        self._watcher.communicate()


class Fleet(Generic[AnyServer]):
    """Makes the servers of one kind in a folder, and ends those that it has made."""

    kind: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner = ""
        """Fleets of one owner share servers. A user of a whole server names itself, and shares with nobody else."""
        self._owned: list[Server] = []
        self._shared: dict[str, Cluster[AnyServer]] = {}

    def close(self) -> None:
        """End every server that was made here for one user alone; shared ones end with the folder."""
        for server in self._owned:
            server.close()
        for cluster in self._shared.values():
            for server in cluster.servers:
                server.leave()

    def new_folder(self, name: str) -> Path:
        """Return a new folder that only the user who runs the servers can enter."""
        return give(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder)))

    def own(self, server: AnyServer) -> AnyServer:
        """End the server together with the fleet, and return it."""
        self._owned.append(server)
        return server

    def template(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return a folder that `make` has filled; it is made once for all processes that use this folder."""
        folder = self.folder / f"template-{self.kind}{name}"
        with _locked(folder.with_suffix(".lock")):
            if not folder.exists():
                made = self.new_folder("template")
                make(made)
                made.rename(folder)
        return folder

    def shared_cluster(
        self, name: str, make: Callable[[], Cluster[AnyServer]], find: Callable[[list[Path]], Cluster[AnyServer]]
    ) -> Cluster[AnyServer]:
        """Return the running servers of that name, which all processes that use this folder share.

        `make` returns new ones, not started yet; `find` returns objects for servers whose folders are given.
        """
        name += self.owner
        if name not in self._shared:
            state = self.folder / f"shared-{self.kind}{name}.json"
            with _locked(state.with_suffix(".lock")):
                self._shared[name] = _found(state, find) if state.exists() else _started(make(), state)
        assert self._shared[name].is_running(), "a user of the shared servers has ended one of them"
        return self._shared[name]


class LoneServerFleet(Fleet[AnyServer]):
    """Makes servers that belong to no cluster, and shares one."""

    server: type[AnyServer]

    def new_server(self) -> AnyServer:
        """Return a server, not started yet."""
        return self.own(self.server(self.new_folder("server")))

    def shared(self) -> AnyServer:
        """Return the running server that all users of the folder share, each with names of its own in it."""
        (server,) = self.shared_cluster("", self._make, self._find).servers
        return server

    def _make(self) -> Cluster[AnyServer]:
        return Cluster([self.server(self.new_folder("server"))])

    def _find(self, folders: list[Path]) -> Cluster[AnyServer]:
        return Cluster([self.server(folder) for folder in folders])


def _found(state: Path, find: Callable[[list[Path]], Cluster[AnyServer]]) -> Cluster[AnyServer]:
    """Return objects for the running servers that another process has started."""
    states: list[dict[str, Any]] = json.loads(state.read_text())
    cluster = find([Path(one["folder"]) for one in states])
    for server, one in zip(cluster.servers, states, strict=True):
        server.attach(one)
    return cluster


def _started(cluster: Cluster[AnyServer], state: Path) -> Cluster[AnyServer]:
    """Start new servers and let other processes know them. Servers of which one does not start are all ended."""
    try:
        cluster.start()
        state.write_text(json.dumps([server.as_json() for server in cluster.servers]))
    except BaseException:
        cluster.close()
        raise
    return cluster


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep every other process out of the block."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def copied(source: Path, target: Path, *lock_files: str) -> None:
    """Make `target` a copy of a data folder, without the lock files of the server that used it."""
    copy_folder(source, target)
    for name in lock_files:
        (target / name).unlink(missing_ok=True)


AnyFleet = TypeVar("AnyFleet", bound=Fleet[Any])


@contextmanager
def fleet_of(kind: Callable[[Path], AnyFleet], prefix: str, *, on_disk: bool = False) -> Iterator[AnyFleet]:
    """Yield a fleet in a new folder, which is gone afterwards with all its servers."""
    with ServerFolder(prefix, on_disk=on_disk) as folder:
        fleet = kind(folder.path)
        try:
            yield fleet
        finally:
            fleet.close()
