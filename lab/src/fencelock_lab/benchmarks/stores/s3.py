"""A bucket of SeaweedFS, for the guard of S3: how fast Amazon's is, it does not say. It issues no tokens."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from fencelock_lab.benchmarks.stores import PREFIX, Site
from fencelock_lab.servers.fleet import fleet_of
from fencelock_lab.servers.ministack import CREDENTIALS
from fencelock_lab.servers.seaweedfs import BUCKET, SeaweedFleet


@contextmanager
def site() -> Iterator[Site]:
    """Yield a temporary server; clients find credentials for it in the environment."""
    with (
        patch.dict(os.environ, CREDENTIALS),
        fleet_of(SeaweedFleet, PREFIX, on_disk=True) as fleet,
        fleet.new_server() as server,
    ):
        yield Site("s3", "S3 by SeaweedFS", f"s3://{BUCKET}/bench?endpoint={server.url}")
