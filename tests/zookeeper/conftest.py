"""What every test of this store has around it."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _connections_of_a_module_end_with_it() -> Iterator[None]:
    """Have the collector end the connections of sources and guards that tests have left: `select` takes 1024 at most,
    and the tests that come later use it.
    """
    yield
    gc.collect()
