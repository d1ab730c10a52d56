"""fencelock: locks that stay safe when leases do not.

Every acquisition yields a fencing token, and the protected resource itself refuses a token lower than the highest that
was sealed at it. `connect` opens a source of tokens, `guard` enforces them; `fencelock.aio` has both for asyncio.

Promise: importing this loads no asyncio and no store's client; names are loaded when they are first used.
"""

from importlib import import_module

TYPE_CHECKING = False  # As type checkers know it: importing `typing` would cost more than all the rest.
if TYPE_CHECKING:
    from fencelock._api.dispatch import Dispatch, dispatch
    from fencelock._api.guard import Guard, guard, inspect_resources
    from fencelock._api.guard_blocks import Admission, GuardedTransaction
    from fencelock._api.leading import Term, Terms
    from fencelock._api.lease import Lease, Lost
    from fencelock._api.lock import Lock, RLock
    from fencelock._api.once import Once
    from fencelock._api.purging import purge_effects, purge_marks, set_floor
    from fencelock._api.source import Source, connect
    from fencelock.errors import (
        AcquireTimeoutError,
        AlreadyDoneError,
        BlockLostError,
        ConfigError,
        EffectInDoubtError,
        FencelockError,
        ForgedSequencerError,
        GuardError,
        ImplausibleTokenError,
        KeyReusedError,
        LeaseError,
        LeaseExpiredError,
        LeaseInheritedError,
        LeaseLostError,
        LeaseReleasedError,
        MissingDependencyError,
        NotHeldError,
        OutcomeUnknownError,
        RightError,
        SchemaError,
        SealLostError,
        SourceError,
        SourceUnavailableError,
        StaleTokenError,
        TokenCollisionError,
        UnfencedWriteError,
        UnknownSchemeError,
        UnprotectedTableError,
        UnsafeSourceError,
        UnsupportedError,
        WrongLockError,
    )
    from fencelock.hooks import Event, Hooks
    from fencelock.model import (
        BrokenLock,
        Finding,
        LeaseCheck,
        LockInfo,
        Mark,
        Protection,
        Sequencer,
        SigningKey,
        SourceInfo,
    )
    from fencelock.verifier import Verifier

__version__ = "0.1.0.dev0"

_ERRORS = "fencelock.errors"
_BLOCKS = "fencelock._api.guard_blocks"
_GUARD = "fencelock._api.guard"
_PURGING = "fencelock._api.purging"
_HOOKS = "fencelock.hooks"
_MODEL = "fencelock.model"
_HOMES = {
    "AcquireTimeoutError": _ERRORS,
    "Admission": _BLOCKS,
    "AlreadyDoneError": _ERRORS,
    "BlockLostError": _ERRORS,
    "BrokenLock": _MODEL,
    "ConfigError": _ERRORS,
    "Dispatch": "fencelock._api.dispatch",
    "EffectInDoubtError": _ERRORS,
    "Event": _HOOKS,
    "FencelockError": _ERRORS,
    "Finding": _MODEL,
    "ForgedSequencerError": _ERRORS,
    "Guard": _GUARD,
    "GuardError": _ERRORS,
    "GuardedTransaction": _BLOCKS,
    "Hooks": _HOOKS,
    "ImplausibleTokenError": _ERRORS,
    "KeyReusedError": _ERRORS,
    "Lease": "fencelock._api.lease",
    "LeaseCheck": _MODEL,
    "LeaseError": _ERRORS,
    "LeaseExpiredError": _ERRORS,
    "LeaseInheritedError": _ERRORS,
    "LeaseLostError": _ERRORS,
    "LeaseReleasedError": _ERRORS,
    "Lock": "fencelock._api.lock",
    "LockInfo": _MODEL,
    "Lost": "fencelock._api.lease",
    "Mark": _MODEL,
    "MissingDependencyError": _ERRORS,
    "NotHeldError": _ERRORS,
    "Once": "fencelock._api.once",
    "OutcomeUnknownError": _ERRORS,
    "Protection": _MODEL,
    "RLock": "fencelock._api.lock",
    "RightError": _ERRORS,
    "SchemaError": _ERRORS,
    "SealLostError": _ERRORS,
    "Sequencer": _MODEL,
    "SigningKey": _MODEL,
    "Source": "fencelock._api.source",
    "SourceError": _ERRORS,
    "SourceInfo": _MODEL,
    "SourceUnavailableError": _ERRORS,
    "StaleTokenError": _ERRORS,
    "Term": "fencelock._api.leading",
    "Terms": "fencelock._api.leading",
    "TokenCollisionError": _ERRORS,
    "UnfencedWriteError": _ERRORS,
    "UnprotectedTableError": _ERRORS,
    "UnknownSchemeError": _ERRORS,
    "UnsafeSourceError": _ERRORS,
    "UnsupportedError": _ERRORS,
    "Verifier": "fencelock.verifier",
    "WrongLockError": _ERRORS,
    "connect": "fencelock._api.source",
    "dispatch": "fencelock._api.dispatch",
    "guard": _GUARD,
    "inspect_resources": _GUARD,
    "purge_effects": _PURGING,
    "purge_marks": _PURGING,
    "set_floor": _PURGING,
}

__all__ = [
    "AcquireTimeoutError",
    "Admission",
    "AlreadyDoneError",
    "BlockLostError",
    "BrokenLock",
    "ConfigError",
    "Dispatch",
    "EffectInDoubtError",
    "Event",
    "FencelockError",
    "Finding",
    "ForgedSequencerError",
    "Guard",
    "GuardError",
    "GuardedTransaction",
    "Hooks",
    "ImplausibleTokenError",
    "KeyReusedError",
    "Lease",
    "LeaseCheck",
    "LeaseError",
    "LeaseExpiredError",
    "LeaseInheritedError",
    "LeaseLostError",
    "LeaseReleasedError",
    "Lock",
    "LockInfo",
    "Lost",
    "Mark",
    "MissingDependencyError",
    "NotHeldError",
    "Once",
    "OutcomeUnknownError",
    "Protection",
    "RLock",
    "RightError",
    "SchemaError",
    "SealLostError",
    "Sequencer",
    "SigningKey",
    "Source",
    "SourceError",
    "SourceInfo",
    "SourceUnavailableError",
    "StaleTokenError",
    "Term",
    "Terms",
    "TokenCollisionError",
    "UnfencedWriteError",
    "UnknownSchemeError",
    "UnprotectedTableError",
    "UnsafeSourceError",
    "UnsupportedError",
    "Verifier",
    "WrongLockError",
    "connect",
    "dispatch",
    "guard",
    "inspect_resources",
    "purge_effects",
    "purge_marks",
    "set_floor",
]


if not TYPE_CHECKING:  # A checker that saw it would believe in every name.

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            from fencelock._api.missing_names import no_attribute

            raise no_attribute(__name__, name)
        value = getattr(import_module(home), name)
        value.__module__ = "fencelock"  # Where users find it; tracebacks and reprs say so too.
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
