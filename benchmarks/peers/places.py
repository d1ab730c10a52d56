"""Where contenders meet: a private server, or a folder, that is gone afterwards."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.helpers import wait_until
from tests.private_server import reserve_port
from tests.servers import need


def place(store: str) -> AbstractContextManager[str]:
    """Return a block in which the store may be used under the URL that it yields."""
    if store == "postgres":
        from benchmarks.postgres import private_server as postgres_server

        return postgres_server()
    if store == "mysql":
        from benchmarks.mysql import private_server as mysql_server

        return mysql_server()
    return {"files": _folder, "redis": _redis}[store]()


STORES = ("files", "mysql", "postgres", "redis")


@contextmanager
def _folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="fenceline-bench-", dir=Path.cwd()) as folder:
        yield f"sqlite:///{folder}/locks.db"


@contextmanager
def _redis() -> Iterator[str]:
    """Yield the address of a Redis that flushes every write, as the other stores do."""
    with tempfile.TemporaryDirectory(prefix="fenceline-bench-") as folder, reserve_port() as reserved:
        port = reserved.getsockname()[1]
        command = [need("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        server = subprocess.Popen(
            [*command, "--appendonly", "yes", "--appendfsync", "always"], stdout=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: _answers(port))
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


def _answers(port: int) -> bool:
    import socket

    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5) == b"+PONG"
    except OSError:
        return False
