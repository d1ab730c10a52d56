"""`make example`: it does what its page shows, and the page shows its files."""

import subprocess
import sys

import pytest

from tests.structure.doc_blocks import blocks, files, prints
from tests.support.helpers import ROOT

EXAMPLE = ROOT / "examples" / "fenced_services"
PAGE = (ROOT / "docs" / "tutorial" / "fenced-services.md").read_text()
COMMAND = "$ make example\n"
TIMEOUT_S = 100


def shown_output() -> str:
    """Return what the page says that the command prints."""
    (output,) = (body for block in blocks(PAGE) for start, _, body in [block.body.partition(COMMAND)] if not start)
    return output


@pytest.mark.process
def test_the_page_shows_what_the_example_prints() -> None:
    """The program ends with an error if a write was lost, or if a job or a service failed."""
    done = subprocess.run(
        [sys.executable, EXAMPLE / "run.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert prints(shown_output(), done.stdout), done.stdout


def test_the_page_shows_the_files_of_the_example() -> None:
    shown = files(PAGE)
    assert shown == {name: (EXAMPLE / name).read_text() for name in shown}
    assert {"accounts.py", "nightly.py"} <= shown.keys()
