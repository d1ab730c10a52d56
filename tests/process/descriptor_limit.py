"""A program that has no descriptor left for a while: `python -m tests.process.descriptor_limit API URL`.

An exit code other than 0 means that an acquire that had to wait then did not say so, or left its claim in the queue.
"""

import asyncio
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

import fencelock
import fencelock.aio
from fencelock.errors import SourceUnavailableError

TTL_S = 20.0
SHORT_S, TRY_S = 0.2, 8.0
FEW = 256
"""As many descriptors as the process may have; others limit it to 1024."""


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this block open nothing."""
    opened = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        with suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)


def use_locks(url: str) -> None:
    """Wait for a held lock while a descriptor can be opened, while none can, and again."""
    with fencelock.connect(url) as source:
        lease = source.lock("held", ttl=TTL_S).acquire()
        waiting = source.lock("held", ttl=TTL_S)
        assert waiting.acquire(timeout=SHORT_S) is None
        with no_descriptor_left(), pytest.raises(SourceUnavailableError, match="ulimit -n"):
            waiting.acquire(timeout=TRY_S)
        assert lease.release()
        assert waiting.acquire(timeout=TRY_S) is not None


async def use_locks_on_loop(url: str) -> None:
    """Do the same in a task."""
    async with fencelock.aio.connect(url) as source:
        lease = await source.lock("held", ttl=TTL_S).acquire()
        assert lease is not None
        waiting = source.lock("held", ttl=TTL_S)
        assert await waiting.acquire(timeout=SHORT_S) is None
        with no_descriptor_left(), pytest.raises(SourceUnavailableError, match="ulimit -n"):
            await waiting.acquire(timeout=TRY_S)
        assert await lease.release()
        assert await waiting.acquire(timeout=TRY_S) is not None


if __name__ == "__main__":
    api, url = sys.argv[1:]
    if api == "async":
        asyncio.run(use_locks_on_loop(url))
    else:
        use_locks(url)
