"""The source of tokens in one SQLite file: one transaction to acquire, one to release.

Promise: a token is minted in the transaction that decides the holder, from a block that was reserved durably before
(T1); who holds the lock need not survive a power cut, so grants are not flushed. Every decision is made on
CLOCK_BOOTTIME, read under the file's write lock (H1). A file that another kernel uses, that is a copy, or whose
counter went back is refused.
Never: a busy loop; a token given to two claims; a claim granted twice (H4).

Limits: all processes must run on one kernel. A process that is frozen inside a write transaction (tens of microseconds)
holds the whole file, take-over included; the others get SourceUnavailableError.
"""

import json
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fencelock.clock import HAS_BOOTTIME, boottime_ns
from fencelock.errors import UnsupportedError
from fencelock.model import Finding
from fencelock.protocol import source_requests as ask
from fencelock.protocol.stores import Capabilities
from fencelock.stores.sqlite.connection.database import BUSY_PATIENCE_S, Database, path_of
from fencelock.stores.sqlite.connection.kernel import this_kernel
from fencelock.stores.sqlite.source import admin, inspection, wakeup
from fencelock.stores.sqlite.source.identity import SQL, Seen, SQLiteIdentity, ensure_schema, read_source
from fencelock.stores.sqlite.source.queue import SQLiteQueue

REPLACED_CHECK_S = 0.05
"""How often a connection looks whether the file at its path is still the one that it has open: a look costs a tenth
of a grant."""
_NEVER = -1
MAX_CONNECTIONS = 8
"""The threads of a process take turns at so many: a thousand that all tried for the file's one lock would starve."""


class SQLiteSource:
    """A source of tokens in one file. Making it opens nothing."""

    capabilities = Capabilities(
        ttl_min_ms=100, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=True, max_connections=MAX_CONNECTIONS
    )

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = path_of(url)
        self.identity = SQLiteIdentity(self.path)

    def connect(self, *, request_timeout_s: float = BUSY_PATIENCE_S) -> "SQLiteSourceConnection":
        """Return a connection; the file is opened, and its schema made if it has none, by the first request."""
        if not HAS_BOOTTIME:
            raise UnsupportedError(
                "a SQLite source needs CLOCK_BOOTTIME, which this system does not have: run it on Linux, or use "
                "a server store"
            )
        return SQLiteSourceConnection(self, request_timeout_s)

    def listen(self, lock: str, claim: str) -> wakeup.PipeWakeup:
        """Open the bell of one waiting claim."""
        return wakeup.PipeWakeup(self.path, claim)

    def install(self) -> None:
        """Make the file and its schema if there is none."""
        connection = self.connect()
        try:
            connection.perform(ask.ReadSource())
        finally:
            connection.close()

    def examine(self) -> list[Finding]:
        """Return what in this file's set-up would break the promise."""
        return inspection.examine(self)


