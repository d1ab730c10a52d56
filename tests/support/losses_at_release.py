"""A loss that only the source's answer to the release shows, written once for all stores (H3).

The ttl is so long that no renewal comes before the release.
"""

import asyncio
from typing import Any

import pytest

import fencelock
import fencelock.aio
from tests.support.helpers import wait_until

TTL = 30.0
ENDINGS = ["broken", "broken and taken again", "of an older epoch"]


class LossesAtRelease:
    """The tests. A subclass has the fixture `installed_url`: a source of the test's own, ready for use."""

    @pytest.mark.parametrize("kind", ["lock", "rlock"])
    @pytest.mark.parametrize("ending", ENDINGS)
    def test_h3_a_block_ends_in_the_loss_that_its_release_finds(
        self, installed_url: str, ending: str, kind: str
    ) -> None:
        told: list[str] = []
        with fencelock.connect(installed_url) as source:
            lock = getattr(source, kind)("lock", ttl=TTL, on_lost=told.append)
            with pytest.raises(fencelock.LeaseLostError, match="ended it before it was released"), lock:
                successor = end(source, ending)
            assert source.info("lock").is_held is (successor is not None)
            wait_until(lambda: told)
        assert len(told) == 1

    @pytest.mark.parametrize("kind", ["lock", "rlock"])
    def test_h3_an_async_block_ends_in_the_loss_that_its_release_finds(self, installed_url: str, kind: str) -> None:
        async def work() -> None:
            source = fencelock.aio.connect(installed_url)
            async with source, getattr(source, kind)("lock", ttl=TTL):
                await source.break_lock("lock", reason="a test")

        with pytest.raises(fencelock.LeaseLostError, match="ended it before it was released"):
            asyncio.run(work())

    @pytest.mark.parametrize("kind", ["lock", "rlock"])
    def test_h3_release_returns_whether_the_lease_was_still_ours(self, installed_url: str, kind: str) -> None:
        with fencelock.connect(installed_url) as source:
            lock: Any = getattr(source, kind)("lock", ttl=TTL)
            lock.acquire()
            source.break_lock("lock", reason="a test")
            assert lock.release() is False
            lock.acquire()
            assert lock.release() is True


def end(source: fencelock.Source, ending: str) -> fencelock.Lease | None:
    """End the lease on the lock, as an operator does elsewhere; return the next holder's lease, if there is one."""
    if ending == "of an older epoch":
        source.raise_epoch(reason="a test")
        return None
    source.break_lock("lock", reason="a test")
    return source.lock("lock", ttl=TTL).acquire(timeout=10) if ending == "broken and taken again" else None
