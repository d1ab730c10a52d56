"""A private Redis that flushes every write, as the other stores do.

fencelock refuses it as a source of tokens, so there is no work by hand to compare it with.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from fencelock_lab.benchmarks.stores import PREFIX, Site
from fencelock_lab.servers.fleet import fleet_of
from fencelock_lab.servers.redis import RedisFleet


@contextmanager
def site() -> Iterator[Site]:
    """Yield a temporary server."""
    with fleet_of(RedisFleet, PREFIX, on_disk=True) as fleet, fleet.new_server() as server:
        yield Site("redis", f"Redis {server.version()}", server.url)
