"""A private Redis that flushes every write, as the other stores do.

fencelock refuses it as a source of tokens, so there is no work by hand to compare it with.
"""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from fencelock_lab.benchmarks.stores import Site
from tests.helpers import wait_until
from tests.private_server import reserve_port


@contextmanager
def site() -> Iterator[Site]:
    """Yield a server that is gone afterwards."""
    if (program := shutil.which("redis-server")) is None:
        raise FileNotFoundError("redis-server is missing: as root, run apt-get install redis-server")
    version = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as folder, reserve_port() as reserved:
        port = reserved.getsockname()[1]
        listen = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        flush = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        server = subprocess.Popen([program, *listen, *flush], stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: _answers(port))
            yield Site("redis", f"Redis {version.partition('v=')[2].split()[0]}", f"redis://127.0.0.1:{port}")
        finally:
            server.kill()
            server.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5) == b"+PONG"
    except OSError:
        return False
