"""What the tests of this folder keep of the source is in no later collection of garbage."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> Iterator[None]:
    """Freeze the trees of all modules that were parsed: to look through them takes a collector a second, each time."""
    yield
    gc.collect()
    gc.freeze()
