"""fencelock for asyncio: the same names, with `await` in front, and with tasks instead of threads.

async with fencelock.aio.connect("sqlite:///locks.db") as source:
    async with source.lock("nightly-report") as lease: ...
"""

from typing import TYPE_CHECKING

from fencelock._api.aio_dispatch import AsyncDispatch, dispatch
from fencelock._api.aio_guard import AsyncGuard, guard
from fencelock._api.aio_guard_blocks import AsyncAdmission, AsyncGuardedTransaction
from fencelock._api.aio_leading import AsyncTerm, AsyncTerms
from fencelock._api.aio_lease import AsyncLease, AsyncLost
from fencelock._api.aio_lock import AsyncLock, AsyncRLock
from fencelock._api.aio_source import AsyncSource, connect
from fencelock._api.missing_names import no_attribute

__all__ = [
    "AsyncAdmission",
    "AsyncDispatch",
    "AsyncGuard",
    "AsyncGuardedTransaction",
    "AsyncLease",
    "AsyncLock",
    "AsyncLost",
    "AsyncRLock",
    "AsyncSource",
    "AsyncTerm",
    "AsyncTerms",
    "connect",
    "dispatch",
    "guard",
]

for _name in __all__:
    globals()[_name].__module__ = "fencelock.aio"  # Where users find it; tracebacks and reprs say so too.
del _name

if not TYPE_CHECKING:  # A checker that saw it would believe in every name.

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
