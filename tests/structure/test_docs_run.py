"""The documents state what was run: their Python, and their marked console sessions."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT
from tests.postgres.fix_server import ADMIN
from tests.structure.doc_blocks import (
    commands,
    files,
    needs_etcd,
    needs_mysql,
    needs_postgres,
    needs_zookeeper,
    prints,
    programs,
)

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMIT_S = 60
DOCUMENTED_POSTGRES = "15"
"""The version on which the documents are run, whose psql is on PATH with Debian's package."""
DEFAULT_TICK_MS = 2000
"""ZooKeeper's usual tick, so that no URL of a page has to say another."""
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
            monkeypatch.setenv("ETCD_SERVERS", member.endpoint())
            monkeypatch.setenv("ETCDCTL_ENDPOINTS", member.endpoint())
            monkeypatch.setenv("ETCDCTL_API", "3")
        if needs_zookeeper(text):
            fleet = request.getfixturevalue("zookeeper_fleet")
            keeper = running.enter_context(fleet.new_server(tick_ms=DEFAULT_TICK_MS))
            monkeypatch.setenv("ZOOKEEPER_SERVERS", keeper.address)
        yield


def prepare(server: Any, place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the database, and say to the page's programs where it is."""
    server.rows("CREATE DATABASE app")
    for name, value in place.items():
        monkeypatch.setenv(name, value)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a reader would: in an empty folder, with `fenceline` on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def run_programs(document: Path, folder: Path) -> None:
    """Run the Python of a document; fail with its traceback, which names the document's lines."""
    for number, program in enumerate(programs(document.read_text())):
        folder_of_program = folder / str(number)
        folder_of_program.mkdir()
        script = folder_of_program / document.name
        script.write_text(program)
        done = run([sys.executable, "-W", "error", script.name], folder_of_program)
        assert done.returncode == 0, f"{document.name}:\n{done.stdout}"


def run_commands(document: Path, folder: Path) -> None:
    """Write the files of a document and run its console sessions; fail where one exits or prints otherwise."""
    for name, text in files(document.read_text()).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for command in commands(document.read_text()):
        done = run(["sh", "-c", command.text], folder)
        where = f"{document.name}:{command.line}: $ {command.text}"
        assert done.returncode == 0, f"{where} exits with {done.returncode}:\n{done.stdout}"
        assert prints(command.output, done.stdout), f"{where} prints:\n{done.stdout}"


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_python_in_a_document_runs(document: Path, tmp_path: Path) -> None:
    run_programs(document, tmp_path)


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_marked_console_sessions_run(document: Path, tmp_path: Path) -> None:
    run_commands(document, tmp_path)


def test_some_document_has_something_to_run() -> None:
    texts = [document.read_text() for document in DOCUMENTS]
    assert any(programs(text) for text in texts)
    assert any(commands(text) for text in texts)


def page(tmp_path: Path, *parts: str) -> Path:
    """Write a made-up document."""
    document = tmp_path / "page.md"
    document.write_text("\n".join(parts))
    return document


def fenced(language: str, *lines: str) -> str:
    return "\n".join((FENCE + language, *lines, FENCE))


def test_blocks_of_a_document_share_their_names(tmp_path: Path) -> None:
    run_programs(page(tmp_path, fenced("python", "a = 1"), "text", fenced("python", "assert a")), tmp_path)


def test_a_fresh_block_begins_anew(tmp_path: Path) -> None:
    document = page(tmp_path, fenced("python", "a = 1"), "<!-- fresh -->", fenced("python", "print(a)"))
    with pytest.raises(AssertionError, match=r"line 6[^$]*NameError"):
        run_programs(document, tmp_path)


def test_a_failing_block_is_reported_by_its_line(tmp_path: Path) -> None:
    document = page(tmp_path, "# Title", "", "1. A step:", "", "   " + FENCE + "python")
    document.write_text(document.read_text() + "\n   1 / 0\n   " + FENCE)
    with pytest.raises(AssertionError, match=r"line 6[^$]*ZeroDivisionError"):
        run_programs(document, tmp_path)


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
        run_commands(document, tmp_path)


def test_an_ellipsis_stands_for_anything(tmp_path: Path) -> None:
    session = ("$ echo token 17, 2.5 s left; seq 9; echo end", "token …, … s left", "…", "end")
    run_commands(page(tmp_path, "<!-- run -->", fenced("console", *session)), tmp_path)


def test_a_session_finds_the_files_of_its_page_and_they_are_not_run_by_themselves(tmp_path: Path) -> None:
    document = page(
        tmp_path,
        "<!-- file: say.py -->",
        fenced("python", "import sys", "print('said', sys.argv[1])"),
        "<!-- run -->",
        fenced("console", "$ python3 say.py it", "said it"),
    )
    run_commands(document, tmp_path)
    assert programs(document.read_text()) == []
    document.write_text(document.read_text().replace("'said'", "'told'"))
    with pytest.raises(AssertionError, match=r"prints:\s+told it"):
        run_commands(document, tmp_path)


def test_an_unmarked_session_is_not_run(tmp_path: Path) -> None:
    assert commands(fenced("console", "$ exit 3")) == []
