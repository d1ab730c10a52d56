"""No store keeps a claim or a proof (G12): a pytest plugin that looks for each one drawn in what tests leave on disks.

Promise: after each test it searches the test's folder, and after all tests the folders of the servers that the run has
shared, with their data, their logs of transactions and what they print. A test, or a run, that left a secret there has
failed. Never: knows what a child has drawn, or sees a server of a test's own, which is gone by then; the conformance
kits look into those.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests import shown_secrets
from tests.fix_servers import OWN_PROCESS, WORKER, known_folder

_RUN = re.compile(rb"[0-9a-f]{32,}")
"""Hexadecimal digits: a store may put what comes next directly behind a secret."""
_DIGITS = 32
_CARRIED = {"jetstream", "msg_stores", "control"}
"""Folders that keep proofs on purpose: brokers those of messages, and a negative control of the lab what it misuses."""
_NOTES = "secrets-of-"
"""The beginning of the names of files in which each process of a run leaves what it has drawn."""
_found = pytest.StashKey[list[str]]()


def secrets_in_files(paths: Iterable[Path], kinds: Mapping[str, str]) -> list[str]:
    """Return which files have which kinds of secrets."""
    found: dict[str, None] = {}
    for path in paths:
        is_carried = bool(_CARRIED & set(path.parts))
        for run in _RUN.findall(_content(path)):
            words = (run[start : start + _DIGITS].decode() for start in range(len(run) - _DIGITS + 1))
            known = (kinds[word] for word in words if word in kinds)
            found |= dict.fromkeys(f"{path} keeps a {kind}" for kind in known if not (is_carried and kind == "proof"))
    return list(found)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() and not path.name.startswith(_NOTES) else b""
    except OSError:  # A running server has removed it, or keeps it to itself.
        return b""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test whose folder has a secret that this process has drawn."""
    folder: Path | None = getattr(item, "funcargs", {}).get("tmp_path")
    found = secrets_in_files(folder.rglob("*"), shown_secrets.KINDS) if folder is not None else []
    result = yield
    if found:
        pytest.fail(f"G12: {found[0]}", pytrace=False)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave what this process has drawn; the one that has the servers' folder searches it for what all have drawn."""
    config = session.config
    if (folder := known_folder(config)) is None:
        return
    (folder / f"{_NOTES}{WORKER}").write_text(json.dumps(shown_secrets.KINDS))
    if hasattr(config, "workerinput") or OWN_PROCESS in os.environ:
        return
    kinds: dict[str, str] = {}
    for notes in folder.glob(f"{_NOTES}*"):
        kinds |= json.loads(notes.read_text())
    config.stash[_found] = secrets_in_files(folder.rglob("*"), kinds)
    if config.stash[_found]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the files of servers that have secrets."""
    for line in config.stash.get(_found, []):
        terminalreporter.write_line(f"G12: {line}", red=True)
