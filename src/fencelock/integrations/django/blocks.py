"""`fenced`: the guarded block, as Django's outermost `atomic` block.

Promise: inside it `atomic()` creates savepoints, `on_commit` callbacks run after the commit, and Django itself forbids
`commit()` and `rollback()`. A block that ends without an error is committed; a callback's error stays what it is. A
transaction that is already open is refused, because it may have read before the seal.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, transaction

from fencelock._api.base_guard import BaseGuard
from fencelock._api.credentials import credential_of
from fencelock._api.durations import Duration
from fencelock._api.idle_limit import IdleLimit
from fencelock._api.once import Once, once_of
from fencelock.errors import GuardError
from fencelock.integrations.django.connection import DjangoConnection, unreachable_error
from fencelock.integrations.django.reads import reads_checked, seal_noting
from fencelock.integrations.django.rehearsing import REHEARSALS, rehearsal_scope, rehearsed, users_blocks
from fencelock.integrations.django.urls import url_of
from fencelock.integrations.fencing import COMMITTED, BlockEntry, Fencing, SyncFencedBlock, fencing_of


def fenced(
    lease: Any,
    *,
    resource: str | None = None,
    resources: Iterable[str] | None = None,
    using: str | None = None,
    guard: BaseGuard | None = None,
    once: str | Once | None = None,
    idle: Duration | None = None,
) -> "DjangoFenced":
    """Return a block that is one Django transaction, committed if no newer holder has sealed a resource.

    `lease` is a lease or a Sequencer. `resource` or `resources` are in the database `using`; pass `guard` instead if
    they are elsewhere. Entering raises what `guard.seal` raises, GuardError inside an `atomic` block or without
    autocommit, and the lease's own error if it is over; the block raises UnfencedWriteError for a write to another
    resource's table; leaving raises GuardError if the transaction was lost or marked for rollback, and
    OutcomeUnknownError if the commit was not confirmed. An `on_commit` callback's error passes, with a note. `once` is
    a key, or a Once with a result, as for `guard.transaction`: entering raises AlreadyDoneError if it was done. `idle`
    is as there: a block that sends nothing for longer is ended by the server.
    """
    alias = using or DEFAULT_DB_ALIAS
    if REHEARSALS.include(alias):
        credential = credential_of(lease)
        IdleLimit(credential, idle)  # Raises ConfigError for what the real block refuses; nothing is idle here.
        scope = rehearsal_scope(alias, credential, resource, resources, guard)
        block = partial(rehearsed, alias, scope, credential, once_of(once, scope))
        return DjangoFenced(alias, BlockEntry(scope.url, credential), block)
    url = "" if guard is not None else url_of(alias)
    fencing = fencing_of(lease, url, resource, resources, guard, idle, once)
    return DjangoFenced(alias, fencing.new_entry(), partial(_guarded, alias, fencing))


class DjangoFenced(SyncFencedBlock):
    """The block of `with fenced(…)`, entered once."""

    def __init__(
        self, alias: str, entry: BlockEntry, begun: Callable[[Callable[[], None]], AbstractContextManager[None]]
    ) -> None:
        super().__init__(entry)
        self._alias = alias
        self._begun = begun

    def __enter__(self) -> None:
        self._use()
        with self._entry.asking():
            _check_idle(self._alias, self._entry.url)
        try:
            self._entry.begin()
            self._stack.enter_context(self._begun(self._entry.end))
        except BaseException:
            self._entry.end()
            raise


@contextmanager
def _guarded(alias: str, fencing: Fencing, leave: Callable[[], None]) -> Iterator[None]:
    """Seal, begin and present; at the end withdraw, commit and `leave`."""
    sealed_at = seal_noting(fencing.scope, fencing.tenure, fencing.seal)
    adapter = DjangoConnection(transaction.get_connection(alias), fencing.store)
    is_commit = is_committed = False

    def committed() -> None:
        nonlocal is_committed
        is_committed = True
        leave()

    try:
        adapter.prepare()
        with transaction.atomic(using=alias, durable=True):
            with fencing.presented(adapter.perform), reads_checked(alias, sealed_at):
                # This must be the first callback: later ones may fail, release the lease or enter a block of their own.
                transaction.on_commit(committed, using=alias)
                yield
            is_commit = True
    except Exception as error:
        if is_committed:
            error.add_note(COMMITTED)
            raise
        mapped = adapter.map_error(error, is_commit=is_commit)
        fencing.explain(error, mapped)
        if mapped is None:
            raise
        raise mapped from error
    finally:
        adapter.restore()


def _check_idle(alias: str, url: str) -> None:
    """Raise GuardError if the connection is in a transaction; Django's own error in a thread with a running loop."""
    connection = transaction.get_connection(alias)
    if users_blocks(connection) if REHEARSALS.is_on else connection.in_atomic_block:
        raise GuardError(
            f"database {alias!r} is inside an atomic block already, which may have read what a newer holder has "
            f"changed since: make fenced(…) the outermost block, and use atomic() inside it. (With ATOMIC_REQUESTS, "
            f"mark the view with transaction.non_atomic_requests; for tests see fencelock.integrations.django.testing.)"
        )
    try:
        connection.ensure_connection()
    except (InterfaceError, OperationalError) as error:
        raise unreachable_error(url, error) from error
    if not (connection.in_atomic_block or connection.get_autocommit()):
        raise GuardError(
            f"database {alias!r} is not in autocommit mode, so an open transaction may have read already: call "
            f"transaction.set_autocommit(True) first"
        )