class SQLiteSourceConnection:
    """Answers requests, each in one transaction."""

    database_type: ClassVar[type[Database]] = Database

    def __init__(self, store: SQLiteSource, request_timeout_s: float) -> None:
        self._path = store.path
        self._identity = store.identity
        self._checked_opening = _NEVER
        self._look_again_s = 0.0
        self._told: deque[Any] = deque(maxlen=1)
        self.database = self.database_type(
            store.path, prepare=partial(prepare, self._told), request_timeout_s=request_timeout_s
        )
        self._execute = self.database.execute
        self._queueing = SQLiteQueue(store.path, store.identity, self.database)

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py` in one transaction."""
        now_s = time.monotonic()
        if now_s >= self._look_again_s:
            self.database.drop_if_replaced()
            self._look_again_s = now_s + REPLACED_CHECK_S
        if self._checked_opening != self.database.opening:
            self._check_file(is_operator=type(request) in _OPERATORS)
        try:
            return self._ANSWERS[type(request)](self, request)
        except TypeError as error:
            # A value that is not of its column's type: a mistake of ours, unless the file is damaged.
            self.database.check_whole(error)
            raise

    def _check_file(self, *, is_operator: bool) -> None:
        """Make sure of schema and identity; an operator may look at, and adopt, a file that is refused to everybody
        else.
        """
        self._identity.check_not_gone()
        ensure_schema(self.database)
        if not is_operator:
            self._identity.settle(self.database)
            self._checked_opening = self.database.opening or _NEVER

    def close(self) -> None:
        """Close the connection; never raises."""
        self.database.close()

    # --- acquire ----------------------------------------------------------------------------------
    def _acquire(self, request: ask.Acquire) -> ask.SourceReply:
        seen = self._identity.seen
        reply: ask.SourceReply = None if seen is None else self._grant_if_free(request, seen)
        if reply is None:
            reply = self.database.transact(lambda: self._queueing.acquire(request))
        return self._identity.remembering(reply)

    def _grant_if_free(self, request: ask.Acquire, seen: Seen) -> ask.Granted | None:
        lock, claim, holder, ttl_ms, born_us, _ = request
        boot_id, time_namespace, _ = this_kernel()
        row = (claim, holder, ttl_ms, ttl_ms, lock, born_us, claim)
        source = (seen.history_id, seen.counter, boot_id, time_namespace, born_us)
        if not self.database.change(SQL.grant_if_free, row + source):
            return None
        return ask.Granted(self._told.pop(), ttl_ms, seen.source_id, seen.history_id)

    def _poll(self, request: ask.Poll) -> ask.SourceReply:
        return self._identity.remembering(self.database.transact(lambda: self._queueing.poll(request)))

    # --- keep and end -----------------------------------------------------------------------------
    def _renew(self, request: ask.Renew) -> ask.SourceReply:
        return self.database.transact(lambda: self._decide_renew(request))

    def _decide_renew(self, request: ask.Renew) -> ask.Renewed:
        self._identity.check_unmoved(read_source(self.database))
        # In the order of the table: neighbours lie on one page.
        leases = {claim: lock for lock, claim in sorted(request.leases)}
        renewed = dict(self._execute(SQL.renew, {"leases": json.dumps(leases)}).fetchall())
        not_renewed = leases.keys() - renewed if len(renewed) < len(leases) else ()
        return ask.Renewed(renewed, {claim: self._why_lost(leases[claim], claim) for claim in not_renewed})

    def _why_lost(self, lock: str, claim: str) -> str:
        row = self._execute(SQL.read_lock, {"lock": lock}).fetchone()
        if row is None:
            return "the source no longer knows the lock"
        token, current, holder, ended = row
        if current == claim:
            return "it expired at the source before it was renewed"
        if current is not None:
            return f"{holder} holds the lock now, with token {token}"
        return ended or "it ended at the source"

    def _release(self, request: ask.Release) -> ask.SourceReply:
        if self.database.change(SQL.end_lease, (request.lock, request.claim)):
            was_held, head = True, self._told.pop()
        else:
            was_held, head = self.database.transact(lambda: self._end_idle_claim(request))
        if head is not None:
            wakeup.notify(self._path, head)
        return ask.Released(was_held)

    def _end_idle_claim(self, request: ask.Release) -> tuple[bool, str | None]:
        """End a claim that did not hold the lock: one that waits, that ended before, or that has not arrived yet.

        Looks once more first: an acquire that was cancelled may still be under way, and be granted at this moment.
        """
        self._identity.check_unmoved(read_source(self.database))
        if self._execute(SQL.end_lease, (request.lock, request.claim)).rowcount:
            return True, self._told.pop()
        fields = {"lock": request.lock, "claim": request.claim}
        self._execute(SQL.leave_queue, fields)
        self._queueing.remember_ended(**fields)
        head = self._execute(SQL.read_head, fields).fetchone()
        return False, head[0] if head else None

    # --- operators --------------------------------------------------------------------------------
    def _reserve_block(self, _: ask.ReserveBlock) -> ask.SourceReply:
        admin.reserve_block(self.database, self._identity)
        return None

    def _break(self, request: ask.Break) -> ask.SourceReply:
        decide = partial(admin.break_lease, self.database, self._queueing, request)
        reply, head = self.database.transact(decide)
        if head is not None:
            wakeup.notify(self._path, head)
        return reply

    def _purge(self, _: ask.Purge) -> ask.SourceReply:
        return self.database.transact(partial(admin.purge, self.database, self._identity))

    def _raise_epoch(self, request: ask.RaiseEpoch) -> ask.SourceReply:
        return self._identity.raise_epoch(self.database, request)

    def _read_source(self, request: ask.ReadSource) -> ask.SourceReply:
        return inspection.source_info(self.database)

    def _inspect(self, request: ask.Inspect) -> ask.SourceReply:
        return inspection.lock_info(self.database, request.lock)

    def _list(self, request: ask.ListLocks) -> ask.SourceReply:
        return inspection.page(self.database, request.after)

    _ANSWERS: ClassVar[dict[type, Callable[[Any, Any], ask.SourceReply]]] = {
        ask.Acquire: _acquire,
        ask.Poll: _poll,
        ask.Renew: _renew,
        ask.Release: _release,
        ask.ReserveBlock: _reserve_block,
        ask.Break: _break,
        ask.Purge: _purge,
        ask.RaiseEpoch: _raise_epoch,
        ask.ReadSource: _read_source,
        ask.Inspect: _inspect,
        ask.ListLocks: _list,
    }


_OPERATORS = {ask.RaiseEpoch, ask.ReadSource, ask.Inspect, ask.ListLocks}
"""Requests that an operator may make of a file which is refused as a copy, or as another kernel's."""


def prepare(told: deque[Any], native: Any) -> None:
    """Give a connection the functions that the statements use; what a statement tells is put into `told`.

    Neither function has a frame of Python's: see `fencelock.clock` for what a signal handler would do there.
    """
    native.create_function("fencelock_now_ns", 0, boottime_ns)
    native.create_function("fencelock_tell", 1, told.append)
    native.execute("PRAGMA synchronous = NORMAL")
