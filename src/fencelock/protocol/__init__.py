"""What a store must be: the public contract between fencelock and the systems that it keeps its locks and marks in.

**A source** issues tokens. `SourceStore.connect` returns a connection whose `perform` answers one request with one
`SourceReply`, and decides about each lock in one atomic step. **A guard** enforces tokens at a resource. The
connection that `GuardStore.connect` returns runs all requests between `Begin` and `Commit`, and between `Open` and
`Finish`, in one write transaction. Each request's docstring names the replies that it may get.

- **Units**: times whose names end in `_ms` and `_us` are integers, milliseconds and microseconds. The source's clock
  decides; it is read inside the decision, after its lock was taken, or `Capabilities.clock` says what decides in its
  place.
- **Idempotence**: a request that changes a source carries the claim that identifies it. The caller repeats a request
  whose reply was lost, and the store gives the same answer. A claim is granted at most once, even if a late copy of its
  `Acquire` arrives after its `Release`.
- **Errors**: an error of `fencelock.errors` whose `definite` is true says that the request certainly had no effect
  (`SourceUnavailableError`). `OutcomeUnknownError` says that it may have had one. After any exception the caller closes
  a source's connection.
- **Decisions**: a source decides who holds a lock. A guard decides nothing: it compares, reads and writes marks.

A **flow** is a generator that yields requests and is sent replies; `ask` gives each reply its type, `run_generator`
runs a flow.
`docs/reference/protocol.md` tells when each request is sent, `docs/how-to/write-a-store.md` builds a store, and the
kits of `fencelock.testing` prove one.

Promise: every name in `__all__` is public, and names are loaded when they are first used.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fencelock.clock import boottime_ms, boottime_us
    from fencelock.model import (
        EPOCH_STRIDE,
        MAX_LOCK_NAME_BYTES,
        MAX_TOKEN,
        MIN_TOKEN,
        digest_of_claim,
        draw_claim,
        one_way,
    )
    from fencelock.protocol.generators import ask, run_generator, run_generator_async
    from fencelock.protocol.guard_requests import (
        ENFORCE,
        OBSERVE,
        AuditEntry,
        Begin,
        BeginEffect,
        ChangeMark,
        CloseMarks,
        Commit,
        ConflictError,
        Effect,
        FindOldMarks,
        Finish,
        Floor,
        GuardFlow,
        GuardReply,
        GuardRequest,
        HoldMarks,
        InspectResources,
        Join,
        Observation,
        Open,
        Present,
        Protect,
        Protected,
        PurgeEffects,
        PurgeMarks,
        RaiseMarks,
        ReadEffect,
        ReadMarks,
        ReadProtections,
        RecordRefusal,
        ResourceReport,
        Restore,
        SetFloor,
        SetSavepoint,
        UndoToSavepoint,
        Unpresent,
        Unprotect,
        WasProtected,
        WriteAudit,
        WriteEffect,
    )
    from fencelock.protocol.source_requests import (
        DRAW,
        NOT_SIGNED,
        NOW,
        Acquire,
        AcquireReply,
        BlockSpent,
        Break,
        Broken,
        Busy,
        Check,
        Checked,
        ClaimEnded,
        Draw,
        DriverRequest,
        Granted,
        Inspect,
        Listen,
        ListLocks,
        Now,
        Poll,
        Purge,
        Queued,
        RaiseEpoch,
        ReadSource,
        Release,
        Released,
        Renew,
        Renewed,
        ReserveBlock,
        Signature,
        SourceFlow,
        SourceReply,
        SourceRequest,
        Wait,
    )
    from fencelock.protocol.stores import (
        AsyncCallerGuardStore,
        AsyncGuardConnection,
        AsyncGuardStore,
        AsyncSourceConnection,
        AsyncSourceStore,
        CallerGuardStore,
        Capabilities,
        Channel,
        FrameworkConnection,
        GuardCapabilities,
        GuardConnection,
        GuardStore,
        PolicyGuardStore,
        PolicySourceStore,
        ProvableGuardStore,
        SourceConnection,
        SourceStore,
        SQLGuardStore,
    )

__all__ = [
    "DRAW",
    "ENFORCE",
    "EPOCH_STRIDE",
    "MAX_LOCK_NAME_BYTES",
    "MAX_TOKEN",
    "MIN_TOKEN",
    "NOT_SIGNED",
    "NOW",
    "OBSERVE",
    "Acquire",
    "AcquireReply",
    "AsyncCallerGuardStore",
    "AsyncGuardConnection",
    "AsyncGuardStore",
    "AsyncSourceConnection",
    "AsyncSourceStore",
    "AuditEntry",
    "Begin",
    "BeginEffect",
    "BlockSpent",
    "Break",
    "Broken",
    "Busy",
    "CallerGuardStore",
    "Capabilities",
    "ChangeMark",
    "Channel",
    "Check",
    "Checked",
    "ClaimEnded",
    "CloseMarks",
    "Commit",
    "ConflictError",
    "Draw",
    "DriverRequest",
    "Effect",
    "FindOldMarks",
    "Finish",
    "Floor",
    "FrameworkConnection",
    "Granted",
    "GuardCapabilities",
    "GuardConnection",
    "GuardFlow",
    "GuardReply",
    "GuardRequest",
    "GuardStore",
    "HoldMarks",
    "Inspect",
    "InspectResources",
    "Join",
    "ListLocks",
    "Listen",
    "Now",
    "Observation",
    "Open",
    "PolicyGuardStore",
    "PolicySourceStore",
    "Poll",
    "Present",
    "Protect",
    "Protected",
    "ProvableGuardStore",
    "Purge",
    "PurgeEffects",
    "PurgeMarks",
    "Queued",
    "RaiseEpoch",
    "RaiseMarks",
    "ReadEffect",
    "ReadMarks",
    "ReadProtections",
    "ReadSource",
    "RecordRefusal",
    "Release",
    "Released",
    "Renew",
    "Renewed",
    "ReserveBlock",
    "ResourceReport",
    "Restore",
    "SQLGuardStore",
    "SetFloor",
    "SetSavepoint",
    "Signature",
    "SourceConnection",
    "SourceFlow",
    "SourceReply",
    "SourceRequest",
    "SourceStore",
    "UndoToSavepoint",
    "Unpresent",
    "Unprotect",
    "Wait",
    "WasProtected",
    "WriteAudit",
    "WriteEffect",
    "ask",
    "boottime_ms",
    "boottime_us",
    "digest_of_claim",
    "draw_claim",
    "one_way",
    "run_generator",
    "run_generator_async",
]

_HOMES = (
    "fencelock.protocol.source_requests",
    "fencelock.protocol.stores",
    "fencelock.protocol.guard_requests",
    "fencelock.protocol.generators",
    "fencelock.model",
    "fencelock.clock",
)


if not TYPE_CHECKING:  # A checker that saw it would believe in every name.

    def __getattr__(name: str) -> object:
        if name in __all__:
            for home in _HOMES:
                module = import_module(home)
                if name in vars(module):
                    value = globals()[name] = vars(module)[name]
                    return value
        raise AttributeError(f"module 'fencelock.protocol' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
