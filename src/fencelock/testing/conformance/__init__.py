"""The conformance kits: a check for every rule that a store can break, which its author runs with a few lines.

Promise: a check fails with the rule that was broken. A store declares what it cannot do; no error skips a check.
A kit is a plain class: pytest collects a subclass of it, and `failures(kit)` runs one without pytest.
"""

from fencelock.testing.conformance.guard import AsyncGuardConformance, GuardConformance
from fencelock.testing.conformance.rig import failure, failures
from fencelock.testing.conformance.source import AsyncSourceConformance, SourceConformance

__all__ = [
    "AsyncGuardConformance",
    "AsyncSourceConformance",
    "GuardConformance",
    "SourceConformance",
    "failure",
    "failures",
]
