"""Every error that fencelock raises, and nothing else.

    FencelockError                       .definite: bool
    ├─ AcquireTimeoutError(TimeoutError)
    ├─ LeaseError
    │  ├─ LeaseExpiredError · LeaseLostError(.reason) · LeaseInheritedError · LeaseReleasedError
    │  └─ NotHeldError(RuntimeError)
    ├─ GuardError
    │  └─ StaleTokenError(.token .mark .resource) · TokenCollisionError · WrongLockError
    │     UnfencedWriteError · SealLostError
    ├─ SourceError
    │  ├─ SourceUnavailableError · OutcomeUnknownError · SchemaError · UnsupportedError
    │  └─ UnsafeSourceError
    └─ ConfigError(ValueError)
       └─ UnknownSchemeError · MissingDependencyError(ImportError)

Promise: each message says what happened, to which lock or resource, with which numbers, and what to do. `definite` says
whether the operation certainly did not happen (True) or may have happened (False): retry freely after the first, look
before you retry after the second. No message ever contains a claim or a sequencer: both are bearer proofs.
"""


class FencelockError(Exception):
    """The root of everything that fencelock raises on purpose."""

    definite: bool = True
    """True: the operation certainly did not happen. False: it may have happened."""


class AcquireTimeoutError(FencelockError, TimeoutError):
    """The lock was not obtained within the caller's timeout; the place in the queue is given up."""


class LeaseError(FencelockError):
    """Something was asked of a lease, or of a handle, that it cannot give."""


class LeaseExpiredError(LeaseError):
    """The lease's own deadline passed without word from the source: somebody else may hold the lock now."""


class LeaseLostError(LeaseError):
    """The source said that the lease is not ours any more; `reason` says why."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class LeaseInheritedError(LeaseError):
    """A forked child used its parent's lease: only `.token` and `.sequencer` can be read there."""


class LeaseReleasedError(LeaseError):
    """The lease was released before: acquire the lock again."""


class NotHeldError(LeaseError, RuntimeError):
    """A lock was released through a handle that holds nothing."""


class GuardError(FencelockError):
    """A guard refused, or was used in a way that could not protect the resource."""


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


class UnfencedWriteError(GuardError):
    """A write reached a protected resource without presenting a token in its transaction."""


class SealLostError(GuardError):
    """A seal that this tenure made is gone: the resource went back in time, and everything read from it is void."""


class SourceError(FencelockError):
    """The source of tokens could not do what was asked."""


class SourceUnavailableError(SourceError):
    """The source or the resource cannot be reached or read at the moment."""


class OutcomeUnknownError(SourceError):
    """The source may or may not have done what was asked: the reply never came."""

    definite = False


class SchemaError(SourceError):
    """The store holds no fencelock schema, or one of another version; the message names the remedy."""


class UnsupportedError(SourceError):
    """This store or this machine cannot give what the operation needs."""


class UnsafeSourceError(SourceError):
    """This kind of store cannot issue fencing tokens safely; the message says why, and what to use."""


class ConfigError(FencelockError, ValueError):
    """An argument is outside its contract; the message states the contract."""


class UnknownSchemeError(ConfigError):
    """The URL's scheme belongs to no store that is known here."""


class MissingDependencyError(ConfigError, ImportError):
    """The store needs a client library that is not installed, or cannot be loaded; the message says what to install."""
