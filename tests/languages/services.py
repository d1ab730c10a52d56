"""The services of the how-to pages as processes: the code of a page, built and started as the page says.

Promise: what runs is the page's own code, but for the words that a test says it replaces; a process ends with its test.
"""

import http.client
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fencelock_lab.servers.mariadb import ADMIN as MARIADB_ADMIN
from fencelock_lab.servers.postgres import ADMIN
from tests.structure.doc_blocks import files
from tests.support.helpers import ROOT, freeze, wait_until
from tests.support.programs import need, refuse

HOST = "127.0.0.1"
PAGES = ROOT / "docs" / "how-to"
NODE_MODULES = ROOT / ".cache" / "node" / "node_modules"
JDBC = "/usr/share/java/postgresql.jar"
QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Halves what a short life of a JVM costs."""
LISTENING = re.compile(r"listening on http://.*:(\d+)\n")
GO_CACHE = ROOT / ".cache" / "go"
GO_PATH = "/usr/share/gocode"
BUILD_LIMIT_S = 110
ANSWER_LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class Language:
    """How the program of a page is built in a folder, what starts it there, and how it is told its database."""

    build: Callable[[Path], None]
    command: Callable[[Path], list[str]]
    settings: Callable[[int, str], dict[str, str]]
    """The environment for a database, by its server's port and its name."""
    page: str
    replaced: Mapping[str, str] = field(default_factory=dict)
    """What the page tells its reader to replace."""


def _run(command: list[str], folder: Path, **environment: str) -> None:
    settings = os.environ | environment
    done = subprocess.run(
        command, cwd=folder, env=settings, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _build_node(folder: Path) -> None:
    if not (NODE_MODULES / "pg").is_dir():
        refuse("node-postgres is missing: run scripts/install-node")
    (folder / "node_modules").symlink_to(NODE_MODULES)


def _build_java(folder: Path) -> None:
    sources = [str(path) for path in folder.glob("*.java")]
    _run([need("javac"), *(f"-J{option}" for option in QUICK_START), "-proc:none", "-cp", need(JDBC), *sources], folder)


def _build_go(folder: Path) -> None:
    need(f"{GO_PATH}/src/github.com/lib/pq")
    _run([need("go"), "build", "-o", "report", "."], folder, GO111MODULE="off", GOPATH=GO_PATH, GOCACHE=str(GO_CACHE))


LANGUAGES = {
    "node": Language(
        _build_node,
        lambda _: [need("node"), "service.mjs"],
        lambda port, name: {"DATABASE_URL": f"postgresql://{ADMIN}@{HOST}:{port}/{name}"},
        "enforce-in-node.md",
    ),
    "node on MariaDB": Language(
        _build_node,
        lambda _: [need("node"), "service.mjs"],
        lambda port, name: {"DATABASE_URL": f"mysql://{MARIADB_ADMIN}@{HOST}:{port}/{name}"},
        "enforce-in-node.md",
        {"./fencing.mjs": "./fencing-mysql.mjs", "SET body = $1": "SET body = ?"},
    ),
    "java": Language(
        _build_java,
        lambda _: [need("java"), *QUICK_START, "-cp", f".:{JDBC}", "ReportService"],
        lambda port, name: {"JDBC_URL": f"jdbc:postgresql://{HOST}:{port}/{name}?user={ADMIN}"},
        "enforce-in-java.md",
    ),
    "go": Language(
        _build_go,
        lambda folder: [str(folder / "report")],
        lambda port, name: {"DATABASE": f"host={HOST} port={port} user={ADMIN} dbname={name} sslmode=disable"},
        "enforce-in-go.md",
    ),
}


def build(language: str, folder: Path, replaced: Mapping[str, str]) -> None:
    """Save the files of the language's page in a folder, with some words replaced, and build the program."""
    chosen = LANGUAGES[language]
    code = files((PAGES / chosen.page).read_text())
    for old, new in {**chosen.replaced, **replaced}.items():
        assert any(old in text for text in code.values()), f"the page of {language} does not say {old}"
        code = {name: text.replace(old, new) for name, text in code.items()}
    for name, text in code.items():
        (folder / name).write_text(text)
    chosen.build(folder)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a service answered."""

    status: int
    headers: http.client.HTTPMessage
    body: str


class Service:
    """A running process of a service."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self._log = log
        wait_until(lambda: process.poll() is not None or LISTENING.search(self.log))
        found = LISTENING.search(self.log)
        assert found is not None, f"the service has ended: {self.log}"
        self.port = int(found[1])

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.port}"

    @property
    def log(self) -> str:
        """All that it has written."""
        return self._log.read_text()

    def ask(self, method: str, body: str = "", headers: Mapping[str, list[str]] | None = None) -> Reply:
        """Send a request, and return the answer."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=ANSWER_LIMIT_S)
        try:
            connection.putrequest(method, "/report")
            for name, values in (headers or {}).items():
                for value in values:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body.encode())))
            connection.endheaders(body.encode())
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Have every thread of it stand still for a while."""
        freeze(self.pid)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


@contextmanager
def running(language: str, folder: Path, port: int, database: str) -> Iterator[Service]:
    """Start a service in the folder where it was built, on a port of its own, and end it."""
    chosen = LANGUAGES[language]
    log = folder / f"{port}.log"
    command = [need("setpriv"), "--pdeathsig", "KILL", *chosen.command(folder)]
    settings = os.environ | chosen.settings(port, database) | {"PORT": "0"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=settings, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield Service(process, log)
    finally:
        process.kill()
        process.wait()
