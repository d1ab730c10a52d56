"""The seal route: a client seals all guards of a service before it reads anything from any of them (G2).

Promise: an answer without an error says that each of the service's resources that belong to the token's lock has
admitted it, durably. Never: a mark raised that the client was told of before (G9).
"""

from collections.abc import Sequence
from typing import TypeVar

from fencelock._api.base_guard import BaseGuard
from fencelock._api.guard import Guard
from fencelock._remote.carried import CarriedSequencer
from fencelock._remote.faults import RefusedRequestError, token_required, wrong_lock
from fencelock._remote.sealing import seal, seal_async
from fencelock.http.methods_and_paths import SEAL_PATH
from fencelock.http.service import FencedRequest, HTTPAnswer

AnyGuard = TypeVar("AnyGuard", bound=BaseGuard)


def is_seal(guards: Sequence[object], method: str, path: str) -> bool:
    """Return whether a request, to this path of the application, is one to the seal route of these guards."""
    return bool(guards) and method == "POST" and path == SEAL_PATH


def answer_seal(guards: Sequence[Guard], request: FencedRequest) -> HTTPAnswer:
    """Seal the guards of the token's lock, and return the answer."""
    carried = _carried(request)
    seal(_guards_of(guards, carried), carried)
    return request.answer_sealed()


async def answer_seal_async(guards: Sequence[BaseGuard], request: FencedRequest) -> HTTPAnswer:
    """As `answer_seal`, for asyncio."""
    carried = _carried(request)
    await seal_async(_guards_of(guards, carried), carried)
    return request.answer_sealed()


def _carried(request: FencedRequest) -> CarriedSequencer:
    if request.carried is None:
        raise RefusedRequestError(token_required())
    return request.carried


def _guards_of(guards: Sequence[AnyGuard], carried: CarriedSequencer) -> Sequence[AnyGuard]:
    """Return the guards of the sequencer's lock; RefusedRequestError if there is none."""
    found = [guard for guard in guards if guard.lock == carried.lock]
    if not found:
        raise RefusedRequestError(wrong_lock(carried.sequencer, (guard.lock for guard in guards)))
    return found
