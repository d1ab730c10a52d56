"""A private `rclone serve s3`, which ignores every condition of a write: what a guard at S3 has to refuse.

Never: a server whose conditions anybody may rely on.
"""

import socket
from contextlib import suppress

from fencelock_lab.servers.fleet import LoneServerFleet
from fencelock_lab.servers.programs import RCLONE, need
from fencelock_lab.servers.seaweedfs import BUCKET
from fencelock_lab.servers.server import Server

_ANSWER_S = 2.0


class RcloneServer(Server):
    """A server over a folder; a folder in it is a bucket."""

    def command(self) -> list[object]:
        """Return the command that starts it."""
        options = ["--addr", self.address, "--config", self.folder / "rclone.conf", "--vfs-cache-mode", "off"]
        return [need(RCLONE), "serve", "s3", self.data, *options]

    def launch(self) -> None:
        """Start it without waiting; it makes no folder by itself."""
        for folder in (self.data, self.data / BUCKET):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
        super().launch()

    def is_ready(self) -> bool:
        """Return whether it accepts connections."""
        with suppress(OSError), socket.create_connection((self.host, self.port), _ANSWER_S):
            return True
        return False

    @property
    def url(self) -> str:
        """The endpoint of the server."""
        return f"http://{self.address}"


class RcloneFleet(LoneServerFleet[RcloneServer]):
    """Makes rclone servers."""

    kind = "rclone"
    server = RcloneServer
