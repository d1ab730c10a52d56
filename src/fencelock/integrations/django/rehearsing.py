"""`fenced` in a test that cannot have the real thing: in Django's `TestCase`, and on a database in memory.

Promise: once `fencelock.integrations.django.testing` has switched it on, a block there is a savepoint (or, on a
database in memory, a transaction). It asks the lease as ever, compares its token with marks in this process, checks
reads, and fails for what makes the real block fail. Limit: the database refuses nothing.
Never: switched on in production.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from django.db import transaction

from fencelock._api.base_guard import BaseGuard, core_of
from fencelock._api.credentials import Credential
from fencelock._api.once import Once
from fencelock._api.validation import scope_of
from fencelock._flows.admit import Verdict, admit
from fencelock._flows.effects import check_not_begun
from fencelock._flows.guarding import check_bound, check_lock, sealed_mark
from fencelock._flows.tenure import Scope
from fencelock.integrations.django.connection import closed_by_block, marked_error
from fencelock.integrations.django.reads import reads_checked, seal_noting
from fencelock.integrations.django.urls import is_in_memory
from fencelock.integrations.fencing import check_arguments
from fencelock.model import Mark
from fencelock.protocol.guard_requests import Effect

_URL = "memory://rehearsal/"
Marks = dict[tuple[str, str], Mark]
Effects = dict[tuple[str, str, str], Effect]
"""What was done once, by URL, resource and key."""


class Rehearsals:
    """Whether blocks are rehearsed in this process, and the marks of each test."""

    def __init__(self) -> None:
        self.is_on = False
        self._marks: WeakKeyDictionary[Any, Marks] = WeakKeyDictionary()
        self._effects: WeakKeyDictionary[Any, Effects] = WeakKeyDictionary()

    def include(self, alias: str) -> bool:
        """Return whether a block in the database `alias` is to be rehearsed now."""
        if not self.is_on:
            return False
        connection = transaction.get_connection(alias)
        return is_in_memory(connection) or (connection.in_atomic_block and not users_blocks(connection))

    def marks_of(self, connection: Any) -> Marks:
        """Return the marks of the running test: those of its `atomic` block, or of a database in memory."""
        return self._marks.setdefault(_test_of(connection), {})

    def effects_of(self, connection: Any) -> Effects:
        """Return what the running test has done once."""
        return self._effects.setdefault(_test_of(connection), {})


def _test_of(connection: Any) -> Any:
    return connection.atomic_blocks[-1] if connection.atomic_blocks else connection


REHEARSALS = Rehearsals()


def users_blocks(connection: Any) -> list[Any]:
    """Return the open `atomic` blocks but for those in which Django's TestCase puts a test."""
    return [block for block in connection.atomic_blocks if not block._from_testcase]  # noqa: SLF001 - Django's own.


def rehearsal_scope(
    alias: str, credential: Credential, resource: str | None, resources: Iterable[str] | None, guard: BaseGuard | None
) -> Scope:
    """Return what a rehearsed block watches over, without the URL that a database in memory does not have."""
    if guard is not None:
        check_arguments(resource, resources)
        return core_of(guard).scope
    return scope_of(f"{_URL}{alias}", resource, resources, credential.sequencer.lock, independent=False)


@contextmanager
def rehearsed(
    alias: str, scope: Scope, credential: Credential, once: Once | None, leave: Callable[[], None]
) -> Iterator[None]:
    """Seal, and begin a rehearsed block; at its end commit it, to the test or to the database in memory."""
    connection = transaction.get_connection(alias)
    marks, effects = REHEARSALS.marks_of(connection), REHEARSALS.effects_of(connection)
    place = (*scope.keys[0], "" if once is None else once.key)
    if once is not None:
        check_not_begun(scope.resources[0], effects.get(place), once.intent(credential.sequencer))
    sealed_at = seal_noting(scope, credential.tenure, lambda: _seal(marks, scope, credential))
    is_outermost = not connection.in_atomic_block
    with transaction.atomic(using=alias):
        if is_outermost:
            transaction.on_commit(leave, using=alias)
        with reads_checked(alias, sealed_at):
            yield
        if connection.needs_rollback:
            raise closed_by_block() if connection.closed_in_transaction else marked_error()
    if once is not None:
        effects[place] = once.done(credential.sequencer)


def _seal(marks: Marks, scope: Scope, credential: Credential) -> None:
    """Seal and check as a guard does, with marks of this process."""
    sequencer, tenure = credential.sequencer, credential.tenure
    check_lock(scope, sequencer)
    tenure.check_may_open(scope.keys, is_independent=scope.is_independent)
    for key in scope.keys:
        mark = marks.get(key) or Mark(key[1], scope.lock)
        check_bound(mark, scope.lock)
        if admit(mark, sequencer, was_sealed=False) is Verdict.RAISE:
            marks[key] = sealed_mark(key[1], sequencer)
    tenure.remember(scope.keys, scope.keys)
    tenure.begin_reading(scope.keys)
