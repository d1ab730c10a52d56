"""What tests of the guard of a folder share."""

import os
from contextlib import suppress
from pathlib import Path

import fencelock
from fencelock.protocol import draw_claim, one_way

RESOURCE, LOCK = "daily", "nightly-report"


class GuardedFolder:
    """A protected resource in a folder, and leases of a made-up source that belongs to this test."""

    def __init__(self, base: Path) -> None:
        base.mkdir(exist_ok=True)
        base.chmod(0o755)  # Whatever the umask of the tester is.
        self.base = base
        self.url = f"file://{base}"
        self.home = base / ".fencelock"
        self.files = base / RESOURCE
        self.source_id = draw_claim()
        self.guard = self.open()
        self.guard.protect()

    def open(self, resource: str = RESOURCE) -> fencelock.Guard:
        """Return another guard of the folder, as another process has."""
        return fencelock.guard(self.url, resource=resource, lock=LOCK)

    def lease(self, token: int) -> fencelock.Sequencer:
        """Return a lease with this token."""
        return fencelock.Sequencer(self.source_id, "history", LOCK, token, one_way(f"claim-{token}"))

    def write(self, token: int, **texts: str) -> None:
        """Write files in one block."""
        with self.guard.transaction(self.lease(token)) as txn:
            for name, text in texts.items():
                txn.write(name, text)

    def read(self) -> dict[str, str]:
        """Return the files that every reader sees, and their texts."""
        paths = (path for path in self.files.rglob("*") if path.is_file())
        return {str(path.relative_to(self.files)): path.read_text() for path in paths}

    def leftovers(self) -> list[Path]:
        """Return the drafts that lie about."""
        return [path for part in ("drafts", "staged") for path in (self.home / part).rglob("*") if path.is_file()]


def open_descriptors(folder: GuardedFolder) -> set[str]:
    """Return this process's descriptors of the folder and of what is in it; other threads may open and close others."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(str(folder.base)):
                found.add(name)
    return found
