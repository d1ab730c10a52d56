"""A job in shell calls a service with curl: docs/how-to/call-a-service-with-curl.md, done from top to bottom."""

import dataclasses
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.languages.services import PAGES
from tests.languages.stage import staged
from tests.sql.postgres.fix_postgres import Database, only
from tests.structure.doc_blocks import blocks, commands, files, prints
from tests.structure.test_docs_run import run
from tests.support.guards import sequencer
from tests.support.programs import need

pytestmark = [pytest.mark.slow, pytest.mark.process]
PAGE = (PAGES / "call-a-service-with-curl.md").read_text()
SEAL = "9f3ab2c1d4e5f607"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the files of the page."""
    need("curl")
    for name, text in files(PAGE).items():
        (tmp_path / name).write_text(text)
    return tmp_path


@only("18")
def test_the_page_does_what_it_says(folder: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "service").mkdir()
    with staged("node", folder / "service", database) as stage:
        monkeypatch.setenv("SERVICE", stage.second.url)
        sessions = [block for block in blocks(PAGE) if block.mark == "service"]
        assert sessions
        for command in (found for block in sessions for found in commands(dataclasses.replace(block, mark="run"))):
            done = run(["sh", "-c", command.text], folder)
            assert prints(command.output, done.stdout), f"{command.line}: {done.stdout}"


class Answers(HTTPServer):
    """A service that answers each request as the test says, and keeps the fields that it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, dict[str, str], str]] = []
        self.sealed: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        self.server.sealed.append(self.headers["Fencing-Sealed"])
        status, fields, body = self.server.answers.pop(0)
        if not status:
            return  # The connection ends without an answer.
        self.send_response(status)
        for name, value in {**fields, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    with Answers() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("SERVICE", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("FENCELOCK_SEQUENCER", str(sequencer(17)))
        yield server
        server.shutdown()
        thread.join()


def mark(token: int, *seals: str) -> dict[str, str]:
    return {"Fencing-Mark": ", ".join(f'"{token}";seal="{seal}"' for seal in seals)}


def code_of(folder: Path, script: str) -> int:
    return run(["sh", "-c", f". ./fenced.sh\n{script}"], folder).returncode


ONCE = 'fenced "$SERVICE/"'


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((200, mark(17, SEAL), ""), 0),
        ((200, {}, ""), 76),
        ((200, mark(1, SEAL), ""), 76),
        ((302, {"Location": "/"}, ""), 76),
        ((412, {}, "urn:fencelock:stale-token"), 1),
        ((500, {}, "urn:fencelock:unfenced-write"), 1),
        ((500, {}, "oops"), 76),
        ((503, {}, "urn:fencelock:unavailable"), 75),
        ((503, {}, "a proxy's"), 76),
        ((504, {}, "urn:fencelock:outcome-unknown"), 76),
        ((0, {}, ""), 76),
    ],
)
def test_an_answer_is_judged(
    folder: Path, service: Answers, answer: tuple[int, dict[str, str], str], code: int
) -> None:
    service.answers = [answer]
    assert code_of(folder, ONCE) == code


def test_a_service_that_is_not_there_has_done_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE", "http://127.0.0.1:1")
    monkeypatch.setenv("FENCELOCK_SEQUENCER", str(sequencer(17)))
    assert code_of(folder, ONCE) == 75


def test_each_seal_that_was_told_is_repeated_once(folder: Path, service: Answers) -> None:
    """Of a refusal too, and a token of 16 digits is no seal."""
    one, two, token = "1" * 16, "2" * 16, int("3" * 16)
    service.answers = [(409, mark(token, two), ""), (409, mark(token, two, one), ""), (200, mark(token, one), "")]
    code_of(folder, "\n".join([f"{ONCE} || true"] * 3))
    assert service.sealed == [None, f'"{two}"', f'"{one}","{two}"']
