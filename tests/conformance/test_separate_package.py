"""A store from a package of its own works: the one of docs/how-to/write-a-store.md, installed and proved by the kits.

The package is written as an installer leaves it, a module beside a `.dist-info` with the entry points that the page
declares, so that no build backend and no network is needed. The kits run in a process of their own, which finds the
store by its URL alone.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.structure.doc_blocks import Block, blocks
from tests.support.helpers import ROOT

PAGE = ROOT / "docs" / "how-to" / "write-a-store.md"
CLASSES = ("class TallySource:", "class TallyGuard:")
"""The blocks of the page that make up the module."""
PROGRAM = Path(__file__).with_name("prove_tally_store.py")
LIMIT_S = 100


def page_blocks(language: str) -> list[Block]:
    return [block for block in blocks(PAGE.read_text()) if block.language == language]


def module_text() -> str:
    parts = [block.body for block in page_blocks("python") if any(line in block.body for line in CLASSES)]
    assert len(parts) == len(CLASSES)
    return "\n\n".join(parts)


def install(folder: Path, module: str) -> None:
    """Write the page's package into a folder of importable modules, as an installer would."""
    (project,) = (tomllib.loads(block.body) for block in page_blocks("toml"))
    name, version = project["project"]["name"], project["project"]["version"]
    (folder / "tally_store.py").write_text(module)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = project["project"]["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def failures_in_a_process(folder: Path, *kits: str) -> dict[str, str]:
    """Run kits over the installed store in a fresh interpreter; return the message of each check that failed."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *kits],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["", pytest.param("Async", marks=pytest.mark.campaign)], ids=["sync", "async"])
def test_a_store_from_a_separate_package_passes_the_kits(tmp_path: Path, kinds: str) -> None:
    install(tmp_path, module_text())
    assert failures_in_a_process(tmp_path, f"{kinds}TallySourceKit", f"{kinds}TallyGuardKit") == {}


@pytest.mark.parametrize(
    ("kept", "broken", "check", "rule"),
    [
        (
            "reply = self.tally.model.answer(request, boottime_us())",
            """reply = self.tally.model.answer(request, boottime_us())
            if type(request).__name__ == 'Release':
                self.tally.model.counter = 0""",
            "TallySourceKit.test_release_keeps_the_counter",
            "T6: release does not reset the counter",
        ),
        (
            "return MemoryResourceSession(self.resource)",
            "return MemoryResourceSession(MemoryResource())",
            "TallyGuardKit.test_a_seal_outlives_the_client_that_made_it",
            "G4",
        ),
    ],
    ids=["source", "guard"],
)
def test_a_broken_rule_of_such_a_store_is_found(tmp_path: Path, kept: str, broken: str, check: str, rule: str) -> None:
    module = module_text()
    assert module.count(kept) == 1
    install(tmp_path, module.replace(kept, broken))
    found = failures_in_a_process(tmp_path, check.partition(".")[0])
    assert rule in found[check]


def test_the_page_uses_public_names_only() -> None:
    for block in page_blocks("python"):
        assert "fencelock._" not in block.body
        assert "fencelock.stores" not in block.body
