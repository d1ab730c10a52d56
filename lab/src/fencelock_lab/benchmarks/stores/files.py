"""A folder on a local disk, for the guard of files. It issues no tokens, so there is no lock to compare."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fencelock_lab.benchmarks.stores import PREFIX, Site
from fencelock_lab.kept_results import filesystem


@contextmanager
def site() -> Iterator[Site]:
    """Yield a temporary folder."""
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        yield Site("files", f"Files on {filesystem(Path(folder))}", f"file://{folder}")
