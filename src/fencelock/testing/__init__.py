"""fencelock.testing: prove a store, and test code that takes locks.

Promise: everything here runs the library's real code; only time, lost replies and lost leases are made up. The
conformance kits (`SourceConformance`, `GuardConformance` and their async twins) run under pytest and do not import it.
`ReferenceModel` and `MemoryResource` are the smallest source and the smallest guarded resource that keep every rule.
Names are loaded when they are first used. Never: imported by production code.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencelock.stores.memory.reference_model import ReferenceModel
    from fencelock.stores.memory.source import MemorySource
    from fencelock.testing.clock import ManualClock, skew_clock
    from fencelock.testing.conformance.guard import AsyncGuardConformance, GuardConformance
    from fencelock.testing.conformance.rig import failures
    from fencelock.testing.conformance.source import AsyncSourceConformance, SourceConformance
    from fencelock.testing.fakes import expire, lose
    from fencelock.testing.memory_resource import MemoryResource, MemoryResourceSession
    from fencelock.testing.unfenced_client import EtcdKeys, resource_path, unfenced

_HOMES = {
    "AsyncGuardConformance": "fencelock.testing.conformance.guard",
    "AsyncSourceConformance": "fencelock.testing.conformance.source",
    "EtcdKeys": "fencelock.testing.unfenced_client",
    "GuardConformance": "fencelock.testing.conformance.guard",
    "ManualClock": "fencelock.testing.clock",
    "MemoryResource": "fencelock.testing.memory_resource",
    "MemoryResourceSession": "fencelock.testing.memory_resource",
    "MemorySource": "fencelock.stores.memory.source",
    "ReferenceModel": "fencelock.stores.memory.reference_model",
    "SourceConformance": "fencelock.testing.conformance.source",
    "expire": "fencelock.testing.fakes",
    "failures": "fencelock.testing.conformance.rig",
    "lose": "fencelock.testing.fakes",
    "resource_path": "fencelock.testing.unfenced_client",
    "skew_clock": "fencelock.testing.clock",
    "unfenced": "fencelock.testing.unfenced_client",
}

__all__ = [
    "AsyncGuardConformance",
    "AsyncSourceConformance",
    "EtcdKeys",
    "GuardConformance",
    "ManualClock",
    "MemoryResource",
    "MemoryResourceSession",
    "MemorySource",
    "ReferenceModel",
    "SourceConformance",
    "expire",
    "failures",
    "lose",
    "resource_path",
    "skew_clock",
    "unfenced",
]


if not TYPE_CHECKING:  # A checker that saw it would believe in every name.

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'fencelock.testing' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        value.__module__ = "fencelock.testing"  # Where users find it; tracebacks and reprs say so too.
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
