"""An acquire that must wait, in a process that can open nothing more, raises and leaves no claim (H5).

The program is `descriptor_limit.py`.
"""

import pytest

from tests.process.test_thread_starts import run_program

pytestmark = pytest.mark.process


@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "mysql", "etcd", "zookeeper_own"])
def test_h5_an_acquire_without_a_descriptor_says_so_and_leaves_no_claim(
    request: pytest.FixtureRequest, store: str, api: str
) -> None:
    run_program("descriptor_limit", api, request.getfixturevalue(f"{store}_url"))
