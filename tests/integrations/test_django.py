"""Guarded transactions of Django, in this process, on every database."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.core.checks import run_checks
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import CommandError, call_command
from django.db import DatabaseError, IntegrityError, connection, connections, models, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

import fencelock
from fencelock import (
    AlreadyDoneError,
    ConfigError,
    GuardError,
    LeaseExpiredError,
    Once,
    SealLostError,
    StaleTokenError,
    UnfencedWriteError,
    WrongLockError,
)
from fencelock.integrations.django import fenced, lock, protected, source
from tests.integrations.databases import GuardedDatabase
from tests.integrations.djangos import Report, forget, project_on
from tests.sql.guarded import Step
from tests.support.guards import LOCK, HandmadeLease, HandmadeSource, sequencer

Note = Report.tags.rel.model
FIRST = "first"


@pytest.fixture(autouse=True)
def project(empty: GuardedDatabase) -> Iterator[None]:
    with project_on(empty):
        call_command("fencelock_protect", verbosity=0, stdout=_Silent())
        yield


class _Silent:
    def write(self, text: str) -> None:
        pass


@pytest.fixture
def lease() -> HandmadeLease:
    return HandmadeLease(5)


def guard(guarded: GuardedDatabase, **named: Any) -> fencelock.Guard:
    return fencelock.guard(guarded.url, resource="reports", lock=LOCK, **named)


def write(value: str) -> None:
    Report.objects.filter(pk=1).update(value=value)


def fail() -> None:
    raise ZeroDivisionError


def save_again() -> None:
    with pytest.raises(IntegrityError):
        Report(pk=1, value="taken").save(force_insert=True)


def create_again() -> None:
    with pytest.raises(IntegrityError):
        Report.objects.bulk_create([Report(pk=1, value="taken")])


def leave_atomic() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic(savepoint=False):
        fail()


def work(lease: Any, *acts: Any, resource: str = "reports") -> None:
    """Do all of this in one guarded block."""
    with fenced(lease, resource=resource):
        for act in acts:
            act()


def value() -> str:
    return Report.objects.get(pk=1).value


# --- what a block does ------------------------------------------------------------------------------
@pytest.mark.reduced
def test_a_block_seals_writes_and_commits(empty: GuardedDatabase, lease: HandmadeLease) -> None:
    with fenced(lease, resource="reports"):
        report = Report.objects.get(pk=1)
        report.value = "new"
        report.save()
        report.tags.add(Note.objects.create(value="tag"))
    assert value() == "new"
    assert guard(empty).mark().token == 5
    assert lease.open_transactions == 0


def test_g14_the_work_of_a_key_is_committed_once_with_its_key(lease: HandmadeLease) -> None:
    """Whoever comes later is told, also with a token that is stale by now, whether it has sealed or not."""
    once = Once("2026-11-22")
    once.result = "done"
    with pytest.raises(ZeroDivisionError), fenced(lease, resource="reports", once=once):
        fail()
    with fenced(lease, resource="reports", once=once):
        write("done")
    work(HandmadeLease(6), value)
    for token in (4, 5, 6):
        with pytest.raises(AlreadyDoneError) as caught, fenced(HandmadeLease(token), resource="reports", once=once):
            write("twice")
        assert (caught.value.result, caught.value.token) == ("done", 5)
    assert value() == "done"
    work(HandmadeLease(6), lambda: write("later"))
    assert value() == "later"


@pytest.mark.reduced
def test_an_exception_undoes_the_block_and_it_may_be_made_again(lease: HandmadeLease) -> None:
    with pytest.raises(ZeroDivisionError):
        work(lease, lambda: write("lost"), fail)
    assert value() == FIRST
    assert lease.open_transactions == 0
    work(lease, lambda: write("new"))
    assert value() == "new"


def test_a_bare_sequencer_and_a_guard_of_ones_own_are_as_good(empty: GuardedDatabase) -> None:
    with fenced(sequencer(5, claim=uuid4().hex), guard=guard(empty)):
        write("new")
    assert value() == "new"


def test_callbacks_run_after_the_commit(empty: GuardedDatabase, lease: HandmadeLease) -> None:
    seen = []
    with fenced(lease, resource="reports"):
        write("new")
        transaction.on_commit(lambda: seen.append(empty.rows("SELECT value FROM books_report")))
        assert seen == []
    assert seen == [[("new",)]]


def test_a_callback_is_outside_of_the_block(lease: HandmadeLease) -> None:
    """It may release the lease, which waits for open blocks, and enter another."""

    def follow() -> None:
        assert lease.open_transactions == 0
        with fenced(lease, resource="reports"):
            write("followed")

    with fenced(lease, resource="reports"):
        write("new")
        transaction.on_commit(follow)
        assert lease.open_transactions == 1
    assert value() == "followed"


def test_an_error_of_a_callback_says_that_the_block_is_committed(lease: HandmadeLease) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        work(lease, lambda: write("new"), lambda: transaction.on_commit(fail))
    assert "the guarded block was committed before this error" in caught.value.__notes__[0]
    assert value() == "new"
    assert lease.open_transactions == 0


def test_a_refusal_in_a_callback_is_no_refusal_of_the_block(empty: GuardedDatabase, lease: HandmadeLease) -> None:
    with pytest.raises(DatabaseError, match=empty.refused) as caught:
        work(lease, lambda: write("new"), lambda: transaction.on_commit(lambda: write("unfenced")))
    assert "was committed before this error" in caught.value.__notes__[0]
    assert value() == "new"


def test_atomic_inside_is_a_savepoint(lease: HandmadeLease) -> None:
    with fenced(lease, resource="reports"):
        write("kept")
        with pytest.raises(IntegrityError), transaction.atomic():
            Report.objects.bulk_create([Report(pk=2, value="undone"), Report(pk=3, value="undone")])
        Note.objects.create(value="also kept")
    assert value() == "kept"
    assert Report.objects.count() == Note.objects.count() == 1


def test_bulk_operations_are_fenced(lease: HandmadeLease) -> None:
    with fenced(lease, resource="reports"):
        Report.objects.bulk_create([Report(pk=number, value=str(number)) for number in range(2, 12)])
        Report.objects.bulk_update([Report.objects.get(value="2")], ["value"])
        Report.objects.exclude(pk=1).delete()
    for act in (lambda: Report.objects.bulk_create([Report(pk=2, value="a")]), Report.objects.all().delete):
        with pytest.raises(UnfencedWriteError), fenced(HandmadeLease(6), resource="others"):
            act()
    assert value() == FIRST


# --- what is refused --------------------------------------------------------------------------------
@pytest.mark.reduced
def test_g1_a_stale_holder_is_refused(empty: GuardedDatabase, lease: HandmadeLease) -> None:
    with fenced(lease, resource="reports"):
        write("mine")
    guard(empty).seal(HandmadeLease(6))
    with pytest.raises(StaleTokenError) as caught, fenced(lease, resource="reports"):
        write("stale")
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (5, 6, "reports")
    assert value() == "mine"


def test_g2_a_seal_between_ours_and_our_first_read_is_seen(empty: GuardedDatabase, lease: HandmadeLease) -> None:
    guard(empty).seal(lease)

    def write_newer() -> None:
        with guard(empty).transaction(HandmadeLease(6)) as native:
            native.cursor().execute("UPDATE books_report SET value = 'newer'")

    def overtake() -> float:
        lease.remaining = lambda: 30.0
        Step(write_newer).end()
        return 30.0

    lease.remaining = overtake  # It is asked for when the lease is about to be presented.
    with pytest.raises(StaleTokenError), fenced(lease, resource="reports"):
        write("stale")
    assert value() == "newer"


@pytest.mark.reduced
@pytest.mark.parametrize("is_failing", [False, True])
def test_g6_nothing_is_presented_after_the_block(
    empty: GuardedDatabase, lease: HandmadeLease, *, is_failing: bool
) -> None:
    with pytest.raises(ZeroDivisionError) if is_failing else nullcontext():
        work(lease, fail if is_failing else bool)
    with pytest.raises(DatabaseError, match=empty.refused):
        write("unfenced")
    with pytest.raises(DatabaseError, match=empty.refused), transaction.atomic():
        write("unfenced")
    with pytest.raises(DatabaseError, match=empty.refused):
        Report.objects.get(pk=1).tags.add(Note.objects.create(value="tag"))
    assert value() == FIRST


def test_g6_a_late_thread_writes_neither_after_its_block_nor_in_a_newer_one(lease: HandmadeLease) -> None:
    """Django refuses the block's connection in another thread, and the database its own connection."""
    work(lease, lambda: write("mine"))
    kept = connections["default"]

    def write_late_by_kept() -> None:
        kept.cursor().execute("UPDATE reports SET value = 'late'")

    def write_late() -> None:
        try:
            write("late")
        finally:
            connections["default"].close()

    for late in (write_late_by_kept, write_late):
        with pytest.raises(DatabaseError):
            Step(late).end()
        assert value() == "mine"

    def late_thread() -> None:
        with pytest.raises(DatabaseError, match="created in a thread"):
            Step(write_late_by_kept).end()

    work(HandmadeLease(6), lambda: write("newer"), late_thread)
    assert value() == "newer"


