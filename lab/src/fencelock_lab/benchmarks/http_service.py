"""The service that the benchmark of the middleware asks, for uvicorn (`asgi`) and gunicorn (`wsgi`).

`PUT /VARIANT/CLIENT` writes the body into one row of the client's own SQLite file: clients do not wait for each other.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

import fencelock
from fencelock.http import FencingMiddleware, WSGIFencingMiddleware, sequencer
from fencelock_lab.benchmarks.guards import LOCK, RESOURCE

NO_CHECK, BY_HAND, FENCED = "no-check", "by-hand", "fenced"
"""A plain transaction; a guard, and the field read by hand; a guard and the middleware."""
FOLDER = "FENCELOCK_BENCH_FOLDER"
FIELD = "fencing-token"
_UPDATE = "UPDATE report SET text = ?"


def file_of(client: str) -> Path:
    """Return the file of a client."""
    return Path(os.environ[FOLDER], f"client-{client}.db")


@cache
def _guard(client: str) -> fencelock.Guard:
    return fencelock.guard(f"sqlite:///{file_of(client)}", resource=RESOURCE, lock=LOCK)


@cache
def _connection(client: str, thread: int) -> sqlite3.Connection:
    connection = sqlite3.connect(file_of(client).with_suffix(".plain"), isolation_level=None, timeout=30)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def write(variant: str, client: str, body: bytes, token: str) -> None:
    """Write as the variant does."""
    if variant == NO_CHECK:
        native = _connection(client, get_ident())
        native.execute("BEGIN IMMEDIATE")
        native.execute(_UPDATE, (body,))
        native.execute("COMMIT")
        return
    carried = fencelock.Sequencer.parse(token[1:-1]) if variant == BY_HAND else sequencer()
    with _guard(client).transaction(carried) as connection:
        connection.execute(_UPDATE, (body,))


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    """Be the handler of each variant, for ASGI."""
    body, is_whole = b"", False
    while not is_whole:
        message = await receive()
        body += message.get("body", b"")
        is_whole = not message.get("more_body", False)
    _, variant, client = scope["path"].split("/")
    token = dict(scope["headers"]).get(FIELD.encode(), b"").decode()
    await asyncio.to_thread(write, variant, client, body, token)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


_FENCED = FencingMiddleware(_answer)


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the middleware, or without."""
    if scope["type"] == "http":
        app = _FENCED if scope["path"].startswith(f"/{FENCED}/") else _answer
        await app(scope, receive, send)


def _answer_wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Be the handler of each variant, for WSGI."""
    _, variant, client = environ["PATH_INFO"].split("/")
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    write(variant, client, body, environ.get("HTTP_FENCING_TOKEN", ""))
    start_response("200 OK", [("Content-Length", "0")])
    return [b""]


_FENCED_WSGI = WSGIFencingMiddleware(_answer_wsgi)


def wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with the middleware, or without."""
    app = _FENCED_WSGI if environ["PATH_INFO"].startswith(f"/{FENCED}/") else _answer_wsgi
    return app(environ, start_response)
