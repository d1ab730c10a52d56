"""Which error a caller is told as which fault, and which error it raises for it: one table for all protocols.

Promise: a caller of a service gets the class of error that a guard in its own process would raise, with the same
numbers. What is not in the table passes, and so does what no guard has raised for the request's own lease. A fault
whose effect is unknown never becomes one that is definite. Never: a sequencer in a fault; a text about the inside of a
service with a fault of 500 or above.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fencelock._api.credentials import is_asked_by
from fencelock._remote.carried import CarriedSequencer
from fencelock.errors import (
    AlreadyDoneError,
    BlockLostError,
    ConfigError,
    EffectInDoubtError,
    FencelockError,
    ForgedSequencerError,
    GuardError,
    ImplausibleTokenError,
    KeyReusedError,
    OutcomeUnknownError,
    RightError,
    SealLostError,
    SourceUnavailableError,
    StaleTokenError,
    TokenCollisionError,
    UnfencedWriteError,
    WrongLockError,
)
from fencelock.model import Sequencer

RETRY_AFTER_S = 1
"""When a client may try again what certainly had no effect."""
_SERVER_ERROR = 500
_UNAVAILABLE = 503
_DEFINITE = "definite"
_NOTHING_DONE = ". Nothing was done"
_NUMBERS = ("token", "mark", "ceiling")
_MAX_DIGITS = 19


class FaultKind(NamedTuple):
    """One kind of fault: its name, its HTTP status, the error that it is, and the error's attributes."""

    name: str
    status: int
    error: type[FencelockError]
    attributes: tuple[str, ...] = ()
    title: str = ""


class RemoteFault(NamedTuple):
    """What a caller is told instead of an answer. `fields` are its members, all of them text."""

    kind: str
    status: int
    title: str
    detail: str
    fields: Mapping[str, str]


_TOLD = (
    FaultKind(
        "stale-token", 412, StaleTokenError, ("token", "mark", "resource"), "A newer holder has sealed the resource"
    ),
    FaultKind("seal-lost", 409, SealLostError, (), "The resource went back in time"),
    FaultKind("token-collision", 409, TokenCollisionError, (), "Another lease has this token"),
    FaultKind("wrong-lock", 403, WrongLockError, (), "The resource belongs to another lock"),
    FaultKind("forged-sequencer", 403, ForgedSequencerError, (), "The signature is missing or wrong"),
    FaultKind("missing-right", 403, RightError, (), "The service may not write to the resource"),
    FaultKind(
        "implausible-token",
        400,
        ImplausibleTokenError,
        ("token", "ceiling", "resource"),
        "No source can have issued this token",
    ),
    FaultKind("already-done", 200, AlreadyDoneError, ("result", "token"), "The request was done before"),
    FaultKind("key-reused", 422, KeyReusedError, ("token", "holder"), "The key stands for another request"),
    FaultKind(
        "effect-in-doubt", 409, EffectInDoubtError, ("token", "holder", "began_at"), "The effect may have happened"
    ),
    FaultKind("block-lost", 503, BlockLostError, (), "The connection to the resource ended, and nothing was written"),
    FaultKind("unfenced-write", 500, UnfencedWriteError, (), "The service wrote without presenting the token"),
    FaultKind("unavailable", 503, SourceUnavailableError, (), "The resource cannot be reached, and nothing was done"),
    FaultKind("outcome-unknown", 504, OutcomeUnknownError, (), "The request may have taken effect"),
    FaultKind("guard-refused", 409, GuardError, (), "The guard refused the request"),
)
"""The faults that an error of a handler becomes: the first whose class it is."""
_REQUEST = (
    FaultKind("token-required", 428, UnfencedWriteError, (), "The request needs a Fencing-Token"),
    FaultKind("malformed-token", 400, ConfigError, (), "The Fencing-Token is not understood"),
    FaultKind("malformed-key", 400, ConfigError, (), "The Idempotency-Key is missing or not understood"),
)
"""The faults of a request itself, before any guard has seen it."""
KINDS: dict[str, FaultKind] = {kind.name: kind for kind in (*_TOLD, *_REQUEST)}
"""Every kind of fault, by its name."""
_OF_THE_FIRST = frozenset({"already-done", "key-reused", "effect-in-doubt"})
"""The kinds whose `token` is that of the request that used the key first."""


class RefusedRequestError(GuardError):
    """A request was refused before a guard saw it; `fault` says why."""

    def __init__(self, fault: RemoteFault) -> None:
        super().__init__(fault.detail)
        self.fault = fault


def token_required(lock: str | None = None) -> RemoteFault:
    """Return the fault of a request that needs a token and has none."""
    who = "its holder" if lock is None else f"the holder of lock {lock!r}"
    detail = f"this takes requests of {who} only: acquire the lock, and send the lease's sequencer. Nothing was done"
    return _fault("token-required", detail, {} if lock is None else {"lock": lock})


