"""fenceline.testing: prove a store, test code that takes locks, and simulate the protocol.

Promise: everything here runs the library's real code; only time, networks and crashes are made up. The conformance kit
(`SourceConformance`, `GuardConformance` and their async twins) runs under pytest and imports nothing of it. Names are
loaded when they are first used; production code never imports this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fenceline.testing.clock import ManualClock
    from fenceline.testing.conformance.guard import AsyncGuardConformance, GuardConformance
    from fenceline.testing.conformance.rig import failures
    from fenceline.testing.conformance.source import AsyncSourceConformance, SourceConformance
    from fenceline.testing.fakes import expire, lose
    from fenceline.testing.memory import MemorySource

_HOMES = {
    "AsyncGuardConformance": "fenceline.testing.conformance.guard",
    "AsyncSourceConformance": "fenceline.testing.conformance.source",
    "GuardConformance": "fenceline.testing.conformance.guard",
    "ManualClock": "fenceline.testing.clock",
    "MemorySource": "fenceline.testing.memory",
    "SourceConformance": "fenceline.testing.conformance.source",
    "expire": "fenceline.testing.fakes",
    "failures": "fenceline.testing.conformance.rig",
    "lose": "fenceline.testing.fakes",
}

__all__ = [
    "AsyncGuardConformance",
    "AsyncSourceConformance",
    "GuardConformance",
    "ManualClock",
    "MemorySource",
    "SourceConformance",
    "expire",
    "failures",
    "lose",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fenceline.testing' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    value.__module__ = "fenceline.testing"  # Where users find it; tracebacks and reprs say so too.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
