"""Fencing across gRPC: interceptors that bring a call's sequencer to its handler's guards, and channels of a lease.

Needs the extra `fencelock[grpc]` (grpcio, protobuf).

Promise: importing this loads neither gRPC nor asyncio; names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencelock._remote.current import has_token, sequencer
    from fencelock.grpc.client.asyncio import async_channel, async_seal
    from fencelock.grpc.client.blocking import channel, seal
    from fencelock.grpc.server import AsyncFencingInterceptor, FencingInterceptor, once

_SERVER = "fencelock.grpc.server"
_CURRENT = "fencelock._remote.current"
_HOMES = {
    "AsyncFencingInterceptor": _SERVER,
    "FencingInterceptor": _SERVER,
    "async_channel": "fencelock.grpc.client.asyncio",
    "async_seal": "fencelock.grpc.client.asyncio",
    "channel": "fencelock.grpc.client.blocking",
    "has_token": _CURRENT,
    "once": _SERVER,
    "seal": "fencelock.grpc.client.blocking",
    "sequencer": _CURRENT,
}
__all__ = [
    "AsyncFencingInterceptor",
    "FencingInterceptor",
    "async_channel",
    "async_seal",
    "channel",
    "has_token",
    "once",
    "seal",
    "sequencer",
]


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *(name for name in __all__ if name not in globals())]