def test_g6_a_write_to_another_resources_table_is_refused(lease: HandmadeLease) -> None:
    with pytest.raises(UnfencedWriteError, match="report") as caught:
        work(lease, lambda: Note.objects.create(value="undone"), lambda: write("new"), resource="others")
    assert isinstance(caught.value.__cause__, DatabaseError)
    assert Note.objects.count() == 0


def test_g9_a_lost_seal_is_reported(empty: GuardedDatabase, lease: HandmadeLease) -> None:
    with fenced(lease, resource="reports"):
        write("mine")
    guard(empty).lower(3, reason="as a restore would")
    with pytest.raises(SealLostError), fenced(lease, resource="reports"):
        write("void")
    assert value() == "mine"


def test_g5_another_locks_lease_is_refused() -> None:
    with pytest.raises(WrongLockError), fenced(HandmadeLease(5, lock="another"), resource="reports"):
        write("new")
    assert value() == FIRST


def test_a_lease_that_is_over_is_refused(empty: GuardedDatabase, lease: HandmadeLease) -> None:
    lease.problem = LeaseExpiredError("over")
    with pytest.raises(LeaseExpiredError), fenced(lease, resource="reports"):
        write("late")
    assert guard(empty).mark().token == 0


def test_g2_inside_an_atomic_block_it_is_refused(empty: GuardedDatabase, lease: HandmadeLease) -> None:
    with transaction.atomic(), pytest.raises(GuardError, match="outermost"), fenced(lease, resource="reports"):
        write("new")
    with pytest.raises(GuardError, match="outermost"):
        work(lease, lambda: work(lease, bool))
    transaction.set_autocommit(False)
    try:
        with pytest.raises(GuardError, match="autocommit"), fenced(lease, resource="reports"):
            write("new")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert value() == FIRST


