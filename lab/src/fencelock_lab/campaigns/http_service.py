"""A service that keeps texts, for campaigns to attack: `python -m fencelock_lab.campaigns.http_service`.

    fenced           WSGIFencingMiddleware, and the guard in the handler's own transaction
    compare-first    a negative control: a gate compares the token with its mark, and then runs the handler

Promise: its processes share one socket and one SQLite file, and remember nothing between requests. They end with the
process that has started them. It needs nothing but the standard library. Copy the first, never the second.
"""

import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import fencelock
from fencelock.http import WSGIFencingMiddleware, sequencer
from fencelock_lab.campaigns.http_client import TEXT
from fencelock_lab.campaigns.worker import READY, die_with_the_conductor
from fencelock_lab.servers.server import HOST

FENCED, COMPARE_FIRST = "fenced", "compare-first"
PROCESSES = 2
_BACKLOG = 128
_TABLES = (
    "PRAGMA journal_mode = wal",
    "CREATE TABLE texts (name TEXT PRIMARY KEY, text TEXT)",
    "CREATE TABLE gate (name TEXT PRIMARY KEY, mark INTEGER)",
)
_OK, _CUT_OFF = "200 OK", "400 Bad Request"
Environ = dict[str, Any]
Application = Callable[[Environ, Any], Iterable[bytes]]


class TextService:
    """The service, with one of its two handlers. A context manager: its processes run inside."""

    def __init__(self, handler: str, folder: Path) -> None:
        self._handler = handler
        self.file = folder / "texts.db"
        self._processes = ExitStack()
        self.url = ""

    def __enter__(self) -> Self:
        with _connected(self.file) as connection:
            for statement in _TABLES:
                connection.execute(statement)
        with ExitStack() as starting:
            listener = starting.enter_context(socket.create_server((HOST, 0), backlog=_BACKLOG))
            self.url = f"http://{HOST}:{listener.getsockname()[1]}/texts/"
            for _ in range(PROCESSES):
                starting.enter_context(_process(self._handler, self.file, listener.fileno()))
            self._processes = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()


@contextmanager
def _process(handler: str, file: Path, listener: int) -> Iterator[None]:
    """One process of the service, which answers requests inside the block."""
    words = ("-P", "-m", "fencelock_lab.campaigns.http_service", handler, str(file), str(listener))
    log = file.with_suffix(".log")
    with (
        log.open("ab") as stderr,
        subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=stderr, pass_fds=[listener], process_group=0
        ) as process,
    ):
        try:
            assert process.stdout is not None
            if process.stdout.readline().decode().strip() != READY:
                raise fencelock.SourceError(f"the service of texts ended with {process.wait()}: {log.read_text()}")
            yield
        finally:
            process.kill()


# --- the handlers -----------------------------------------------------------------------------------------------------
def fenced(file: Path) -> Application:
    """Return the handler whose guard checks the mark in the transaction that reads or writes."""

    def answer(environ: Environ, start_response: Any) -> Iterable[bytes]:
        body, name, carried = _body(environ), _name(environ), sequencer()
        if body is None:
            return _answer(start_response, _CUT_OFF)
        guard = fencelock.guard(f"sqlite:///{file}", resource=name, lock=carried.lock)
        with guard.transaction(carried) as connection:
            text = _handle(connection, environ, name, body)
        return _answer(start_response, _OK, text)

    return WSGIFencingMiddleware(answer)


def compare_first(file: Path) -> Application:
    """Return a handler behind a gate that has a mark of its own."""

    def gate(environ: Environ, start_response: Any) -> Iterable[bytes]:
        name = _name(environ)
        try:
            token = fencelock.Sequencer.parse(environ.get("HTTP_FENCING_TOKEN", "").strip('"')).token
        except ValueError:
            return _problem(start_response, "428 Precondition Required", "token-required")
        mark = _raised_mark(file, name, token)
        if mark > token:
            return _problem(start_response, "412 Precondition Failed", "stale-token", name, token, mark)

        def start_marked(status: str, fields: list[tuple[str, str]], *more: Any) -> Any:
            return start_response(status, [*fields, ("Fencing-Mark", f'"{mark}";seal="{0:016}"')], *more)

        return _unfenced(file, environ, start_marked)

    return gate


def _raised_mark(file: Path, name: str, token: int) -> int:
    """Raise the gate's mark to the token, unless it is higher, and return it."""
    with _transaction(file) as connection:
        marks = connection.execute("SELECT mark FROM gate WHERE name = ?", (name,))
        mark = max([token, *(int(mark) for (mark,) in marks)])
        connection.execute("INSERT OR REPLACE INTO gate VALUES (?, ?)", (name, mark))
    return mark


def _unfenced(file: Path, environ: Environ, start_response: Any) -> Iterable[bytes]:
    """Answer in a transaction that compares nothing."""
    body = _body(environ)
    if body is None:
        return _answer(start_response, _CUT_OFF)
    with _transaction(file) as connection:
        text = _handle(connection, environ, _name(environ), body)
    return _answer(start_response, _OK, text)


HANDLERS: dict[str, Callable[[Path], Application]] = {FENCED: fenced, COMPARE_FIRST: compare_first}


def _name(environ: Environ) -> str:
    """Return the name of the text: the last part of the path."""
    return str(environ["PATH_INFO"]).rpartition("/")[2]


def _body(environ: Environ) -> bytes | None:
    """Return the body of a request, once it is there; None if the client has gone in the middle of it."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body: bytes = environ["wsgi.input"].read(length)
    return body if len(body) == length else None


def _handle(connection: Any, environ: Environ, name: str, body: bytes) -> str:
    """Read or write the text, and return what is answered."""
    if environ["REQUEST_METHOD"] == "PUT":
        connection.execute("INSERT OR REPLACE INTO texts VALUES (?, ?)", (name, body.decode()))
        return ""
    ((text,),) = connection.execute("SELECT coalesce(max(text), '') FROM texts WHERE name = ?", (name,)).fetchall()
    return str(text)


def _answer(start_response: Any, status: str, text: str = "", kind: str = TEXT) -> list[bytes]:
    body = text.encode()
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _problem(start_response: Any, status: str, kind: str, name: str = "", token: int = 0, mark: int = 0) -> list[bytes]:
    members = {"resource": name, "token": str(token), "mark": str(mark), "detail": f"the mark of {name} is {mark}"}
    problem = json.dumps({"type": f"https://fencelock.example/problems/{kind}", "status": int(status[:3]), **members})
    return _answer(start_response, status, problem, "application/problem+json")


# --- files and sockets ------------------------------------------------------------------------------------------------
@contextmanager
def _connected(file: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(file, timeout=30, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _transaction(file: Path) -> Iterator[sqlite3.Connection]:
    """A transaction that knows nothing of fencelock."""
    with _connected(file) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, on a socket that listens already."""

    daemon_threads = True

    def __init__(self, listener: int, app: Application) -> None:
        super().__init__((HOST, 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=listener)
        self.server_name, self.server_port = self.socket.getsockname()
        self.setup_environ()
        self.set_app(app)

    def handle_error(self, *_: object) -> None:
        """Be silent: clients are killed in the middle of their requests here."""


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # Or it does not say that it wants a body.

    def log_message(self, *_: object) -> None:
        """Be silent."""


def main(handler: str, file: str, listener: str) -> None:
    """Answer requests until the process that has started this one ends."""
    die_with_the_conductor()
    server = _Server(int(listener), HANDLERS[handler](Path(file)))
    print(READY, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
