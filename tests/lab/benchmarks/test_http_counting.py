"""The proxy of the benchmarks counts HTTP requests, whatever is in them."""

import http.client
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from fencelock_lab.benchmarks.http_counting import HttpCounter

BODY = b"x" * 100_000 + b"\r\n\r\nPUT / HTTP/1.1\r\ncontent-length: 5\r\n\r\n"


class Handler(BaseHTTPRequestHandler):
    """Answers with the length of what came."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        """Read the body, and answer."""
        length = len(self.rfile.read(int(self.headers["Content-Length"])))
        answer = str(length).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_requests_are_counted_and_bodies_are_not(port: int) -> None:
    with HttpCounter(port) as counter:
        for number in (1, 2):
            client = http.client.HTTPConnection("127.0.0.1", counter.port)
            for body, expected in ((BODY, len(BODY)), (b"", 0)):
                client.request("PUT", "/", body)
                assert int(client.getresponse().read()) == expected
            client.close()
            assert counter.number == 2 * number
