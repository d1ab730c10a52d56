"""The conformance kit for guards: subclass it in a test module, define how to write and read, and run pytest."""

from fencelock.testing.conformance.creating import CreationChecks
from fencelock.testing.conformance.declared import DeclarationChecks
from fencelock.testing.conformance.effects import EffectChecks
from fencelock.testing.conformance.enforcing import EnforcementChecks
from fencelock.testing.conformance.keeping import KeepingChecks
from fencelock.testing.conformance.proofs import MarkProofChecks
from fencelock.testing.conformance.purging import PurgeChecks
from fencelock.testing.conformance.sealing import SealChecks
from fencelock.testing.conformance.wire import WireChecks


class GuardConformance(
    SealChecks,
    MarkProofChecks,
    EnforcementChecks,
    KeepingChecks,
    EffectChecks,
    PurgeChecks,
    CreationChecks,
    DeclarationChecks,
    WireChecks,
):
    """Check most rules that a guard's store can break, through the sync guard.

    class TestMyGuard(GuardConformance):
        def make_url(self): ...
        def put(self, native, table, key, value): ...
        def put_alone(self, table, key, value): ...
        def get(self, table, key): ...

    The store's own capabilities say what it can do, and class attributes the rest; an error never skips a check.
    """


class AsyncGuardConformance(GuardConformance):
    """The same checks through the async guard."""

    is_async = True