@pytest.mark.parametrize("end", [transaction.commit, transaction.rollback])
def test_g3_the_block_cannot_end_its_own_transaction(lease: HandmadeLease, end: Any) -> None:
    with pytest.raises(transaction.TransactionManagementError):
        work(lease, lambda: write("new"), end)
    assert value() == FIRST


def test_g3_a_block_that_closes_its_connection_writes_nothing_and_fails(lease: HandmadeLease) -> None:
    with pytest.raises(GuardError, match="closed the connection"):
        work(lease, lambda: write("lost"), connections.close_all)
    assert value() == FIRST
    with pytest.raises(ZeroDivisionError):
        work(lease, connections.close_all, fail)
    work(lease, lambda: write("new"))
    assert value() == "new"


@pytest.mark.parametrize("mark", [save_again, create_again, leave_atomic, lambda: transaction.set_rollback(True)])
def test_g3_a_block_that_django_rolls_back_fails(lease: HandmadeLease, mark: Callable[[], None]) -> None:
    with pytest.raises(GuardError, match="marked for rollback inside its block"):
        work(lease, lambda: write("new"), mark)
    assert value() == FIRST
    work(lease, lambda: write("new"))
    assert value() == "new"


def test_a_block_is_entered_once(lease: HandmadeLease) -> None:
    block = fenced(lease, resource="reports")
    with block:
        pass
    with pytest.raises(GuardError, match="entered once"), block:
        pass


# --- no trace, no detour ----------------------------------------------------------------------------
def test_the_proof_is_in_no_log_of_queries(lease: HandmadeLease) -> None:
    with CaptureQueriesContext(connection) as queries, fenced(lease, resource="reports"):
        write("new")
    assert len(queries) == 3  # BEGIN, the write and COMMIT are Django's own.
    assert lease.sequencer.proof not in str(queries.captured_queries)


# --- asyncio ----------------------------------------------------------------------------------------
def test_on_an_event_loop_django_itself_refuses_before_anything_is_asked(
    empty: GuardedDatabase, lease: HandmadeLease
) -> None:
    async def view() -> None:
        with pytest.raises(SynchronousOnlyOperation), fenced(lease, resource="reports"):
            write("new")

    asyncio.run(view())
    assert guard(empty).mark().token == 0


def test_a_synchronous_function_of_an_async_view_may_be_fenced(lease: HandmadeLease) -> None:
    def synchronous() -> str:
        try:
            with fenced(lease, resource="reports"):
                write("new")
                return value()
        finally:
            forget()  # It is another thread's connection.

    async def view() -> str:
        return await sync_to_async(synchronous)()

    assert asyncio.run(view()) == "new"


