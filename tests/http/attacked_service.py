"""The service that the attacks hit, for uvicorn (`asgi`) and gunicorn (`wsgi`): it keeps a list of names for each case.

`/fenced/CASE` has the guard's mark in the write's own transaction. `/compared/CASE` is the negative control: a gate
compares the token with its mark, and then runs the handler. Never copy that one. The field `Stand` of a request names
the point at which its worker freezes itself: `checked`, before the handler's write; `written`, before its commit;
`committed`, after it.
"""

import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import fencelock
from fencelock.http import FencingMiddleware, WSGIFencingMiddleware, once, sequencer

FOLDER = Path(os.environ["SERVICE_FOLDER"])
LOCK, RESOURCE = "nightly-report", "names"
WORKER = "worker"
"""The field of each answer that names the process that gave it."""
SEAL = "c0de" * 4
"""The id by which the negative control names its only mark."""
Fields = dict[str, str]
"""The header of a request, with the names in lower case."""


class Answer(NamedTuple):
    """What a handler answers; `mark` is what the negative control says of its own mark."""

    body: bytes = b""
    status: int = 200
    mark: int | None = None


def fields_of(answer: Answer) -> list[tuple[str, str]]:
    """Return the header of an answer."""
    marked = [] if answer.mark is None else [("fencing-mark", f'"{answer.mark}";seal="{SEAL}"')]
    return [("content-type", "application/json"), (WORKER, str(os.getpid())), *marked]


def stand(fields: Fields, point: str) -> None:
    """Freeze this worker if the request asks for it."""
    if fields.get("stand") == point:
        # A signal to this thread: the kernel stops it before its next instruction.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


# --- the mark in the write's own transaction --------------------------------------------------------------------------
def fenced(method: str, case: str, body: bytes, fields: Fields) -> Answer:
    """Handle a request behind the middleware."""
    guard = fencelock.guard(f"sqlite:///{FOLDER / case}.db", resource=RESOURCE, lock=LOCK)
    if method == "GET":
        with guard.transaction(sequencer()) as connection:
            return Answer(names_in(connection))
    stand(fields, "checked")
    with guard.transaction(sequencer(), once=once(body=body) if "once" in fields else None) as connection:
        fill(connection, body)
        stand(fields, "written")
    stand(fields, "committed")
    return Answer()


# --- the negative control ---------------------------------------------------------------------------------------------
def compared(method: str, case: str, body: bytes, fields: Fields) -> Answer:
    """Compare the token with the mark, and then run the handler."""
    token = fencelock.Sequencer.parse(fields["fencing-token"].strip('"')).token
    with plain(case) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS mark (id INTEGER PRIMARY KEY, token INTEGER)")
        ((mark,),) = connection.execute("SELECT coalesce(max(token), 0) FROM mark").fetchall()
        if token < mark:
            return Answer(status=412)
        connection.execute("REPLACE INTO mark VALUES (1, ?)", (token,))
    stand(fields, "checked")
    with plain(case) as connection:
        if method == "GET":
            return Answer(names_in(connection), mark=token)
        fill(connection, body)
        stand(fields, "written")
    stand(fields, "committed")
    return Answer(mark=token)


@contextmanager
def plain(case: str) -> Iterator[sqlite3.Connection]:
    """A transaction of a case's file that knows nothing of fencelock."""
    connection = sqlite3.connect(FOLDER / f"{case}.db", timeout=30, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()


def names_in(connection: Any) -> bytes:
    ((names,),) = connection.execute("SELECT names FROM names").fetchall()
    return str(names).encode()


def fill(connection: Any, names: bytes) -> None:
    connection.execute("UPDATE names SET names = ?, writes = writes + 1", (names.decode(),))


# --- ASGI -------------------------------------------------------------------------------------------------------------
Handler = Callable[[str, str, bytes, Fields], Answer]


def endpoint(handler: Handler) -> Callable[[Request], Any]:
    """Return a handler as Starlette takes it; it runs in a thread, as an endpoint of FastAPI that is no coroutine."""

    async def answer(request: Request) -> Response:
        case, body = request.path_params["case"], await request.body()
        done = await run_in_threadpool(handler, request.method, case, body, dict(request.headers))
        return Response(done.body, done.status, dict(fields_of(done)))

    return answer


_METHODS = ["GET", "PUT"]
_FENCED = Starlette(
    routes=[Route("/fenced/{case}", endpoint(fenced), methods=_METHODS)],
    middleware=[Middleware(FencingMiddleware, lock=LOCK)],
)
_COMPARED = Starlette(routes=[Route("/compared/{case}", endpoint(compared), methods=_METHODS)])


async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
    """Run one of the two applications."""
    app: ASGIApp = _COMPARED if scope.get("path", "").startswith("/compared/") else _FENCED
    await app(scope, receive, send)


# --- WSGI -------------------------------------------------------------------------------------------------------------
def application(handler: Handler) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """Return a handler as a WSGI application."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        fields = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        case = environ["PATH_INFO"].rpartition("/")[2]
        done = handler(environ["REQUEST_METHOD"], case, body, fields)
        start_response(f"{done.status} -", [*fields_of(done), ("content-length", str(len(done.body)))])
        return [done.body]

    return answer


_FENCED_WSGI = WSGIFencingMiddleware(application(fenced), lock=LOCK)
_COMPARED_WSGI = application(compared)


def wsgi(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Run one of the two applications."""
    app = _COMPARED_WSGI if environ["PATH_INFO"].startswith("/compared/") else _FENCED_WSGI
    return app(environ, start_response)


(FOLDER / f"worker-{os.getpid()}").touch()
