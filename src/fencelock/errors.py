"""Every error that fencelock raises, and nothing else.

    FencelockError
    ├─ AcquireTimeoutError(TimeoutError)
    ├─ LeaseError
    │  ├─ LeaseExpiredError
    │  ├─ LeaseLostError
    │  ├─ LeaseInheritedError
    │  ├─ LeaseReleasedError
    │  └─ NotHeldError(RuntimeError)
    ├─ GuardError
    │  ├─ StaleTokenError
    │  ├─ TokenCollisionError
    │  ├─ WrongLockError
    │  ├─ ImplausibleTokenError
    │  ├─ ForgedSequencerError
    │  ├─ RightError
    │  ├─ AlreadyDoneError
    │  ├─ KeyReusedError
    │  ├─ EffectInDoubtError
    │  ├─ UnfencedWriteError
    │  ├─ UnprotectedTableError
    │  ├─ SealLostError
    │  └─ BlockLostError
    ├─ SourceError
    │  ├─ SourceUnavailableError
    │  ├─ OutcomeUnknownError
    │  ├─ SchemaError
    │  ├─ UnsupportedError
    │  └─ UnsafeSourceError
    └─ ConfigError(ValueError)
       ├─ UnknownSchemeError
       └─ MissingDependencyError(ImportError)

Promise: each message says what happened, to which lock or resource, with which numbers, and what to do. `definite` says
whether the operation certainly did not happen (True: retry freely) or may have happened (False: look before you retry).
No message ever contains a claim or a sequencer, because anyone who has one can act for the lease. Each error can be
pickled, so that a pool of processes or a task queue hands on the class that was raised, with its numbers.
"""

from typing import Any


class FencelockError(Exception):
    """The base of every error that fencelock raises."""

    definite: bool = True
    """True: the operation certainly did not happen. False: it may have happened."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would call the class with the message alone, which is not enough where there are numbers.
        return _copy_of, (type(self), self.args), self.__dict__


def _copy_of(kind: type[FencelockError], args: tuple[Any, ...]) -> FencelockError:
    error = kind.__new__(kind)
    error.args = args
    return error


class AcquireTimeoutError(FencelockError, TimeoutError):
    """The lock was not obtained within the caller's timeout; the waiter has left the queue."""


class LeaseError(FencelockError):
    """A lease, or a handle to a lock, cannot do what was asked of it."""


class LeaseExpiredError(LeaseError):
    """The lease's deadline passed before a renewal was confirmed: somebody else may hold the lock now."""


class LeaseLostError(LeaseError):
    """The source reported that this lease no longer holds the lock; `reason` says why."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class LeaseInheritedError(LeaseError):
    """A forked child used its parent's lease: only `.token` and `.sequencer` can be read there."""


class LeaseReleasedError(LeaseError):
    """The lease has been released: acquire the lock again."""


class NotHeldError(LeaseError, RuntimeError):
    """A handle that holds nothing was asked to release its lock."""


class GuardError(FencelockError):
    """A guard refused a write, or was used in a way that cannot protect the resource."""


class StaleTokenError(GuardError):
    """The token is below the resource's mark, or its holder closed it: a newer holder owns the resource."""

    def __init__(self, message: str, *, token: int, mark: int, resource: str) -> None:
        super().__init__(message)
        self.token = token
        self.mark = mark
        self.resource = resource


class TokenCollisionError(GuardError):
    """Two claims present the same token: the source issued one token twice, so its history is broken."""


class WrongLockError(GuardError):
    """The resource is bound to another lock, or to another source, than the sequencer's."""


class ImplausibleTokenError(GuardError):
    """No source can have issued so high a token by now, so the guard does not seal the resource with it."""

    def __init__(self, message: str, *, token: int, ceiling: int, resource: str) -> None:
        super().__init__(message)
        self.token = token
        self.ceiling = ceiling
        self.resource = resource


class ForgedSequencerError(GuardError):
    """A sequencer that needs a signature has none, a wrong one, or one of an unknown or retired key."""


class RightError(GuardError):
    """This role may not seal, present or close the resource: nobody has granted it that right."""


class AlreadyDoneError(GuardError):
    """What this key stands for was done before; `result` is what was recorded of it, by the lease with `token`."""

    def __init__(self, message: str, *, result: str, token: int) -> None:
        super().__init__(message)
        self.result = result
        self.token = token


class KeyReusedError(GuardError):
    """The key stands for another request, which the lease with `token` began: nothing of this one was done."""

    def __init__(self, message: str, *, token: int, holder: str) -> None:
        super().__init__(message)
        self.token = token
        self.holder = holder


class EffectInDoubtError(GuardError):
    """A holder began the effect of this key and never recorded its result: it may have happened, or not."""

    def __init__(self, message: str, *, token: int, holder: str, began_at: str) -> None:
        super().__init__(message)
        self.token = token
        self.holder = holder
        self.began_at = began_at


class UnfencedWriteError(GuardError):
    """A write reached a protected resource without presenting a token in its transaction."""


class UnprotectedTableError(GuardError):
    """A table that the resource protects was rebuilt without its triggers, so that it would take any write."""


class SealLostError(GuardError):
    """A seal that this tenure made is gone: the resource went back in time, so discard everything read from it."""


class BlockLostError(GuardError):
    """The connection of a guarded block ended inside it: nothing of it was written. Its lease may be valid still."""


class SourceError(FencelockError):
    """The source of tokens could not do what was asked."""


class SourceUnavailableError(SourceError):
    """The source or the resource cannot be reached, or is busy; the operation certainly had no effect."""


class OutcomeUnknownError(SourceError):
    """The operation may have taken effect: the connection failed before the reply arrived.

    `idempotency_key` belongs to a request to a service: sent again with the same one, it is not done twice.
    """

    definite = False
    idempotency_key: str | None = None


class SchemaError(SourceError):
    """The store holds no fencelock schema, one of another version, or a damaged one; the message names the remedy."""


class UnsupportedError(SourceError):
    """This store or this machine lacks something that the operation needs."""


class UnsafeSourceError(SourceError):
    """This kind of store cannot issue fencing tokens safely; the message says why, and what to use."""


class ConfigError(FencelockError, ValueError):
    """An argument is outside its contract; the message states the contract."""


class UnknownSchemeError(ConfigError):
    """No installed store has the URL's scheme."""


class MissingDependencyError(ConfigError, ImportError):
    """The store needs a client library that is not installed, or cannot be loaded; the message says what to install."""
