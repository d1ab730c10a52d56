"""Negative controls: the kit rejects a store that breaks a rule, by the check that is named after it."""

import pytest

from fenceline.errors import SourceError
from fenceline.model import draw_claim
from fenceline.testing.conformance import SourceConformance, failure, failures
from fenceline.testing.conformance.rig import Rig
from fenceline.testing.memory import MemorySource
from tests.conformance.broken_sources import BROKEN
from tests.conformance.test_memory import InMemory


def kit_of(ledger):
    """Return the kit over a source in memory that keeps its books in this ledger."""

    class Store(MemorySource):
        ledger_type = ledger

    class Kit(InMemory, SourceConformance):
        def make_store(self, url):
            return Store(url, now_us=self.clock.now_us)

    return Kit


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    """A broken source may let threads wait for ever: that shows within a moment here."""
    monkeypatch.setattr("fenceline.testing.conformance.rig.PATIENCE_S", 1.0)


@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_source_is_rejected(broken, check):
    error = failure(kit_of(broken), check)
    assert isinstance(error, AssertionError), f"{broken.__name__} passed {check}: {error!r}"


def test_a_source_that_does_not_ring_is_rejected(monkeypatch):
    class Silent(InMemory, SourceConformance):
        pass

    monkeypatch.setattr("fenceline.testing.memory.Bell.ring", lambda bell: None)
    monkeypatch.setattr("fenceline.testing.conformance.waiting.PATIENCE_S", 0.01)
    assert isinstance(failure(Silent, "test_the_head_of_the_queue_is_told_of_a_release"), AssertionError)


def test_a_source_that_begins_anew_for_each_client_is_rejected():
    class Forgetful(InMemory, SourceConformance):
        def make_store(self, url):
            return super().make_store(f"{url}-{draw_claim()}")

    assert isinstance(failure(Forgetful, "test_tokens_rise_for_a_source_opened_again"), AssertionError)


def test_every_check_rejects_some_broken_source():
    """A check that rejects nothing may check nothing. Two have their negative controls above."""
    checks = {name for name in dir(SourceConformance) if name.startswith("test_")}
    above = {"test_the_head_of_the_queue_is_told_of_a_release", "test_tokens_rise_for_a_source_opened_again"}
    assert checks == above | {check for _, check in BROKEN}


def test_failures_reports_each_failed_check():
    class Kit(Rig):
        def test_good(self):
            pass

        def test_bad(self):
            raise SourceError("no")

    assert {name: str(error) for name, error in failures(Kit).items()} == {"test_bad": "no"}
