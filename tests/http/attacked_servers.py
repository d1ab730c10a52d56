"""The service of the attacks on real servers: uvicorn and gunicorn, each with two worker processes.

A worker can be frozen: the servers' own supervision, which ends a worker that is silent for too long, has more patience
than a test.
"""

from pathlib import Path

from tests.support.served import Served

WORKERS = 2
_PATIENCE_S = "120"
_HERE = Path(__file__).parent
SERVERS = {
    "uvicorn": (
        *(
            "uvicorn",
            "attacked_service:asgi",
            f"--app-dir={_HERE}",
            "--host={host}",
            "--port={port}",
            "--log-level=warning",
        ),
        *(f"--workers={WORKERS}", f"--timeout-worker-healthcheck={_PATIENCE_S}"),
    ),
    "gunicorn": (
        *("gunicorn", "attacked_service:wsgi", f"--pythonpath={_HERE}", "--bind={host}:{port}", "--log-level=warning"),
        *(f"--workers={WORKERS}", f"--timeout={_PATIENCE_S}", "--no-control-socket"),
    ),
}


class HTTPService(Served):
    """The service on one of the servers."""

    def __init__(self, server: str, folder: Path, *options: str) -> None:
        super().__init__(folder, *SERVERS[server], *options, SERVICE_FOLDER=str(folder))

    def is_ready(self) -> bool:
        """Return whether all workers answer."""
        return len(self.workers()) == WORKERS and super().is_ready()

    def workers(self) -> list[int]:
        """Return the processes that answer requests."""
        return [int(path.name.removeprefix("worker-")) for path in self.folder.glob("worker-*")]
