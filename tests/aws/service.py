"""A made-up service that answers as a test says, and counts the requests that reached it."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

CUT = b""
"""The answer of a service that executes a request and closes the connection: the reply is lost."""


NUMBERED = {"x-amz-request-id": "A1", "x-amzn-RequestId": "A1"}
"""What tells a reply of S3's and of DynamoDB's from one of what stands between."""


def answer(status: str, body: bytes = b"{}", **headers: str) -> bytes:
    """Return a reply of the service's as HTTP writes it."""
    return bare_answer(status, body, **NUMBERED, **headers)


def bare_answer(status: str, body: bytes = b"{}", **headers: str) -> bytes:
    """Return a reply as anybody writes it."""
    lines = [f"{name}: {value}" for name, value in {"Content-Length": str(len(body)), **headers}.items()]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body


class Service:
    """Answers each request with the next of `answers`, and with the last one from then on; None: not at all."""

    def __init__(self, answers: list[bytes | None]) -> None:
        self.answers = answers
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._held.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as stream:
            while head := _read_head(stream):
                length = re.search(rb"content-length: *(\d+)", head.lower())
                if b"100-continue" in head.lower():
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.requests.append(head + stream.read(int(length[1]) if length else 0))
                reply = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if reply == CUT:
                    return
                if reply is not None:
                    connection.sendall(reply)
                    if b"Connection: close" in reply:
                        return

    def close(self) -> None:
        """Answer nothing any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._held:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()


def _read_head(stream: BinaryIO) -> bytes:
    """Return the lines before the empty one; nothing at the end of the connection."""
    lines = []
    while (line := stream.readline()) not in (b"\r\n", b""):
        lines.append(line)
    return b"".join(lines)


@contextmanager
def service(*answers: bytes | None) -> Iterator[Service]:
    """Yield a running service."""
    running = Service(list(answers))
    try:
        yield running
    finally:
        running.close()


@contextmanager
def service_without_tls(reply: bytes) -> Iterator[int]:
    """Yield the port of a server that answers the first bytes of each connection, whatever they are, and ends it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError), connection:
                connection.recv(65_536)
                connection.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
