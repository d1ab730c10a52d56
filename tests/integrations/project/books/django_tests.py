"""The project's own tests, which Django's test runner runs; the configured source cannot be reached."""

from typing import Any

import pytest
from books.models import Note, Report
from django.db import DatabaseError, connection, transaction
from django.test import TestCase, TransactionTestCase
from ledger.models import Account, Owner

from fencelock import GuardError, LeaseReleasedError, StaleTokenError
from fencelock.integrations.django import fenced, lock, source
from fencelock.integrations.django.testing import FencedTestMixin


def work(lease: Any, value: str) -> None:
    with fenced(lease, resource="reports"):
        report = Report.objects.get(pk=1)
        report.value = value
        report.save()


def take(name: str = "nightly-report") -> Any:
    return lock(name, ttl=10.0, timeout=5.0)


class InTestCase(FencedTestMixin, TestCase):
    """With the mixin, for projects that keep their own runner."""

    @classmethod
    def setUpTestData(cls) -> None:
        Report.objects.create(pk=1, value="first")

    def test_a_block_is_a_savepoint(self) -> None:
        with take() as lease:
            work(lease, "new")
            with pytest.raises(ZeroDivisionError), fenced(lease, resource="reports"):
                self.update_and_fail()
        assert Report.objects.get().value == "new"

    def update_and_fail(self) -> None:
        Report.objects.update(value="undone")
        raise ZeroDivisionError

    def test_the_data_of_the_class_is_as_it_was(self) -> None:
        assert Report.objects.get().value == "first"

    def test_a_stale_holder_is_refused(self) -> None:
        with take() as older:
            sequencer = older.sequencer
        with take() as newer:
            work(newer, "newer")
        with pytest.raises(StaleTokenError):
            work(sequencer, "stale")
        with pytest.raises(LeaseReleasedError):
            work(newer, "over")
        assert Report.objects.get().value == "newer"

    def test_what_fails_in_production_fails_here(self) -> None:
        with take() as lease:
            with pytest.raises(GuardError, match="outermost"), transaction.atomic():
                work(lease, "inside")
            with pytest.raises(GuardError, match="marked for rollback"), fenced(lease, resource="reports"):
                transaction.set_rollback(True)
            report = Report.objects.get(pk=1)
            report.value = "read between"
            with fenced(lease, resource="reports"):
                report.save()
        refused = pytest.raises(GuardError, match="was read before")
        with take() as newer, refused, fenced(newer, resource="reports"):
            report.save()

    def test_callbacks_are_those_of_the_test(self) -> None:
        captured = self.captureOnCommitCallbacks(execute=True)
        with take() as lease, captured as callbacks, fenced(lease, resource="reports"):
            transaction.on_commit(lambda: None)
        assert len(callbacks) == 1


class WithoutMixin(TestCase):
    """With the runner alone."""

    def test_a_block_needs_nothing_else(self) -> None:
        Account.objects.create()  # A migration has protected it.
        Report.objects.create(pk=1, value="first")
        with take() as lease:
            work(lease, "new")

    def test_the_source_is_this_processes(self) -> None:
        assert source().url.startswith("sqlite:///")


class Flushed(TransactionTestCase):
    """Without protection: Django's flush works."""

    def test_one(self) -> None:
        assert Report.objects.count() == Owner.objects.count() == 0
        Account.objects.create().owners.add(Owner.objects.create())
        Report.objects.create(pk=1, value="first").tags.add(Note.objects.create(value="tag"))

    test_two = test_one


class Protected(FencedTestMixin, TransactionTestCase):
    """The database itself refuses."""

    def setUp(self) -> None:
        Report.objects.create(pk=1, value="first").tags.add(Note.objects.create(value="tag"))
        super().setUp()

    def test_a_write_without_a_token_is_refused(self) -> None:
        with pytest.raises(DatabaseError):
            Report.objects.update(value="unfenced")
        connection.close()
        with take() as lease:
            work(lease, "new")
        assert Report.objects.get().value == "new"

    test_it_is_refused_again = test_a_write_without_a_token_is_refused

    def test_a_stale_holder_is_refused(self) -> None:
        with take() as older:
            sequencer = older.sequencer
        with take() as newer:
            work(newer, "newer")
        with pytest.raises(StaleTokenError):
            work(sequencer, "stale")
