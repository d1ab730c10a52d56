"""The interceptors of a gRPC server: they carry a call's sequencer to the guard in its handler, which decides.

Promise: a call without a token, with one that is not understood, or of a lock that no listed guard has reaches no
handler, unless `required` lets it in without one. A client seals
all guards of a service before its first other call. Never: a mark read, compared or kept here.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from fencelock._api.base_guard import BaseGuard
from fencelock._api.credentials import asking
from fencelock._api.once import Once
from fencelock._remote.carried import CarriedSequencer
from fencelock._remote.current import sequencer
from fencelock._remote.faults import RefusedRequestError, RemoteFault, malformed_key, token_required, wrong_lock
from fencelock._remote.fields import KEY_FIELD, MAX_KEY_CHARACTERS, SEALED_FIELD, TOKEN_FIELD
from fencelock._remote.reading import read_carried
from fencelock._remote.sealing import check_guards, check_sync, seal, seal_async
from fencelock.errors import ConfigError, WrongLockError
from fencelock.grpc.context import current_call
from fencelock.grpc.handlers import IncomingCall, fenced
from fencelock.grpc.method_and_metadata import SEAL_METHOD

_STANDARD_SERVICES = "/grpc."

Guards = Iterable[BaseGuard] | Callable[[str], Iterable[BaseGuard]]
"""The guards of a service, or a function that returns those of a lock."""


def is_application_method(method: str) -> bool:
    """Return whether a method is the application's: not one of gRPC's own services, as health and reflection."""
    return not method.startswith(_STANDARD_SERVICES)


class _Fencing:
    """What the interceptors of both APIs share."""

    def __init__(self, guards: Guards, *, required: Callable[[str], bool] = is_application_method) -> None:
        """`guards`: those that the handlers use; a client seals them all before its first call. If each lock has
        resources of its own, a function that takes the lock's name and returns its guards.

        `required`: whether a method, `/package.Service/Method`, takes calls with a token only. By default all do but
        those of gRPC's own services, `/grpc.…`.
        """
        self._guards = guards if callable(guards) else self._checked(guards)
        self._required = required
        if not self._guards:
            raise ConfigError("guards must name the guards that the handlers use: without any, no call is let in")

    def _checked(self, guards: Iterable[BaseGuard]) -> tuple[Any, ...]:
        return check_guards(guards)

    def _guards_of(self, carried: CarriedSequencer) -> tuple[Any, ...]:
        """Return the guards of the sequencer's lock; WrongLockError if there is none."""
        listed = self._checked(self._guards(carried.lock)) if callable(self._guards) else self._guards
        guards = tuple(guard for guard in listed if guard.lock == carried.lock)
        if not guards:
            with asking(carried):
                raise WrongLockError(f"no resource of this service belongs to lock {carried.lock!r}")
        return guards

    def _locks(self) -> str:
        return "" if callable(self._guards) else " or ".join(dict.fromkeys(guard.lock for guard in self._guards))

    def _fence(self, handler: Any, details: grpc.HandlerCallDetails) -> Any:
        return None if handler is None else fenced(handler, self._incoming(details))

    def _incoming(self, details: grpc.HandlerCallDetails) -> IncomingCall:
        method, pairs = details.method, list(details.invocation_metadata or ())
        tokens, sealed = ([str(value) for key, value in pairs if key == name] for name in (TOKEN_FIELD, SEALED_FIELD))
        try:
            carried = read_carried(tokens, sealed)
        except RefusedRequestError as error:
            return IncomingCall(method, refusal=error.fault)
        return IncomingCall(method, carried, self._refusal_of(method, carried))

    def _refusal_of(self, method: str, carried: CarriedSequencer | None) -> RemoteFault | None:
        if carried is None:
            is_needed = method == SEAL_METHOD or self._required(method)
            return token_required(self._locks() or None) if is_needed else None
        if callable(self._guards) or any(guard.lock == carried.lock for guard in self._guards):
            return None
        return wrong_lock(carried.sequencer, (guard.lock for guard in self._guards))


class FencingInterceptor(_Fencing, grpc.ServerInterceptor):
    """Fences the calls of a `grpc.server`. It belongs last in its list of interceptors, next to the handlers."""

    def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the method's handler, fenced."""
        is_seal = handler_call_details.method == SEAL_METHOD
        handler = grpc.unary_unary_rpc_method_handler(self._seal) if is_seal else continuation(handler_call_details)
        return self._fence(handler, handler_call_details)

    def _checked(self, guards: Iterable[BaseGuard]) -> tuple[Any, ...]:
        return check_sync(guards)

    def _seal(self, _request: bytes, _context: Any) -> bytes:
        carried = sequencer()
        seal(self._guards_of(carried), carried)
        return b""


class AsyncFencingInterceptor(_Fencing, grpc.aio.ServerInterceptor):
    """Fences the calls of a `grpc.aio.server`. It belongs last in its list of interceptors, next to the handlers."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Return the method's handler, fenced."""
        if handler_call_details.method == SEAL_METHOD:
            return self._fence(grpc.unary_unary_rpc_method_handler(self._seal), handler_call_details)
        return self._fence(await continuation(handler_call_details), handler_call_details)

    async def _seal(self, _request: bytes, _context: Any) -> bytes:
        carried = sequencer()
        await seal_async(self._guards_of(carried), carried)
        return b""


def once(request: Any) -> Once:
    """Return the job of the call that is being answered, for `guard.transaction(sequencer(), once=…)`.

    Its key is the call's `idempotency-key`, and belongs to the method and to the request, a protobuf message or bytes.
    A call without a key is refused as "malformed key", if nothing handles the error.
    """
    call = current_call()
    keys = [str(value) for key, value in call.invocation_metadata() if key == KEY_FIELD]
    if len(keys) != 1 or not 0 < len(keys[0]) <= MAX_KEY_CHARACTERS:
        raise RefusedRequestError(malformed_key(f"one {KEY_FIELD} of 1 to {MAX_KEY_CHARACTERS} characters is needed"))
    return Once(keys[0], request=call.method.encode() + b"\0" + encoded_request(request))


def encoded_request(request: Any) -> bytes:
    """Return the bytes of a request; ConfigError if it is neither a protobuf message nor bytes."""
    if isinstance(request, bytes):
        return request
    if not hasattr(request, "SerializeToString"):
        raise ConfigError(f"request must be a protobuf message or bytes, not {type(request).__name__}")
    return bytes(request.SerializeToString(deterministic=True))
