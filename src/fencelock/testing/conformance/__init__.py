"""The conformance kits: checks of most rules that a store can break. A store's author runs them with a few lines.

Promise: a failing check names the broken rule. A store declares what it cannot do; an error never skips a check.
A kit is a plain class: pytest collects its subclasses, and `failures(kit)` runs one without pytest.
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
