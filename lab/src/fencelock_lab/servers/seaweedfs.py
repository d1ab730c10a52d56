"""A private SeaweedFS server, which speaks S3 and keeps its conditions: all its parts in one process.

Promise: it tells nobody that it runs. Never: a server for several machines; a filer that is frozen for longer than 5 s
is outside of what SeaweedFS promises.
"""

import http.client
from contextlib import suppress
from pathlib import Path

from fencelock_lab.servers.fleet import LoneServerFleet
from fencelock_lab.servers.programs import WEED, Wrap, as_runner, need
from fencelock_lab.servers.server import HOST, Server

BUCKET = "fencelock"
_ANSWER_S = 2.0
_PARTS = ("master", "volume", "filer", "s3")
_OK = 200


class SeaweedServer(Server):
    """A server with one bucket, over a data folder that is empty at first."""

    def __init__(self, folder: Path, *, host: str = HOST, wrap: Wrap = as_runner) -> None:
        super().__init__(folder, host=host, wrap=wrap)
        for part in _PARTS:
            self.reserve_port(f"{part}.grpc")
            if part != "s3":
                self.reserve_port(part)

    def command(self) -> list[object]:
        """Return the command that starts it."""
        options = {
            "dir": self.data,
            "ip": self.host,
            "ip.bind": self.host,
            "filer": "true",
            "s3": "true",
            "s3.port": self.port,
            **{f"{part}.port": self.ports[part] for part in _PARTS if part != "s3"},
            **{f"{part}.port.grpc": self.ports[f"{part}.grpc"] for part in _PARTS},
            "filer.localSocket": self.folder / "filer.sock",
            "s3.localSocket": self.folder / "s3.sock",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "master.telemetry": "false",
            # By default a lone master waits 10 s for others before it leads, and a volume as long before it stops.
            "master.electionTimeout": "1s",
            "volume.preStopSeconds": 0,
            "master.volumeSizeLimitMB": 256,
            "volume.max": 20,
            **self.settings,
        }
        return [need(WEED), "-logtostderr=true", "server", *(f"-{name}={value}" for name, value in options.items())]

    def launch(self) -> None:
        """Start it without waiting; it makes no data folder by itself."""
        self.data.mkdir(mode=0o777, exist_ok=True)
        self.data.chmod(0o777)
        super().launch()

    def is_ready(self) -> bool:
        """Return whether it takes objects; the bucket is there then."""
        with suppress(OSError, http.client.HTTPException):
            self.ask("PUT", f"/{BUCKET}")
            return self.ask("PUT", f"/{BUCKET}/ready", b"yes") == _OK
        return False

    def ask(self, method: str, path: str, body: bytes = b"") -> int:
        """Send an unsigned request, and return the status of its answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_ANSWER_S)
        try:
            connection.request(method, path, body)
            return connection.getresponse().status
        finally:
            connection.close()

    @property
    def url(self) -> str:
        """The endpoint of the server."""
        return f"http://{self.address}"


class SeaweedFleet(LoneServerFleet[SeaweedServer]):
    """Makes SeaweedFS servers, and shares one."""

    kind = "seaweedfs"
    server = SeaweedServer