def malformed_token(why: str) -> RemoteFault:
    """Return the fault of a request whose token is not understood; `why` contains nothing of it."""
    return _fault("malformed-token", why + _NOTHING_DONE, {})


def malformed_key(why: str) -> RemoteFault:
    """Return the fault of a request whose idempotency key is missing or not understood."""
    return _fault("malformed-key", why + _NOTHING_DONE, {})


def wrong_lock(sequencer: Sequencer, locks: Iterable[str]) -> RemoteFault:
    """Return the fault of a request that is another lock's; `locks` are those whose holders are let in."""
    names = " or ".join(repr(lock) for lock in dict.fromkeys(locks))
    detail = (
        f"this takes requests of the holder of lock {names} only, and the token is of lock {sequencer.lock!r}: acquire "
        f"lock {names} for them, or correct the name here or in the service. Nothing was done"
    )
    return _fault("wrong-lock", detail, {"lock": sequencer.lock, "token": str(sequencer.token)})


def _fault(kind: str, detail: str, fields: Mapping[str, str]) -> RemoteFault:
    known = KINDS[kind]
    return RemoteFault(kind, known.status, known.title, detail, fields)


def fault_of(error: BaseException, carried: CarriedSequencer | None) -> RemoteFault | None:
    """Return what the caller is told of a handler's error; None if the error is not about its request.

    `carried`: the request's sequencer. Without one no guard has seen the request, and nothing but its refusal is told.
    Of a group, as a TaskGroup raises it, the worst fault is told, if each of its errors is about the request.
    """
    if isinstance(error, BaseExceptionGroup):
        faults = [fault_of(one, carried) for one in error.exceptions]
        told = [fault for fault in faults if fault is not None]
        return max(told, key=lambda fault: fault.status) if len(told) == len(faults) else None
    if isinstance(error, RefusedRequestError):
        return _after_blocks(error.fault, carried)
    if carried is None or not isinstance(error, FencelockError) or not is_asked_by(error, carried):
        # What the service has met as a client itself, or with another lease, says nothing about this request.
        return None
    if (kind := _kind_of(error, carried)) is None:
        return None
    own = {name: str(getattr(error, name)) for name in kind.attributes}
    if carried.has_begun_blocks:
        own[_DEFINITE] = "false"
    detail = str(error) if kind.status < _SERVER_ERROR else f"{kind.title}. The service's log says more"
    return _fault(kind.name, detail, {"lock": carried.lock, "token": str(carried.token)} | own)


def _after_blocks(refused: RemoteFault, carried: CarriedSequencer | None) -> RemoteFault:
    """Return the fault of a request, which is not definite if the handler asked for a key after a guarded block."""
    if carried is None or not carried.tenure.has_begun_reading:
        return refused
    return refused._replace(
        detail=refused.detail.removesuffix(_NOTHING_DONE), fields={**refused.fields, _DEFINITE: "false"}
    )


def _kind_of(error: FencelockError, carried: CarriedSequencer) -> FaultKind | None:
    kind = next((kind for kind in _TOLD if isinstance(error, kind.error)), None)
    is_to_retry = kind is not None and kind.status == _UNAVAILABLE
    # An earlier block of the same request may be committed, so that the whole request is not to be sent again.
    is_in_doubt = not error.definite or (is_to_retry and carried.has_begun_blocks)
    return KINDS["outcome-unknown"] if is_in_doubt else kind


def error_of(kind: str, detail: str, fields: Mapping[str, object], token: int) -> FencelockError | None:
    """Return the error that a fault stands for; None if this version does not know the kind, or a member is missing.

    `token`: the request's own. The fault of another request is an OutcomeUnknownError: it says nothing about this one.
    """
    known = KINDS.get(kind)
    if known is None:
        return None
    told = _value("token", fields.get("token"))
    if kind not in _OF_THE_FIRST and told not in {None, token}:
        return OutcomeUnknownError(
            f"the answer to a request with token {token} is the fault {kind} of token {told}: it is another request's, "
            f"from a cache or a proxy in between. What was done is unknown until read"
        )
    values = {name: _value(name, fields.get(name)) for name in known.attributes}
    if None in values.values():
        return None
    make: Any = known.error
    error: FencelockError = make(_printable(detail), **values)
    # An earlier block of the same request may be committed, of which the refusal says nothing.
    error.definite = error.definite and fields.get(_DEFINITE) != "false"
    return error


def _printable(text: str) -> str:
    """Return a text from elsewhere without what could break a line of a log, or control a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _value(name: str, text: object) -> str | int | None:
    if not isinstance(text, str):
        return None
    if name not in _NUMBERS:
        return text
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None
