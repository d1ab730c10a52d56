"""A service's side of a seal: the guards that a client seals before it reads anything from any of them (G2).

Promise: once `seal` returns, each guard's resources have admitted the token, durably. Never: a mark raised that the
client was told of before (G9).
"""

import asyncio
from collections.abc import Iterable
from typing import cast

from fencelock._api.aio_guard import AsyncGuard
from fencelock._api.base_guard import BaseGuard
from fencelock._api.guard import Guard
from fencelock._remote.carried import CarriedSequencer
from fencelock.errors import ConfigError


def check_guards(guards: Iterable[object]) -> tuple[BaseGuard, ...]:
    """Return the guards; ConfigError for what is none."""
    if isinstance(guards, BaseGuard):
        raise ConfigError("guards must be a list of guards, [guard], not one guard")
    given = tuple(guards)
    for guard in given:
        if not isinstance(guard, BaseGuard):
            raise ConfigError(f"guards must be what fencelock.guard(…) returned, not {type(guard).__name__}")
    return cast("tuple[BaseGuard, ...]", given)


def check_sync(guards: Iterable[object]) -> tuple[Guard, ...]:
    """Return the guards; ConfigError for one that seals asynchronously, where nothing of the service can await it."""
    checked = check_guards(guards)
    sync = tuple(guard for guard in checked if isinstance(guard, Guard))
    if len(sync) < len(checked):
        raise ConfigError("a guard of fencelock.aio was given, and the service is synchronous: use fencelock.guard")
    return sync


def seal(guards: Iterable[Guard], carried: CarriedSequencer) -> None:
    """Seal each of the guards."""
    for guard in guards:
        guard.seal(carried)


async def seal_async(guards: Iterable[BaseGuard], carried: CarriedSequencer) -> None:
    """As `seal`, for asyncio: a sync guard works in a thread."""
    for guard in guards:
        if isinstance(guard, AsyncGuard):
            await guard.seal(carried)
        elif isinstance(guard, Guard):
            await asyncio.to_thread(guard.seal, carried)
