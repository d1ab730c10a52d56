"""An instance that was read before the seal is not saved in a block: an older holder may have written its row since."""

import copy
import pickle
import time
from collections.abc import Iterator

import pytest
from django.db.models import F, Value
from django.db.models.functions import Concat
from django.test import override_settings

from fencelock import ConfigError, GuardError
from fencelock.integrations.django import fenced
from fencelock.integrations.django.settings import read
from tests.integrations.databases import GuardedDatabase
from tests.integrations.djangos import Report, project_on
from tests.support.guards import HandmadeLease

Note = Report.tags.rel.model


@pytest.fixture(autouse=True)
def project(empty: GuardedDatabase) -> Iterator[None]:
    with project_on(empty):
        yield


pytestmark = pytest.mark.parametrize("empty", ["sqlite"], indirect=True)
"""The check runs in Django alone, before any statement."""


def append(report: Report, text: str) -> None:
    report.value += text
    report.save()


def value() -> str:
    return Report.objects.get(pk=1).value


def test_an_older_holders_acknowledged_write_is_not_overwritten() -> None:
    older, newer = HandmadeLease(5), HandmadeLease(6)
    with fenced(older, resource="reports"):
        Report.objects.filter(pk=1).update(value="a")
    report = Report.objects.get(pk=1)  # The newer holder reads, under the lock, but before its block.
    with fenced(older, resource="reports"):  # The older one wakes up, and nobody has sealed against it yet.
        Report.objects.filter(pk=1).update(value=Concat(F("value"), Value("+older")))
    refused = pytest.raises(GuardError, match="Report 1 was read before this lease sealed resource 'reports'")
    with refused, fenced(newer, resource="reports"):
        append(report, "+newer")
    assert value() == "a+older"
    with fenced(newer, resource="reports"):
        append(Report.objects.get(pk=1), "+newer")
    assert value() == "a+older+newer"


def test_what_was_read_after_the_seal_is_saved() -> None:
    lease = HandmadeLease(5)
    with fenced(lease, resource="reports"):
        inside = Report.objects.get(pk=1)
    between = Report.objects.get(pk=1)
    with fenced(lease, resource="reports"):
        append(inside, "+inside")
        between.refresh_from_db()
        append(between, "+between")
    assert value() == "first+inside+between"


def test_an_instance_of_an_earlier_tenure_is_old() -> None:
    with fenced(HandmadeLease(5), resource="reports"):
        read_there = Report.objects.get(pk=1)
        made_there = Report.objects.create(pk=2, value="second")
        append(read_there, "+5")
        append(made_there, "+5")
    for report in (read_there, made_there):
        with pytest.raises(GuardError, match="refresh_from_db"), fenced(HandmadeLease(6), resource="reports"):
            append(report, "+6")


def test_new_instances_are_saved_and_saved_again() -> None:
    made_before = Report(pk=2, value="before")
    made_in_bulk = Report(pk=3, value="bulk")
    with fenced(HandmadeLease(5), resource="reports"):
        made_before.save()
        append(made_before, "+again")
        Report.objects.bulk_create([made_in_bulk])
        append(made_in_bulk, "+again")
        append(Report.objects.create(pk=4, value="inside"), "+again")
        append(Report.objects.get_or_create(pk=5, defaults={"value": "got"})[0], "+again")
    assert sorted(Report.objects.values_list("value", flat=True)) == [
        "before+again",
        "bulk+again",
        "first",
        "got+again",
        "inside+again",
    ]


def test_a_refresh_makes_an_old_instance_new() -> None:
    report = Report.objects.get(pk=1)
    with fenced(HandmadeLease(5), resource="reports"):
        report.refresh_from_db()
        append(report, "+5")
    with fenced(HandmadeLease(6), resource="reports"):
        report.refresh_from_db(fields=["value"])
        append(report, "+6")
    assert value() == "first+5+6"


def test_only_old_values_that_would_be_written_count() -> None:
    report, deferred = Report.objects.get(pk=1), Report.objects.only("pk").get(pk=1)
    with fenced(HandmadeLease(5), resource="reports"):
        report.value = Concat(F("value"), Value("+expression"))
        report.save()
        report.save(update_fields=[])
        append(deferred, "+deferred")  # Django reads the field here.
    assert value() == "first+expression+deferred"
    with fenced(HandmadeLease(6), resource="reports"), pytest.raises(GuardError, match=r"undo that \(value\)"):
        deferred.save(update_fields=["value"])


def test_a_copy_is_as_old_as_its_original_and_a_pickled_one_of_another_process_is_old() -> None:
    lease = HandmadeLease(5)
    with fenced(lease, resource="reports"):
        report = Report.objects.get(pk=1)
        append(copy.deepcopy(report), "+copy")
        append(pickle.loads(pickle.dumps(report)), "+pickled")  # noqa: S301 - its own.
        report._state.fencelock_read = ("another process", time.monotonic_ns())  # type: ignore[attr-defined]
        with pytest.raises(GuardError, match="was read before"):
            report.save()
    assert value() == "first+pickled"


def test_models_without_protection_and_databases_without_a_block_are_not_checked() -> None:
    note = Note.objects.create(value="old")
    note = Note.objects.get(pk=note.pk)
    report = Report.objects.get(pk=1)
    with fenced(HandmadeLease(5), resource="reports"):
        note.save()
    report.save()  # Nothing is installed here that could refuse it.


def test_the_check_may_be_switched_off() -> None:
    report = Report.objects.get(pk=1)
    with override_settings(FENCELOCK={"CHECK_READS": False}), fenced(HandmadeLease(5), resource="reports"):
        append(report, "+old")
    assert value() == "first+old"
    with override_settings(FENCELOCK={"CHECK_READS": "no"}), pytest.raises(ConfigError, match="True or False"):
        read()