# --- settings and models ----------------------------------------------------------------------------
def test_locks_come_from_the_configured_source(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="no source of locks is configured"):
        lock("nightly-report")
    with override_settings(FENCELOCK={"SOURCE": f"sqlite:///{tmp_path / 'locks.db'}"}):
        assert source() is source()
        with lock("nightly-report", ttl=10.0) as lease, fenced(lease, resource="reports"):
            write("new")
    assert value() == "new"
    with override_settings(FENCELOCK={"SOURC": "sqlite:///locks.db"}), pytest.raises(ConfigError, match="'SOURC'"):
        source()


def test_a_project_without_the_app_learns_what_to_add() -> None:
    with override_settings(INSTALLED_APPS=["books"]), pytest.raises(ConfigError, match="to INSTALLED_APPS"):
        lock("nightly-report")


def test_a_guards_url_may_be_configured(empty: GuardedDatabase, lease: HandmadeLease) -> None:
    with override_settings(FENCELOCK={"GUARDS": {"default": "redis://nowhere"}}), pytest.raises(ConfigError):
        fenced(lease, resource="reports")
    with override_settings(FENCELOCK={"GUARDS": {"default": empty.url}}), fenced(lease, resource="reports"):
        write("new")
    assert value() == "new"


def test_a_model_without_a_table_cannot_ask() -> None:
    class Meta:
        abstract = True
        app_label = "books"

    abstract = type("Abstract", (models.Model,), {"Meta": Meta, "__module__": "books.models"})
    with pytest.raises(ConfigError, match="no table of its own"):
        protected(resource="reports", lock=LOCK)(abstract)


def test_what_the_check_says(empty: GuardedDatabase) -> None:
    def found() -> list[str]:
        return [message.id for message in run_checks(databases=["default"])]

    assert found() == []
    with override_settings(FENCELOCK={"GUARDS": {"default": "sqlite:////nowhere/app.db"}}):
        assert found() == ["fencelock.W002"]
    with override_settings(FENCELOCK={"GUARDS": {"default": "redis://nowhere"}}):
        assert found() == ["fencelock.E002"]
    with override_settings(FENCELOCK={"SOURCE": "redis://nowhere"}):
        assert found() == ["fencelock.E001"]
    with override_settings(FENCELOCK={"SUORCE": "sqlite:///locks.db"}):
        (message,) = run_checks()
        assert message.id == "fencelock.E001"
        assert "an unknown key, 'SUORCE'" in message.msg
    guard(empty).rebind("another", source=HandmadeSource(9), reason="to show that it is noticed")
    assert found() == ["fencelock.W001"] * 2


def test_the_command_checks_and_switches(empty: GuardedDatabase) -> None:
    call_command("fencelock_protect", check=True, stdout=_Silent())
    guard(empty).unprotect(reason="to show that it is missing")
    with pytest.raises(CommandError, match="is not protected"):
        call_command("fencelock_protect", check=True)
    call_command("fencelock_protect", mode="observe", stdout=_Silent())
    with pytest.raises(CommandError, match="is in observe mode"):
        call_command("fencelock_protect", check=True)
    write("observed")
    assert value() == "observed"


def test_g12_other_sessions_see_no_proof_in_the_statements_of_a_block(
    empty: GuardedDatabase, lease: HandmadeLease
) -> None:
    """Django's own cursors for PostgreSQL write parameters into the text of a statement."""
    if empty.kind != "postgres":
        return
    with fenced(lease, guard=guard(empty)):
        # Of this database alone: elsewhere other tests show this very proof.
        look = "SELECT query FROM pg_stat_activity WHERE datname = current_database()"
        shown = "\n".join(query for (query,) in empty.rows(look))
        write("mine")
    assert "fencelock.offer" in shown
    assert lease.sequencer.proof not in shown


def test_the_command_names_a_table_that_does_not_exist_yet_and_protects_the_others(empty: GuardedDatabase) -> None:
    guard(empty).unprotect(reason="to show that it is protected again")
    empty.rows("DROP TABLE books_report_tags")
    message = r"^table 'books_report_tags' does not exist yet: run manage.py migrate$"
    for check in (False, True):
        with pytest.raises(CommandError, match=message):
            call_command("fencelock_protect", check=check, stdout=_Silent())
        (protection,) = fencelock.inspect_resources(empty.url).protections
        assert protection.table.rpartition(".")[2] == "books_report"
