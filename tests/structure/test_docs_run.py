"""The documents state what was run: their Python, and their marked console sessions."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

import pytest

from fencelock_lab.servers.postgres import ADMIN
from tests.structure.doc_blocks import (
    Block,
    Command,
    blocks,
    commands,
    file_name,
    files,
    is_program,
    needs_dynamodb,
    needs_etcd,
    needs_mysql,
    needs_nats,
    needs_postgres,
    needs_redis,
    needs_s3,
    needs_zookeeper,
    prints,
)
from tests.support.helpers import ROOT
from tests.support.programs import need

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLLOWED = [page for page in DOCUMENTS if page.parent.name in {"tutorial", "how-to"}]
LIMIT_S = 60
DOCUMENTED_POSTGRES = "15"
"""The version on which the documents are run, whose psql is on PATH with Debian's package."""
DEFAULT_TICK_MS = 2000
"""ZooKeeper's usual tick, so that no URL of a page has to say another."""
ZKCLI = "/usr/share/zookeeper/bin/zkCli.sh"
FENCE = "`" * 3


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def servers(document: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a page that asks for it an empty database, on a server whose roles are its own too."""
    text = document.read_text()
    with ExitStack() as running:
        if needs_postgres(text):
            server = running.enter_context(request.getfixturevalue("postgres_fleet").copied_server(DOCUMENTED_POSTGRES))
            place = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": ADMIN, "PGDATABASE": "app"}
            prepare(server, place, monkeypatch)
        if needs_mysql(text):
            server = running.enter_context(request.getfixturevalue("mysql_fleet").new_server())
            prepare(server, {"MYSQL_HOST": "127.0.0.1", "MYSQL_TCP_PORT": str(server.port)}, monkeypatch)
        if needs_etcd(text):
            cluster = running.enter_context(request.getfixturevalue("etcd_fleet").new_cluster(1))
            (member,) = cluster.servers
            monkeypatch.setenv("ETCD_SERVERS", member.address)
            monkeypatch.setenv("ETCDCTL_ENDPOINTS", member.address)
            monkeypatch.setenv("ETCDCTL_API", "3")
        if needs_zookeeper(text):
            fleet = request.getfixturevalue("zookeeper_fleet")
            keeper = running.enter_context(fleet.new_server(tick_ms=DEFAULT_TICK_MS))
            monkeypatch.setenv("ZOOKEEPER_SERVERS", keeper.address)
            monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{Path(need(ZKCLI)).parent}")
        if needs_s3(text):
            emulator = running.enter_context(request.getfixturevalue("ministack_fleet").new_server())
            make_bucket(emulator.endpoint)
            monkeypatch.setenv("S3_ENDPOINT", emulator.endpoint)
        if needs_dynamodb(text):
            emulator = running.enter_context(request.getfixturevalue("ministack_fleet").new_server())
            monkeypatch.setenv("DYNAMODB_ENDPOINT", emulator.endpoint)
        if needs_redis(text):
            keys = running.enter_context(request.getfixturevalue("redis_fleet").new_server())
            monkeypatch.setenv("REDIS_SERVER", keys.address)
        if needs_nats(text):
            broker = running.enter_context(request.getfixturevalue("nats_fleet").new_server())
            monkeypatch.setenv("NATS_URL", broker.url)
        yield


def make_bucket(endpoint: str) -> None:
    """Make the bucket of a page about S3."""
    connection = HTTPConnection(endpoint.removeprefix("http://"), timeout=LIMIT_S)
    connection.request("PUT", "/fencelock")
    connection.getresponse()
    connection.close()


def prepare(server: Any, place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the database, and say to the page's programs where it is."""
    server.rows("CREATE DATABASE app")
    for name, value in place.items():
        monkeypatch.setenv(name, value)


def readers_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a reader: `fencelock` is on PATH, and nothing lies anywhere yet."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HOME": str(folder), "XDG_STATE_HOME": str(folder)}


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a reader would: in an empty folder."""
    return subprocess.run(
        command,
        cwd=folder,
        env=readers_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def save(name: str, text: str, folder: Path) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def run_command(document: Path, command: Command, folder: Path) -> None:
    done = run(["sh", "-c", command.text], folder)
    where = f"{document.name}:{command.line}: $ {command.text}"
    assert done.returncode == 0, f"{where} exits with {done.returncode}:\n{done.stdout}"
    assert prints(command.output, done.stdout), f"{where} prints:\n{done.stdout}"


class Interpreter:
    """An interpreter that a reader keeps open, and pastes the blocks of a page into."""

    LOOP = """
import json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    name, at, text = json.loads(line)
    exec(compile("\\n" * (at - 1) + text, name, "exec"), names)
    print("\\0", flush=True)
