"""fencelock for asyncio: the same names, `await` in front, and the task in the thread's place.

async with fencelock.aio.connect("sqlite:///locks.db") as source:
    async with source.lock("nightly-report") as lease: ...
"""

from fencelock._api.aio_guard import AsyncGuard, guard
from fencelock._api.aio_lease import AsyncLease
from fencelock._api.aio_lock import AsyncLock, AsyncRLock
from fencelock._api.aio_source import AsyncSource, connect

__all__ = ["AsyncGuard", "AsyncLease", "AsyncLock", "AsyncRLock", "AsyncSource", "connect", "guard"]

for _public in (AsyncGuard, AsyncLease, AsyncLock, AsyncRLock, AsyncSource, connect, guard):
    _public.__module__ = "fencelock.aio"  # Where users find it; tracebacks and reprs say so too.
del _public
