"""Blocks of the adapters that are interrupted anywhere, as by a signal handler: the next block of the thread works."""

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pymysql
import pytest
from django.db import connection
from pymysql.constants import COMMAND
from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.orm import Session

from fencelock import BlockLostError, GuardError, SourceUnavailableError
from fencelock._api import guard_core
from fencelock.integrations import sqlalchemy as adapter
from fencelock.integrations.django import fenced
from fencelock.testing.conformance.interrupts import INTERRUPTS, HandlerError, Interruption, interrupted_at
from tests.integrations.alchemy import Stack
from tests.integrations.databases import GuardedDatabase
from tests.integrations.djangos import connected_to, forget
from tests.support.guards import HandmadeLease

REGISTERING = ("/integrations/fencing.py", "/_api/guard_core.py")
"""The files that register a block with its lease and its thread."""
ENDING = ("/fencelock/integrations/", "/contextlib.py")
"""The files that end a block, whose generators and stacks an exception may stop before the last of them is closed."""
LATE = "UPDATE plain SET value = 'late' WHERE id = 1"
file_only = pytest.mark.parametrize("empty", ["sqlite"], indirect=True)
mysql_only = pytest.mark.parametrize("empty", ["mysql"], indirect=True)


def ask(question: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s", [question])
        (row,) = cursor.fetchall()
    return str(row[0])


def nothing(target: Connection) -> None:
    target.execute(text("SELECT 1"))


@file_only
def test_a_block_of_sqlalchemy_bars_no_later_one(guarded: GuardedDatabase) -> None:
    lease, guard = HandmadeLease(5), guarded.guard()
    stack = Stack("connection", guarded)
    for place in count():
        with suppress(*INTERRUPTS), interrupted_at(place, *REGISTERING) as interruption:
            stack.fenced(lease, nothing, guard=guard)
        assert lease.open_transactions == 0
        if not interruption.has_come:
            break
        stack.fenced(lease, nothing, guard=guard)
    stack.close()
    assert place > 20, "the block ran in these files"


@file_only
def test_a_block_of_django_bars_no_later_one(guarded: GuardedDatabase) -> None:
    lease, guard = HandmadeLease(5), guarded.guard()
    with connected_to(guarded):
        for place in count():
            with suppress(*INTERRUPTS), interrupted_at(place, *REGISTERING) as interruption, fenced(lease, guard=guard):
                connection.ensure_connection()
            assert lease.open_transactions == 0
            if not interruption.has_come:
                break
            with fenced(lease, guard=guard):
                connection.ensure_connection()
    assert place > 20, "the block ran in these files"


def has_come(place: int, block: Callable[[Callable[[], None]], None]) -> bool:
    """Run the block, and interrupt its end at this place; return whether that has so many."""
    interruption, before = Interruption(place, ENDING), sys.getprofile()
    try:
        block(lambda: sys.setprofile(interruption.profile))
    except (*INTERRUPTS, GuardError):
        assert interruption.has_come
    finally:
        sys.setprofile(before)
    return interruption.has_come


def check_nothing_stays_registered(lease: HandmadeLease, block: Callable[[Callable[[], None]], None]) -> None:
    """Nor does anything wait for a garbage collection."""
    for place in count():
        if not has_come(place, block):
            break
        assert (lease.open_transactions, guard_core._THREAD.open) == (0, []), f"at place {place}"
    gc.collect()
    assert place > 20, "the end of the block ran in these files"


# What was interrupted cannot be collected in order: a generator finds its connection closed, for example.
uncollected = pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")


@file_only
@uncollected
@pytest.mark.parametrize("kind", ["session", "connection"])
def test_a_block_of_sqlalchemy_whose_end_is_interrupted_does_not_stay_registered(
    guarded: GuardedDatabase, kind: str
) -> None:
    lease, guard = HandmadeLease(5), guarded.guard()
    engine = create_engine(guarded.engines[0], poolclass=NullPool)

    def block(begin: Callable[[], None]) -> None:
        opened = Session(engine) if kind == "session" else engine.connect()
        with opened as target, adapter.fenced(target, lease, guard=guard):
            begin()

    check_nothing_stays_registered(lease, block)


@file_only
@uncollected
def test_a_block_of_django_whose_end_is_interrupted_does_not_stay_registered(guarded: GuardedDatabase) -> None:
    lease, guard = HandmadeLease(5), guarded.guard()

    def block(begin: Callable[[], None]) -> None:
        forget()  # Django's own connection may have stayed in its atomic block.
        with fenced(lease, guard=guard):
            begin()

    # Around all blocks: what is interrupted inside contextlib would end later, in the middle of another block.
    with connected_to(guarded):
        check_nothing_stays_registered(lease, block)


@mysql_only
@pytest.mark.parametrize("request_name", ["fencelock_offer", "fencelock_take_back"])
def test_a_request_interrupted_in_django_answers_no_other(
    guarded: GuardedDatabase, request_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = pymysql.Connection.query

    def query(native: pymysql.Connection, sql: str, unbuffered: bool = False) -> int:
        if request_name not in sql:
            return original(native, sql, unbuffered)
        monkeypatch.undo()
        native._execute_command(COMMAND.COM_QUERY, sql)
        raise HandlerError

    with connected_to(guarded):
        assert ask("before") == "before"
        monkeypatch.setattr(pymysql.Connection, "query", query)
        with pytest.raises(HandlerError), fenced(HandmadeLease(5), guard=guarded.guard()):
            pass
        assert [ask("1"), ask("2")] == ["1", "2"]


@mysql_only
def test_a_block_of_django_takes_no_earlier_reply_for_its_own(guarded: GuardedDatabase) -> None:
    with connected_to(guarded):
        connection.ensure_connection()
        connection.connection._execute_command(COMMAND.COM_QUERY, LATE)
        with (
            pytest.raises(SourceUnavailableError, match="earlier statement"),
            fenced(HandmadeLease(5), guard=guarded.guard()),
        ):
            pass
        assert [ask("1"), ask("2")] == ["1", "2"]
        with fenced(HandmadeLease(5), guard=guarded.guard()):
            assert ask("3") == "3"


@mysql_only
def test_a_block_of_sqlalchemy_takes_no_earlier_reply_for_its_own(guarded: GuardedDatabase) -> None:
    stack = Stack("connection", guarded)
    lease, guard = HandmadeLease(5), guarded.guard()
    stack.target.connection.driver_connection._execute_command(COMMAND.COM_QUERY, LATE)
    with pytest.raises(SourceUnavailableError, match="earlier statement"):
        stack.fenced(lease, nothing, guard=guard)
    stack.free()
    stack.fenced(lease, nothing, guard=guard)
    stack.close()


def interrupt_late(native: pymysql.Connection) -> None:
    """Send a statement, and lose its reply to an exception that the block catches."""
    with suppress(HandlerError):
        native._execute_command(COMMAND.COM_QUERY, LATE)
        raise HandlerError


@mysql_only
@pytest.mark.parametrize("question", [None, "SELECT 'taken back', ''"])
def test_a_block_of_django_that_is_one_reply_behind_ends_with_an_error(
    guarded: GuardedDatabase, question: str | None
) -> None:
    def interrupted() -> None:
        with fenced(HandmadeLease(5), guard=guarded.guard()):
            interrupt_late(connection.connection)
            if question is not None:
                with connection.cursor() as cursor:
                    cursor.execute(question)

    with connected_to(guarded):
        before = guarded.value("plain")
        with pytest.raises(BlockLostError) as caught:
            interrupted()
        assert "earlier statement" in str(caught.value.__cause__)
        assert guarded.value("plain") == before
        with fenced(HandmadeLease(5), guard=guarded.guard()):
            assert ask("next") == "next"


@mysql_only
@pytest.mark.parametrize("target", ["session", "connection"])
def test_a_block_of_sqlalchemy_that_is_one_reply_behind_ends_with_an_error(
    guarded: GuardedDatabase, target: str
) -> None:
    stack, before = Stack(target, guarded), guarded.value("plain")
    lease, guard = HandmadeLease(5), guarded.guard()

    def interrupted(target: Session | Connection) -> None:
        connection = target.connection() if isinstance(target, Session) else target
        interrupt_late(connection.connection.driver_connection)

    with pytest.raises(BlockLostError) as caught:
        stack.fenced(lease, interrupted, guard=guard)
    assert "earlier statement" in str(caught.value.__cause__)
    assert guarded.value("plain") == before
    stack.free()
    stack.fenced(lease, nothing, guard=guard)
    stack.close()
