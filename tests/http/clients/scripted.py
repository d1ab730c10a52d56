"""A service over real sockets that answers each request as a test says, or does not answer it."""

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http.client import parse_headers
from io import BufferedReader
from typing import Self

from fencelock import Sequencer

SEAL = "9f3ab2c1d4e5f607"
"""The seal id of the one resource that a scripted service tells of."""
OWN = "{own}"
"""In a body: the request's token."""
LIMIT_S = 30


@dataclass
class Received:
    """One request as it arrived."""

    method: str
    path: str
    fields: Message
    body: bytes

    @property
    def sequencer(self) -> Sequencer:
        """The sequencer that the request carried."""
        return Sequencer.parse(self.fields["fencing-token"].strip('"'))

    @property
    def key(self) -> str | None:
        """The key that the request carried."""
        return self.fields["idempotency-key"]


@dataclass
class Answer:
    """What to do with one request: answer it, or a part of that, or end the connection."""

    status: int = 200
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b'{"done": true}'
    is_marked: bool = True
    keeps_open: bool = False
    cut_bytes: int = 0
    """How many bytes of the body are never sent."""
    is_lost: bool = False
    is_endless: bool = False
    """The body is one chunk of others that never come."""
    after: threading.Event | None = None
    """What to wait for before the answer."""

    def encoded(self, token: int) -> bytes:
        body = self.body.replace(OWN.encode(), str(token).encode())
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        if self.is_marked:
            fields["fencing-mark"] = f'"{token}";seal="{SEAL}"'
        if self.is_endless:
            del fields["content-length"]
            fields["transfer-encoding"] = "chunked"
            body = b"%x\r\n%s\r\n" % (len(body), body)
        fields |= {} if self.keeps_open else {"connection": "close"}
        lines = [
            f"HTTP/1.1 {self.status} Scripted",
            *(f"{name}: {value}" for name, value in (fields | self.fields).items()),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body[: len(body) - self.cut_bytes]


def problem(kind: str, status: int, detail: str = "why", **members: str) -> Answer:
    """Return a fault as a service of fencelock tells it."""
    body = {"type": f"urn:fencelock:{kind}", "title": kind, "status": status, "detail": detail} | members
    fields = {"content-type": "application/problem+json"}
    return Answer(status, fields, json.dumps(body).encode(), is_marked=False)


LOST = Answer(is_lost=True)


class ScriptedService:
    """A service that gives these answers one after the other, and then a fenced 200 to everything."""

    def __init__(self, answers: Iterable[Answer] = (), *, host: str = "127.0.0.1") -> None:
        self.answers = deque(answers)
        self.received: list[Received] = []
        self.on_received: Callable[[], object] = lambda: None
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="scripted service", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for open_socket in (self._listener, *tuple(self._open)):
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()
        self._thread.join(LIMIT_S)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(connection)
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as reader:
                while (received := _read(reader)) is not None and self._answer(connection, received):
                    pass
        except OSError:
            pass
        finally:
            self._open.discard(connection)

    def _answer(self, connection: socket.socket, received: Received) -> bool:
        """Do as the next answer says; return whether the connection goes on."""
        answer = self.answers.popleft() if self.answers else Answer()
        self.received.append(received)
        self.on_received()
        if answer.after is not None:
            answer.after.wait(LIMIT_S)
        if answer.is_lost:
            return False
        token = received.sequencer.token if received.fields["fencing-token"] else 0
        connection.sendall(answer.encoded(token))
        if answer.is_endless:
            connection.recv(1)  # Until the client ends the connection.
        return answer.keeps_open


def _read(reader: BufferedReader) -> Received | None:
    line = reader.readline().decode().split()
    if not line:
        return None
    fields = parse_headers(reader)
    return Received(line[0], line[1], fields, reader.read(int(fields["content-length"] or 0)))
