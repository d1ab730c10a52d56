"""The conformance kit for guards: subclass it in a test module, say how to write and read, and run pytest."""

from fencelock.testing.conformance.enforcing import EnforcementChecks
from fencelock.testing.conformance.sealing import SealChecks


class GuardConformance(SealChecks, EnforcementChecks):
    """Every rule that a guarded place can break, through the sync guard.

    class TestMyGuard(GuardConformance):
        def make_url(self): ...
        def put(self, native, table, key, value): ...
        def put_alone(self, table, key, value): ...
        def get(self, table, key): ...

    What the store cannot do is declared by the class's attributes (`enforces = False`); nothing is skipped because of
    an error.
    """


class AsyncGuardConformance(GuardConformance):
    """The same checks through the async guard."""

    is_async = True
