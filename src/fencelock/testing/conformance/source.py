"""The conformance kit for sources: subclass it in a test module, say where a fresh source is, and run pytest."""

from fencelock.testing.conformance.leases import LeaseChecks
from fencelock.testing.conformance.names import NameChecks
from fencelock.testing.conformance.tokens import TokenChecks
from fencelock.testing.conformance.waiting import WaitingChecks
from fencelock.testing.runners import AsyncRunner


class SourceConformance(TokenChecks, LeaseChecks, WaitingChecks, NameChecks):
    """Every rule that a source of tokens can break, over the sync driver.

    class TestMySource(SourceConformance):
        def make_url(self):
            return f"mystore://{self.folder}/locks"

    What the store cannot do is declared by the class's attributes (`has_purge = False`); nothing is skipped because
    of an error.
    """


class AsyncSourceConformance(SourceConformance):
    """The same checks over the async driver, in tasks instead of threads."""

    runner_type = AsyncRunner
