"""What surrounds every test of this store."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _connections_of_a_module_end_with_it() -> Iterator[None]:
    """Run the collector, so that the connections that tests have left end: `select` takes 1024 descriptors at most, and
    later tests use it.
    """
    yield
    gc.collect()
