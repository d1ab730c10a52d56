"""The conformance kit for sources: subclass it in a test module, give it a fresh source, and run pytest."""

from fencelock.testing.conformance.claims import ClaimChecks
from fencelock.testing.conformance.leases import LeaseChecks
from fencelock.testing.conformance.names import NameChecks
from fencelock.testing.conformance.proofs import LeaseProofChecks
from fencelock.testing.conformance.starts import StartChecks
from fencelock.testing.conformance.tokens import TokenChecks
from fencelock.testing.conformance.waiting import TurnChecks
from fencelock.testing.runners import AsyncRunner


class SourceConformance(TokenChecks, LeaseChecks, ClaimChecks, LeaseProofChecks, StartChecks, NameChecks):
    """Check most rules that a source of tokens can break, through the sync driver.

    class TestMySource(SourceConformance):
        def make_url(self):
            return f"mystore://{self.folder}/locks"

    Declare what the store cannot do with class attributes (`has_purge = False`); an error never skips a check.
    """


class AsyncSourceConformance(TurnChecks, SourceConformance):
    """The same checks through the async driver, in tasks instead of threads, and those of the order of tasks."""

    runner: AsyncRunner
    runner_type = AsyncRunner
