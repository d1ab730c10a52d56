"""Requests as no client library writes them, at real servers that log all they can: refused, and no secret shown.

Some are the server's own to refuse; none may end in a 500, and none may write.
"""

import socket
from collections.abc import Iterator

import pytest

from fencelock_lab.servers.server import HOST
from tests.http.attacked_servers import SERVERS, HTTPService
from tests.http.stage import FENCED, OK, Stage
from tests.shown_secrets import note_shown
from tests.support.helpers import DEADLINE_S, wait_until

pytestmark = pytest.mark.process
LOUD = {
    "uvicorn": ("--log-level=trace", "--access-log"),
    "gunicorn": ("--log-level=debug", "--access-logfile=-"),
}
SEAL = '"9f3ab2c1d4e5f607"'
TOKENS = {
    "none": "",
    "empty": "Fencing-Token:",
    "twice": 'Fencing-Token: "{token}"\r\nFENCING-TOKEN: "{token}"',
    "twice in one": 'Fencing-Token: "{token}", "{token}"',
    "no quotation marks": "Fencing-Token: {token}",
    "with a parameter": 'Fencing-Token: "{token}";a=1',
    "an underscore": 'Fencing_Token: "{token}"',
    "a space before the colon": 'Fencing-Token : "{token}"',
    "folded in its middle": 'Fencing-Token: "fl2.\r\n {token}"',
    "a bare CR": 'Fencing-Token: "\r{token}"',
    "a bare LF": 'Fencing-Token: "\n{token}"',
    "a NUL": 'Fencing-Token: "\0{token}"',
    "no ASCII": 'Fencing-Token: "\xe9{token}"',
    "8 kB": f'Fencing-Token: "{{token}}{"a" * 8_000}"',
    "60 kB": f'Fencing-Token: "{{token}}{"a" * 60_000}"',
    "a seal that is a bit": 'Fencing-Token: "{token}"\r\nFencing-Sealed: ?1',
    "a seal of another service": f'Fencing-Token: "{{token}}"\r\nFencing-Sealed: {SEAL}',
    "too many seals": f'Fencing-Token: "{{token}}"\r\nFencing-Sealed: {", ".join([SEAL] * 129)}',
    "a seal that is no ASCII": 'Fencing-Token: "{token}"\r\nFencing-Sealed: "\xff"',
    "no key": 'Fencing-Token: "{token}"\r\nOnce: 1',
    "a key twice": 'Fencing-Token: "{token}"\r\nOnce: 1\r\nIdempotency-Key: a\r\nIdempotency-Key: b',
    "a key that is no ASCII": 'Fencing-Token: "{token}"\r\nOnce: 1\r\nIdempotency-Key: \xe9',
    "a key that is too long": f'Fencing-Token: "{{token}}"\r\nOnce: 1\r\nIdempotency-Key: {"k" * 256}',
    "the token in a trailer": 'Transfer-Encoding: chunked\r\n\r\n0\r\nFencing-Token: "{token}"',
}


@pytest.fixture(scope="module", params=SERVERS)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield a case of the service's fenced handler, on each kind of server."""
    folder = tmp_path_factory.mktemp(request.param)
    with HTTPService(request.param, folder, *LOUD[request.param]) as service, Stage(service, FENCED) as made:
        yield made


def send(port: int, method: str, path: str, fields: str) -> bytes:
    """Send a request as it is, and return the whole answer."""
    lines = [f"{method} {path} HTTP/1.1", "Host: service", "Connection: close", *filter(None, [fields])]
    with socket.create_connection((HOST, port), DEADLINE_S) as line, line.makefile("rb") as answer:
        line.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        try:
            return answer.read()
        except ConnectionResetError:  # The server read no further than to what it refuses.
            return b"HTTP/1.1 400 \r\n"


@pytest.mark.parametrize("name", TOKENS)
def test_a_request_that_is_not_right_is_refused_and_writes_nothing(stage: Stage, name: str) -> None:
    holder = stage.holder()
    answer = send(stage.service.port, "PUT", stage.path, TOKENS[name].format(token=holder.proof))
    status = int(answer.split()[1])
    assert 400 <= status < 500, answer
    assert stage.names() == []
    note_shown(answer.decode("latin-1"))
    assert holder.proof.proof not in answer.decode("latin-1")


def writes_logged(stage: Stage) -> int:
    """Return how many writes the access log has."""
    return stage.service.log.count(f"PUT {stage.path}")


def test_no_log_of_the_server_shows_a_token(stage: Stage) -> None:
    before = writes_logged(stage)
    old = stage.holder()
    assert old.put(*old.get(), "A") == OK
    new = stage.holder()
    new.get()
    old.put("A")
    # A worker may write its line after the client has the answer.
    wait_until(lambda: writes_logged(stage) >= before + 2)
    log = stage.service.log
    note_shown(log)
    for holder in (old, new):
        assert holder.proof.proof not in log
