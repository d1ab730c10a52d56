"""The search for claims and proofs in what tests show finds one, wherever it is shown."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fencelock
import fencelock.aio
from fencelock import SourceError
from tests.shown_secrets import KINDS, SHOWN, secrets_in
from tests.stored_secrets import secrets_in_files
from tests.support.helpers import ROOT


def one_lease() -> tuple[str, str]:
    """Return the claim and the proof of a lease."""
    with fencelock.connect("memory://shown-secrets") as source, source.lock("job") as lease:
        return lease.claim, lease.sequencer.proof


async def one_async_lease() -> tuple[str, str]:
    async with fencelock.aio.connect("memory://shown-secrets") as source, source.lock("job") as lease:
        return lease.claim, lease.sequencer.proof


def one_break() -> tuple[str, str]:
    with fencelock.connect("memory://shown-secrets") as source:
        return "", source.break_lock("job", reason="a test").sequencer.proof


@pytest.mark.parametrize("draw", [one_lease, lambda: asyncio.run(one_async_lease()), one_break])
def test_g12_what_is_drawn_is_noted(draw: Callable[[], tuple[str, str]]) -> None:
    claim, proof = draw()
    assert KINDS[proof] == "proof"
    assert not claim or KINDS[claim] == "claim"
    assert secrets_in(f"fl2.0.source.{proof}.", "nothing", "0" * 32) == ["proof"]


@pytest.mark.parametrize("show", ["capsys", "error"])
def test_g12_what_is_shown_is_searched(show: str, capsys: pytest.CaptureFixture[str]) -> None:
    claim, _ = one_lease()
    if show == "capsys":
        print("holds", claim)
        capsys.readouterr()
    else:
        SourceError(f"claim {claim} has ended")
    assert secrets_in(*SHOWN) == ["claim"]
    SHOWN.clear()  # Or this test fails, as it should.


CARELESS = """
import logging, fencelock

def lease_of(name):
    with fencelock.connect(f"memory://{name}") as source, source.lock("job") as lease:
        return lease

def test_printed():
    print(lease_of("one").sequencer)

def test_logged():
    logging.getLogger("fencelock").error("lost %s", lease_of("two").sequencer)

def test_kept(tmp_path):
    (tmp_path / "app.db").write_text(f"a{lease_of('four').sequencer.proof}b")

def test_careful(tmp_path):
    print(repr(lease_of("three").sequencer), lease_of("three").sequencer.digest)
    (tmp_path / "app.db").write_text(lease_of("three").sequencer.digest)
"""
AT_A_SERVER = """
import fencelock
from tests.fix_servers import servers_folder

def test_kept(request):
    with fencelock.connect("memory://five") as source, source.lock("job") as lease:
        (servers_folder(request.config) / "redo.log").write_bytes(b"\\0a" + lease.claim.encode() + b"b\\xff")
"""


def careless(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run tests with the searches, and nothing else of this project."""
    file = tmp_path / "test_careless.py"
    file.write_text(text)
    plugins = ("no:cacheprovider", "tests.shown_secrets", "tests.fix_servers", "tests.stored_secrets")
    alone = ("--noconftest", "-c", "/dev/null", *(word for name in plugins for word in ("-p", name)))
    # To load plugins that no test needs takes seconds.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", *alone, file]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_g12_a_test_that_shows_or_keeps_a_proof_fails(tmp_path: Path) -> None:
    done = careless(tmp_path, CARELESS)
    assert "4 passed, 3 errors" in done.stdout, done.stdout
    for name in ("test_printed", "test_logged"):
        assert f"{name} shows a proof" in done.stdout
    assert "app.db keeps a proof" in done.stdout


def test_g12_a_run_whose_servers_keep_a_claim_fails(tmp_path: Path) -> None:
    done = careless(tmp_path, AT_A_SERVER)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "redo.log keeps a claim" in done.stdout
    assert done.returncode == 1


def test_g12_a_broker_may_keep_the_proofs_of_messages_and_no_claim(tmp_path: Path) -> None:
    kinds = {"a" * 32: "claim", "b" * 32: "proof"}
    message = tmp_path / "jetstream" / "1.blk"
    message.parent.mkdir()
    message.write_text("b" * 32)
    assert secrets_in_files([message], kinds) == []
    message.write_text("a" * 32)
    assert secrets_in_files([message], kinds) == [f"{message} keeps a claim"]
