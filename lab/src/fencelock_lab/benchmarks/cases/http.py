"""A write at an HTTP service: with the middleware, without it, and without any check; over ASGI and WSGI.

uvicorn and gunicorn have as many worker processes as there are clients, which send requests in step, each over one
connection. The same processes serve all variants, over the same connections.
"""

import http.client
import multiprocessing
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache, partial
from multiprocessing.synchronize import Barrier
from typing import TYPE_CHECKING, Any

import fencelock
from fencelock.protocol import one_way
from fencelock_lab.benchmarks.cases.guarded import serve_turns, turns_of
from fencelock_lab.benchmarks.child import Child
from fencelock_lab.benchmarks.guards import LOCK, RESOURCE
from fencelock_lab.benchmarks.http_service import BY_HAND, FENCED, FOLDER, NO_CHECK, file_of
from fencelock_lab.benchmarks.measure import Measurement, compare
from fencelock_lab.benchmarks.stores import Operation, Site
from fencelock_lab.benchmarks.stores.sqlite import folder_of
from fencelock_lab.servers.server import HOST, reserve_port

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

CLIENTS = (1, 8)
BATCH = 20
BODY = b"x" * 100
VARIANTS = {
    "guard.transaction, the field read by hand": BY_HAND,
    "no check at all": NO_CHECK,
    "guard.transaction and the middleware": FENCED,
}
"""The first is the floor: all that the middleware adds is in the last one's ratio."""
AIM = 1.25
START_TIMEOUT_S = 60.0
_IDLE_S = 600
_MODULE = "fencelock_lab.benchmarks.http_service"
SERVERS = {
    "ASGI": (
        *("uvicorn", f"{_MODULE}:asgi", "--host={host}", "--port={port}", "--workers={workers}"),
        *("--log-level=warning", f"--timeout-keep-alive={_IDLE_S}"),
    ),
    "WSGI": (
        *("gunicorn", f"{_MODULE}:wsgi", "--bind={host}:{port}", "--workers={workers}", "--worker-class=gthread"),
        *("--threads=2", "--log-level=warning", f"--keep-alive={_IDLE_S}", f"--timeout={_IDLE_S}"),
    ),
}
_SEAL = re.compile('seal=("[0-9a-f]+")')


def run(site: Site, seconds: float) -> list[Measurement]:
    """Measure each kind of server with each number of clients."""
    folder = folder_of(site.url)
    os.environ[FOLDER] = str(folder)
    for number in range(max(CLIENTS)):
        _prepare(number)
    results = []
    share = seconds / len(SERVERS) / len(CLIENTS)
    for name, words in SERVERS.items():
        for clients in CLIENTS:
            with _served(words, clients) as port:
                taken = _measure(port, clients, share)
            case = f"a write over HTTP, {name}, {clients} client{'s' * (clients > 1)}"
            results += compare(case, taken, "us", {list(VARIANTS)[-1]: AIM})
    return results


def _prepare(client: int) -> None:
    """Make the two files of a client: one with a guard's mark, and a plain one."""
    path = file_of(str(client))
    for each in (path, path.with_suffix(".plain")):
        with closing(sqlite3.connect(each, isolation_level=None)) as native:
            native.execute("PRAGMA journal_mode = wal")
            native.execute("CREATE TABLE report (text TEXT)")
            native.execute("INSERT INTO report VALUES ('')")
    guard = fencelock.guard(f"sqlite:///{path}", resource=RESOURCE, lock=LOCK)
    guard.protect("report")
    guard.seal(_sequencer(client))


def _sequencer(client: int) -> fencelock.Sequencer:
    """Return a tenure of the client's own: a server's process remembers which files each has sealed."""
    return fencelock.Sequencer("bench", "history", LOCK, client + 1, one_way(f"the claim of client {client}"))


@contextmanager
def _served(words: tuple[str, ...], workers: int) -> Iterator[int]:
    """Run a server with so many processes, and yield its port."""
    with closing(reserve_port()) as reserved:
        port: int = reserved.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", *(word.format(host=HOST, port=port, workers=workers) for word in words)],
            start_new_session=True,
        )
        try:
            _wait_until_ready(port)
            yield port
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_ready(port: int) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with closing(http.client.HTTPConnection(HOST, port, timeout=START_TIMEOUT_S)) as connection:
                _put(connection, NO_CHECK, 0, {})
                return
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _measure(port: int, clients: int, seconds: float) -> dict[str, list[float]]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(clients)
    with ExitStack() as stack:
        children = [
            stack.enter_context(closing(Child(context, _ask, f"client {number}", number, port, barrier)))
            for number in range(clients)
        ]
        return turns_of(children, seconds)


def _ask(_: str, client: int, port: int, barrier: Barrier, line: "Connection[Any, Any]") -> None:
    """Be a client."""

    @cache
    def variants() -> dict[str, Operation]:
        connection = http.client.HTTPConnection(HOST, port, timeout=START_TIMEOUT_S)
        fields = {"Fencing-Token": f'"{_sequencer(client)}"'}
        # As a client does that has read before it writes: the service need not seal again.
        told = _put(connection, FENCED, client, fields).headers.get("Fencing-Mark", "")
        fields["Fencing-Sealed"] = ", ".join(_SEAL.findall(told))
        return {name: partial(_put, connection, variant, client, fields) for name, variant in VARIANTS.items()}

    serve_turns(line, barrier, variants, BATCH)


def _put(
    connection: http.client.HTTPConnection, variant: str, client: int, fields: dict[str, str]
) -> http.client.HTTPResponse:
    connection.request("PUT", f"/{variant}/{client}", BODY, fields)
    answer = connection.getresponse()
    told = answer.read()
    if answer.status != http.client.OK:
        raise ValueError(f"{variant}: {answer.status} {told!r}")
    return answer
