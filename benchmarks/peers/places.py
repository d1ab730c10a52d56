"""Where contenders meet: a private server, or a folder, that is gone afterwards."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from fenceline.stores.registry import source_store
from tests.helpers import wait_until
from tests.private_server import reserve_port


def place(store: str) -> AbstractContextManager[str]:
    """Return a block in which the store may be used under the URL that it yields."""
    if store == "postgres":
        from benchmarks.postgres import private_server as postgres_server

        return postgres_server()
    if store == "mysql":
        from benchmarks.mysql import private_server as mysql_server

        return mysql_server()
    return {"etcd": _etcd, "files": _folder, "redis": _redis, "zookeeper": _zookeeper}[store]()


STORES = ("etcd", "files", "mysql", "postgres", "redis", "zookeeper")


@contextmanager
def _etcd() -> Iterator[str]:
    from tests.etcd.fix_etcd import EtcdFleet

    with _open_folder() as folder, closing(EtcdFleet(folder)) as fleet:
        yield _installed(fleet.shared(1).url())


@contextmanager
def _zookeeper() -> Iterator[str]:
    from tests.zookeeper.fix_zookeeper import Fleet

    with _open_folder() as folder, closing(Fleet(folder)) as fleet:
        yield _installed(fleet.shared().url())


def _installed(url: str) -> str:
    source_store(url).install()
    return url


@contextmanager
def _open_folder() -> Iterator[Path]:
    """Yield a folder on a disk, which servers reach that run as another user."""
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def _folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="fenceline-bench-", dir=Path.cwd()) as folder:
        yield f"sqlite:///{folder}/locks.db"


@contextmanager
def _redis() -> Iterator[str]:
    """Yield the address of a Redis that flushes every write, as the other stores do. No test needs the program."""
    if (program := shutil.which("redis-server")) is None:
        raise SystemExit("redis-server is missing: as root, run apt-get install redis-server")
    with tempfile.TemporaryDirectory(prefix="fenceline-bench-") as folder, reserve_port() as reserved:
        port = reserved.getsockname()[1]
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
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
