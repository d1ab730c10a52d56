"""What all set-ups of private servers have in common: they start, end, are hidden, and go back to an older backup.

Promise: while a backup is brought back no client reaches a server: whoever gets through finds the operator's steps
done. A set-up that is closed leaves neither process nor file, and neither does one whose process is killed.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

import fencelock
from fencelock_lab.campaigns.history import SERVER_FREEZE, SERVER_KILL, SERVER_RESTART, SERVER_RESTORE
from fencelock_lab.servers import watcher
from fencelock_lab.servers.network import Links
from fencelock_lab.servers.programs import new_folder
from fencelock_lab.servers.server import HOST, Server, wait_for

Remedy = Callable[[str], None]
"""What an operator does at a restored set-up, whose URL it is given, before anybody else may use it."""
_WATCHER = watcher.__name__


class Setup:
    """Some private servers of one kind that make one source. A context manager."""

    name: ClassVar[str]
    shown: ClassVar[tuple[str, str]]
    """The source and the guard as they look before there are any servers."""
    least_ttl: ClassVar[float] = 0.2
    """The shortest lease that these servers grant."""
    ttl: ClassVar[float] = 0.5
    """What a campaign takes unless it is told another."""
    faults: ClassVar[tuple[str, ...]] = (SERVER_KILL, SERVER_FREEZE, SERVER_RESTART, SERVER_RESTORE)
    notices_restores: ClassVar[bool] = False
    """Whether the source tells by itself that it went back, so that nobody need raise its epoch."""
    forgets_s: ClassVar[float] = 0.0
    """How much of what was granted last a crash of the server may take with it: the store's reference says so."""
    size: ClassVar[int] = 1

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"fencelock-own-{self.name}-"))
        self.folder.chmod(0o755)  # The servers' own folders in it are theirs alone.
        self._watcher = subprocess.Popen(
            [sys.executable, "-P", "-m", _WATCHER, str(self.folder)], stdin=subprocess.PIPE, start_new_session=True
        )
        self.links = Links()
        self.servers = [self.make(number) for number in range(self.size)]

    def __enter__(self) -> Self:
        try:
            for server in self.servers:
                new_folder(server.folder)
                self.prepare(server)
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
        for server in self.servers:
            server.close()
        self.links.close()
        self._watcher.communicate()  # It ends and removes what is left.

    # --- what kinds of set-ups say ------------------------------------------------------------------------------------
    def make(self, number: int) -> Server:
        """Return one of the servers, not started yet."""
        raise NotImplementedError

    def prepare(self, server: Server) -> None:
        """Fill the server's folder with what its first start needs."""

    @property
    def url(self) -> str:
        """The URL of the source, which leads to where the servers listen now."""
        raise NotImplementedError

    @property
    def guard_url(self) -> str:
        """Where resources are guarded unless the user says otherwise: at the same servers."""
        return self.url

    def leads(self, server: Server) -> bool:
        """Tell whether a server leads, or believes so; one that is alone does."""
        return server is self.servers[0]

    def leader(self) -> Server | None:
        """Return the server that leads, if one does."""
        return next((server for server in self.servers if server.is_running() and self.leads(server)), None)

    def save(self, backup: Path) -> None:
        """Take a backup of the running servers."""
        raise NotImplementedError

    def put_back(self, backup: Path) -> None:
        """Replace the files of the servers, none of which runs, by those of the backup."""

    def load(self, backup: Path) -> None:
        """Read the backup into the servers, which run and are hidden."""

    # --- what is done to them -----------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start those that do not run, and return once all take requests."""
        for server in self.servers:
            if not server.is_running():
                server.launch()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until all take requests."""
        for server in self.servers:
            server.wait_until_ready()

    def wait_for_leader_but(self, isolated: Server) -> None:
        """Wait until another server leads than the one that is cut off."""
        others = [server for server in self.servers if server is not isolated]
        wait_for(lambda: any(self.leads(server) for server in others), f"without {isolated.name} nobody led")

    def back_up(self) -> None:
        """Take a backup while the servers run; it replaces the one before."""
        shutil.rmtree(self._backup, ignore_errors=True)
        self.save(new_folder(self._backup))

    @property
    def _backup(self) -> Path:
        return self.folder / "backup"

    def restore(self, remedy: Remedy) -> None:
        """Bring the servers back from the backup; they are down. The remedy is applied before clients find them."""
        self.links.forget()
        self.put_back(self._backup)
        self._hide(is_hidden=True)
        self.start()
        self.load(self._backup)
        remedy(self.url)
        for server in self.servers:
            server.stop()
        self._hide(is_hidden=False)
        self.start()

    def _hide(self, *, is_hidden: bool) -> None:
        for server in self.servers:
            server.hide(is_hidden=is_hidden)


class TreeSetup(Setup):
    """Servers that keep one tree of keys: the locks and the guarded data are beside each other in it."""

    @property
    def hosts(self) -> str:
        """All servers, as a URL names them."""
        return ",".join(f"{HOST}:{server.port}" for server in self.servers)

    def url_below(self, base: str) -> str:
        """Return the URL of a part of the tree."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """The URL of the source."""
        return self.url_below("locks")

    @property
    def guard_url(self) -> str:
        """The URL of a guard beside the locks."""
        return self.url_below("app")
