"""Requests and replies as they are on the wire, for ASGI and WSGI applications in this process."""

import asyncio
import io
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fencelock import FencelockError, Sequencer
from fencelock._remote.fields import decode_marks, encode_sealed
from fencelock._remote.seals import RemoteMark
from fencelock.http.problems import decode_problem

Fields = list[tuple[str, str]]


@dataclass(frozen=True)
class Reply:
    """What came back. Status 599: the application raised instead of answering."""

    status: int
    fields: Fields
    body: bytes
    error: BaseException | None = None

    def field(self, name: str) -> str | None:
        """Return the value of a field; the test fails if it is there twice."""
        (value,) = [value for known, value in self.fields if known.lower() == name] or [None]
        return value

    @property
    def marks(self) -> tuple[RemoteMark, ...]:
        """The marks that the reply tells."""
        return decode_marks(self.field("fencing-mark") or "")

    @property
    def seals(self) -> list[str]:
        """The seal ids that the reply tells."""
        return [mark.seal_id for mark in self.marks]

    @property
    def kind(self) -> str | None:
        """The kind of the problem; None if it is no problem of ours."""
        if self.problem is None:
            return None
        kind: str = json.loads(self.body)["type"]
        return kind.removeprefix("urn:fencelock:")

    @property
    def problem(self) -> FencelockError | None:
        """The error that a client raises for it."""
        told = re.search(rb'"token": "(\d+)"', self.body)
        return decode_problem(self.field("content-type") or "", self.body, int(told[1]) if told else 0)


UNANSWERED = 599


def fields_of(lease: Any = None, sealed: Iterable[str] = (), key: str | None = None) -> Fields:
    """Return the fields that a client sends with a lease."""
    fields = []
    if lease is not None:
        sequencer = lease if isinstance(lease, Sequencer) else lease.sequencer
        fields.append(("Fencing-Token", f'"{sequencer}"'))
    if sealed := list(sealed):
        fields.append(("Fencing-Sealed", encode_sealed(sealed)))
    if key is not None:
        fields.append(("Idempotency-Key", f'"{key}"'))
    return fields


class Service:
    """An application behind one face: `send` raw fields, or `call` it as a client with a lease does."""

    def __init__(self, send: Callable[[str, str, Fields], Reply]) -> None:
        self.send = send

    def call(
        self, method: str, path: str, lease: Any = None, sealed: Iterable[str] = (), key: str | None = None
    ) -> Reply:
        """Send a request as the client of a lease does."""
        return self.send(method, path, fields_of(lease, sealed, key))


def over_asgi(app: Any) -> Service:
    """Return an ASGI application as a service."""

    def send(method: str, path: str, fields: Fields) -> Reply:
        sent: list[Any] = []
        error = asyncio.run(_answer(app, scope_of(method, path, fields), sent))
        return reply_of(sent, error)

    return Service(send)


def scope_of(method: str, path: str, fields: Fields) -> dict[str, Any]:
    """Return the scope of a request."""
    path, _, query = path.partition("?")
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in [("Host", "localhost"), *fields]]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }


async def _answer(app: Any, scope: dict[str, Any], sent: list[Any]) -> BaseException | None:
    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return requests.pop() if requests else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    try:
        await app(scope, receive, send)
    except Exception as error:
        return error
    return None


def reply_of(sent: list[Any], error: BaseException | None = None) -> Reply:
    """Return the reply that these messages are."""
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert len(starts) <= 1, "an answer has one head"
    if not starts:
        return Reply(UNANSWERED, [], b"", error)
    fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in starts[0]["headers"]]
    body = b"".join(message.get("body", b"") for message in sent)
    return Reply(starts[0]["status"], fields, body, error)


def over_wsgi(app: Any) -> Service:
    """Return a WSGI application as a service."""

    def send(method: str, path: str, fields: Fields) -> Reply:
        heads: list[tuple[str, Fields]] = []

        def start_response(status: str, headers: Fields, exc_info: Any = None) -> Any:
            if heads and exc_info is None:
                raise AssertionError("an answer has one head")
            heads[:] = [(status, headers)]
            return parts.append

        parts: list[bytes] = []
        try:
            body = app(environ_of(method, path, fields), start_response)
            try:
                for part in body:
                    assert heads, "the head comes before the body"
                    parts.append(part)
            finally:
                getattr(body, "close", lambda: None)()
        except Exception as error:
            return Reply(UNANSWERED, [], b"", error)
        status, headers = heads[0]
        return Reply(int(status[:3]), headers, b"".join(parts))

    return Service(send)


def environ_of(method: str, path: str, fields: Fields) -> dict[str, Any]:
    """Return the environment of a request, as servers make it: fields of one name joined by commas."""
    path, _, query = path.partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in [("Host", "localhost"), *fields]:
        variable = f"HTTP_{name.upper().replace('-', '_')}"
        environ[variable] = f"{environ[variable]},{value}" if variable in environ else value
    return environ