"""

    def __init__(self, folder: Path) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", self.LOOP],
            cwd=folder,
            env=readers_environment(folder),
            text=True,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.STDOUT,
        )

    def paste(self, name: str, block: Block) -> None:
        """Run a block; if that ends the interpreter, fail with the traceback, which names the document's lines."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, block.line, block.body]) + "\n")
        self.process.stdin.flush()
        printed = []
        for line in self.process.stdout:
            if "\0" in line:  # With what a thread said in the same moment.
                return
            printed.append(line)
        raise AssertionError(f"{name}:\n{''.join(printed)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave it, as at the end of a program."""
        printed, _ = self.process.communicate(timeout=LIMIT_S)
        assert kind is not None or self.process.returncode == 0, printed


def read_through(document: Path, folder: Path) -> None:
    """Do what a page says from top to bottom, in one folder."""
    with ExitStack() as leaving:
        interpreter = None
        for block in blocks(document.read_text()):
            if is_program(block):
                if interpreter is None or block.mark == "fresh":
                    interpreter = leaving.enter_context(Interpreter(folder))
                interpreter.paste(document.name, block)
            elif name := file_name(block):
                save(name, block.body, folder)
            for command in commands(block):
                run_command(document, command, folder)


@pytest.mark.disk
@pytest.mark.slow
@pytest.mark.timeout(600)  # a page has tens of commands, and each has LIMIT_S
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_a_document_does_what_it_says_from_top_to_bottom(document: Path, tmp_path: Path) -> None:
    read_through(document, tmp_path)


def test_some_document_has_something_to_run() -> None:
    found = [block for document in DOCUMENTS for block in blocks(document.read_text())]
    assert any(is_program(block) for block in found)
    assert any(commands(block) for block in found)


@pytest.mark.parametrize("document", FOLLOWED, ids=named)
def test_a_file_that_the_reader_saves_is_named_in_the_text(document: Path) -> None:
    text = document.read_text()
    for name in files(text):
        seen, _, _ = text.partition(f"<!-- file: {name} -->")
        assert f"`{name}`" in seen, f"{document.name}: nobody sees that this is {name}"


def page(tmp_path: Path, *parts: str) -> Path:
    """Write a made-up document."""
    document = tmp_path / "page.md"
    document.write_text("\n".join(parts))
    return document


def fenced(language: str, *lines: str) -> str:
    return "\n".join((FENCE + language, *lines, FENCE))


def test_blocks_of_a_document_share_their_names(tmp_path: Path) -> None:
    read_through(page(tmp_path, fenced("python", "a = 1"), "text", fenced("python", "assert a")), tmp_path)


def test_a_fresh_block_begins_anew(tmp_path: Path) -> None:
    document = page(tmp_path, fenced("python", "a = 1"), "<!-- fresh -->", fenced("python", "print(a)"))
    with pytest.raises(AssertionError, match=r"line 6[^$]*NameError"):
        read_through(document, tmp_path)


def test_a_failing_block_is_reported_by_its_line(tmp_path: Path) -> None:
    document = page(tmp_path, "# Title", "", "1. A step:", "", "   " + FENCE + "python")
    document.write_text(document.read_text() + "\n   1 / 0\n   " + FENCE)
    with pytest.raises(AssertionError, match=r"line 6[^$]*ZeroDivisionError"):
        read_through(document, tmp_path)


@pytest.mark.parametrize(
    ("session", "complaint"),
    [
        (("$ exit 3",), "exits with 3"),
        (("$ echo one", "two"), r"prints:\s+one"),
        (("$ true", "$ echo one; echo two", "one"), r":4: .* prints"),
    ],
)
def test_a_wrong_session_is_reported(tmp_path: Path, session: tuple[str, ...], complaint: str) -> None:
    document = page(tmp_path, "<!-- run -->", fenced("console", *session))
    with pytest.raises(AssertionError, match=complaint):
        read_through(document, tmp_path)


def test_an_ellipsis_stands_for_anything(tmp_path: Path) -> None:
    session = ("$ echo token 17, 2.5 s left; seq 9; echo end", "token …, … s left", "…", "end")
    read_through(page(tmp_path, "<!-- run -->", fenced("console", *session)), tmp_path)


def test_a_session_finds_the_files_of_its_page_and_they_are_not_run_by_themselves(tmp_path: Path) -> None:
    document = page(
        tmp_path,
        "<!-- file: say.py -->",
        fenced("python", "import sys", "print('said', sys.argv[1])"),
        "<!-- run -->",
        fenced("console", "$ python3 say.py it", "said it"),
    )
    read_through(document, tmp_path)
    document.write_text(document.read_text().replace("'said'", "'told'"))
    with pytest.raises(AssertionError, match=r"prints:\s+told it"):
        read_through(document, tmp_path)


def test_an_unmarked_session_is_not_run(tmp_path: Path) -> None:
    assert [commands(block) for block in blocks(fenced("console", "$ exit 3"))] == [[]]
