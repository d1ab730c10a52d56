"""Wall clocks that move, by libfaketime: of one process, or of a private server while it runs.

Promise: only the time of day moves. The clocks that count from the boot stay true, as they do when a real clock is set.
"""

from pathlib import Path

from fencelock_lab.servers.programs import FAKETIME, give, need
from fencelock_lab.servers.server import Server

OFFSET = "FAKETIME_TIMESTAMP_FILE"
"""The variable that names the file with the offset of the clock."""


def variables(offset: Path) -> dict[str, str]:
    """Return the environment of a process whose clock is as far off as the file says; at first it is not off."""
    write_offset(offset, 0)
    return {
        "LD_PRELOAD": need(FAKETIME),
        OFFSET: str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def write_offset(offset: Path, seconds: float) -> None:
    """Have the file say how many seconds the clock is ahead, without a moment in which it says something else."""
    fresh = offset.with_suffix(".new")
    fresh.write_text(f"{seconds:+.3f}s\n")
    give(fresh)
    fresh.replace(offset)


class ServerClock:
    """The wall clock of a server that is not started yet."""

    def __init__(self, server: Server) -> None:
        self._offset = server.folder / "offset"
        server.variables |= variables(self._offset)

    def set(self, seconds: float) -> None:
        """Set the clock `seconds` apart from the true one; 0 is the true time."""
        write_offset(self._offset, seconds)
