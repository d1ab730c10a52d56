"""Fencing across gRPC: interceptors that bring a call's sequencer to its handler's guards, and channels of a lease.

Needs the extra `fencelock[grpc]` (grpcio, protobuf).

Promise: importing this loads neither gRPC nor asyncio; names are loaded when they are first used.
"""

from importlib import import_module

TYPE_CHECKING = False  # As type checkers know it: importing `typing` would cost more than all the rest.
if TYPE_CHECKING:
    from fencelock._remote.current import has_token, sequencer
    from fencelock.grpc.clients.asyncio import async_channel, async_seal
    from fencelock.grpc.clients.blocking import channel, seal
    from fencelock.grpc.server import AsyncFencingInterceptor, FencingInterceptor, once

_SERVER = "fencelock.grpc.server"
_CURRENT = "fencelock._remote.current"
_HOMES = {
    "AsyncFencingInterceptor": _SERVER,
    "FencingInterceptor": _SERVER,
    "async_channel": "fencelock.grpc.clients.asyncio",
    "async_seal": "fencelock.grpc.clients.asyncio",
    "channel": "fencelock.grpc.clients.blocking",
    "has_token": _CURRENT,
    "once": _SERVER,
    "seal": "fencelock.grpc.clients.blocking",
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


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fencelock.grpc' has no attribute {name!r}")
    value = getattr(_load(home), name)
    globals()[name] = value
    return value


def _load(home: str) -> object:
    try:
        return import_module(home)
    except ModuleNotFoundError as error:
        from fencelock._install import install_extra
        from fencelock.errors import MissingDependencyError

        raise MissingDependencyError(
            f"fencelock.grpc needs grpcio and protobuf, and {error.name} is not installed: {install_extra('grpc')}"
        ) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
