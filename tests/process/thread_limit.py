"""A program that reaches a real limit on threads: `python -m tests.process.thread_limit URL`, run as root.

It becomes a user of its own, because the limit counts the threads of all processes of a user, and root has none. Below
Python, gRPC's own threads do not start either. An exit code other than 0 means that fencelock did not recover.
"""

import asyncio
import encodings.idna  # noqa: F401 - what is imported later may be unreadable for the new user
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import fencelock
import fencelock.aio
import fencelock.stores.etcd.source.store
from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from tests.process.thread_starts import TRY_S, repeat_async, timely
from tests.support.helpers import wait_until

TTL_S = 1.0
UNUSED_USER = 64_000
SHORT_S = 3.0
TTLS = 3
"""For how many ttls the limit lasts."""


@contextmanager
def limited() -> Iterator[None]:
    """Let no further thread start in this block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))


def warm_up() -> None:
    """Import what is imported late."""

    async def acquire() -> None:
        async with fencelock.aio.connect("memory://warm") as source, source.lock("lock"):
            pass

    with fencelock.connect("memory://warm") as source, source.lock("lock"):
        pass
    asyncio.run(acquire())


def become_another_user() -> None:
    """Go on in a child that belongs to a user without processes; this process ends as the child does."""
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.setgid(UNUSED_USER)
    os.setuid(UNUSED_USER + os.getpid() % 1000)


def main(url: str) -> None:
    """Use locks before, under and after the limit."""
    told: list[str] = []
    source, other = fencelock.connect(url), fencelock.connect("memory://limit")
    near = other.lock("held", ttl=TTL_S, on_lost=told.append).acquire()
    with limited():
        began_s = time.monotonic()
        try:
            source.lock("held", ttl=TTL_S).acquire(timeout=TRY_S / 2)
        except SourceUnavailableError:
            timely(began_s, SHORT_S, "an acquire before gRPC has started")
        else:
            raise AssertionError("a lease was granted that nobody can watch")
    lease = source.lock("held", ttl=TTL_S, on_lost=told.append).acquire(timeout=TRY_S)
    assert lease is not None
    assert near is not None
    with limited():
        time.sleep(TTLS * TTL_S)
        assert lease.is_valid
        assert near.is_valid
        assert not told
        source.break_lock("held", reason="a test")
        wait_until(lambda: told, TRY_S)
    asyncio.run(use_loop(url))
    assert near.is_valid
    began_s = time.monotonic()
    child = os.fork()
    if not child:
        use_in_child(url)
        os._exit(0)
    timely(began_s, SHORT_S, "a fork")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def use_loop(url: str) -> None:
    """Acquire on a loop, under the limit and after it."""
    async with fencelock.aio.connect(url) as source:
        lock = source.lock("loop", ttl=TTL_S)
        with limited():
            try:
                async with asyncio.timeout(TRY_S):
                    await lock.acquire(timeout=SHORT_S)
            except (SourceUnavailableError, OutcomeUnknownError):
                pass
            else:
                raise AssertionError("a loop got an answer that no thread could have given it")
        lease = await repeat_async("acquire", lambda: lock.acquire(timeout=TRY_S))
        await lease.release()


def use_in_child(url: str) -> None:
    """Acquire in a forked child."""
    with fencelock.connect(url) as source, source.lock("child", ttl=TTL_S, timeout=TRY_S / 2):
        pass


if __name__ == "__main__":
    warm_up()
    become_another_user()
    main(sys.argv[1])
