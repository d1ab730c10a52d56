"""Holders that are frozen by a real SIGSTOP: while they write drafts, and in the middle of a commit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencelock import SourceUnavailableError
from fencelock.stores.files.guard import folder as folder_module
from tests.files.guarded import GuardedFolder
from tests.support.helpers import DEADLINE_S, wait_until

pytestmark = pytest.mark.process

PRELUDE = """
import os, signal, sys
from pathlib import Path
import fencelock
from fencelock.stores.files.guard import commit
base, source_id = Path(sys.argv[1]), sys.argv[2]
guard = fencelock.guard(f"file://{base}", resource="daily", lock="nightly-report")
lease = fencelock.Sequencer(source_id, "history", "nightly-report", 5, sys.argv[3])

def freeze():
    os.kill(os.getpid(), signal.SIGSTOP)
"""
GUARDED = """
try:
    with guard.transaction(lease) as txn:
        names = (txn.read("list") or b"").decode()
        txn.write("list", names + "A")
        BETWEEN
except fencelock.StaleTokenError:
    sys.exit(3)
"""
NAIVE = """
# What sample code does: the mark in a file beside the data, compared, and then the file renamed into place.
names = (base / "daily" / "list").read_text()
draft = base / "draft"
draft.write_text(names + "A")
if int((base / "mark").read_text()) > 5:
    sys.exit(3)
freeze()
draft.replace(base / "daily" / "list")
"""
IN_COMMIT = """
take = commit._take

def take_and_freeze(*args):
    take(*args)
    commit._take = take
    freeze()

commit._take = take_and_freeze
with guard.transaction(lease) as txn:
    txn.write("a", "new")
    txn.write("b", "new")
"""


class FrozenHolder:
    """A process that runs a script until it freezes itself."""

    def __init__(self, folder: GuardedFolder, script: str) -> None:
        command = [sys.executable, "-c", PRELUDE + script, folder.base, folder.source_id, folder.lease(5).proof]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_until(lambda: os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG))

    def thaw(self) -> int:
        """Let it run to its end, and return its exit code."""
        os.kill(self.process.pid, signal.SIGCONT)
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)


@pytest.fixture
def started() -> Iterator[list[FrozenHolder]]:
    holders: list[FrozenHolder] = []
    yield holders
    for holder in holders:
        holder.kill()


def append_b(folder: GuardedFolder) -> None:
    """Take over from the frozen holder, read the list, and append to it."""
    with folder.guard.transaction(folder.lease(6)) as txn:
        txn.write("list", (txn.read("list") or b"").decode() + "B")


def test_g3_a_holder_frozen_in_a_draft_delays_nobody_and_writes_nothing(
    folder: GuardedFolder, started: list[FrozenHolder]
) -> None:
    folder.write(5, list="-")
    started.append(holder := FrozenHolder(folder, GUARDED.replace("BETWEEN", "freeze()")))
    append_b(folder)
    assert holder.thaw() == 3, "it is told that its token is stale"
    assert folder.read() == {"list": "-B"}
    assert folder.leftovers() == []


def test_the_naive_way_loses_an_acknowledged_write(folder: GuardedFolder, started: list[FrozenHolder]) -> None:
    """The negative control: the same attack, on a mark that is compared before the rename, and not with it."""
    folder.write(5, list="-")
    (folder.base / "mark").write_text("5")
    started.append(holder := FrozenHolder(folder, NAIVE))
    (folder.base / "mark").write_text("6")
    append_b(folder)
    assert holder.thaw() == 0, "nothing refuses it"
    assert folder.read() == {"list": "-A"}, "B's write is lost"


@pytest.mark.parametrize("end", ["thaw", "kill"])
def test_a_holder_frozen_in_a_commit_holds_others_up_until_it_goes_on_or_dies(
    folder: GuardedFolder, started: list[FrozenHolder], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The limit: readers see one new file and one old one meanwhile, and no successor decides on that."""
    folder.write(5, a="old", b="old")
    started.append(holder := FrozenHolder(folder, IN_COMMIT))
    assert folder.read() == {"a": "new", "b": "old"}
    with monkeypatch.context() as patched:
        patched.setattr(folder_module, "LOCK_TIMEOUT_S", 0.1)
        with pytest.raises(SourceUnavailableError, match="frozen in the middle of a commit"):
            folder.guard.seal(folder.lease(6))
    getattr(holder, end)()
    folder.guard.seal(folder.lease(6))
    assert folder.read() == {"a": "new", "b": "new"}, "the commit is finished before anybody decides"
    assert folder.leftovers() == []


def test_a_holder_killed_in_a_block_leaves_drafts_until_the_next_seal(
    folder: GuardedFolder, started: list[FrozenHolder], tmp_path: Path
) -> None:
    started.append(holder := FrozenHolder(folder, GUARDED.replace("BETWEEN", "freeze()")))
    holder.kill()
    assert len(folder.leftovers()) == 1
    append_b(folder)
    assert folder.read() == {"list": "B"}
    assert folder.leftovers() == []
