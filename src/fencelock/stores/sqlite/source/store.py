"""The source of tokens in one SQLite file: one transaction to acquire, one to release.

Promise: a token is minted in the transaction that decides the holder, from a block that was durably reserved before
(T1). The record of the holder may be lost in a power cut, so grants are not flushed. Every decision uses
CLOCK_BOOTTIME, read under the file's write lock (H1). A file that another kernel uses, that is a copy, or that is older
than this process has seen it is refused.
Never: a busy loop; one token for two claims; a claim granted twice (H4); a claim or a proof in the file or in the name
of a pipe (G12). The connection hashes each claim once, when it gets the request.

Limits: all processes must run on one kernel. A process that is frozen inside a write transaction (tens of microseconds
long) blocks the whole file, take-over included; other processes get SourceUnavailableError.
"""

import json
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fencelock.clock import COUNTS_SUSPEND, boottime_ns
from fencelock.errors import UnsupportedError
from fencelock.model import Finding, digest_of_claim
from fencelock.protocol import source_requests as ask
from fencelock.protocol.stores import Capabilities
from fencelock.stores.errors import unsupported
from fencelock.stores.hashed_claims import hash_claims, restore_claims
from fencelock.stores.sqlite.connection.database import BUSY_TIMEOUT_S, Database, path_of
from fencelock.stores.sqlite.connection.file_identity import this_kernel
from fencelock.stores.sqlite.connection.removal import uninstall
from fencelock.stores.sqlite.source import admin, inspection, wakeup
from fencelock.stores.sqlite.source.identity import (
    SCHEMA,
    SQL,
    SQLiteIdentity,
    SQLiteSourceState,
    check_installed,
    ensure_schema,
    is_installed,
    read_source,
)
from fencelock.stores.sqlite.source.queue import SQLiteQueue

REPLACED_CHECK_S = 0.05
"""How often a connection checks that its path still names the file that it has open. A check costs a tenth of a
grant."""
_NEVER = -1
MAX_CONNECTIONS = 8
"""The threads of a process share so many connections: a thousand that all compete for the file's one lock starve."""


class SQLiteSource:
    """A source of tokens in one file. Constructing it opens nothing."""

    capabilities = Capabilities(
        ttl_min_ms=100, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=True, max_connections=MAX_CONNECTIONS
    )

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = path_of(url)
        self.identity = SQLiteIdentity(self.path)

    def connect(self, *, request_timeout_s: float = BUSY_TIMEOUT_S) -> "SQLiteSourceConnection":
        """Return a connection. Its first request opens the file. One that takes a lock creates the file and its schema
        if they do not exist; one that only looks refuses a file that is no source.
        """
        if not COUNTS_SUSPEND:
            raise UnsupportedError(
                "a SQLite source needs CLOCK_BOOTTIME, which this system does not have: run it on Linux, or use "
                "a server store"
            )
        return SQLiteSourceConnection(self, request_timeout_s)

    def listen(self, lock: str, claim: str) -> wakeup.PipeWakeup:
        """Open the wakeup of one waiting claim."""
        return wakeup.PipeWakeup(self.path, digest_of_claim(claim))

    def install(self) -> None:
        """Create the file and its schema if they do not exist."""
        connection = self.connect()
        try:
            ensure_schema(connection.database)
        finally:
            connection.close()

    def is_installed(self) -> bool:
        """Return whether the file has the source's half; SchemaError if it is another version's."""
        return is_installed(self.path)

    def check_removal(self) -> None:
        """Do nothing: SQLite drops a table whatever refers to it."""

    def uninstall(self) -> bool:
        """Drop the source's tables, with everything in them, and the waiters' pipes; the file stays."""
        was_there = uninstall(self.path, SCHEMA.created("TABLE"))
        wakeup.remove_all(self.path)
        return was_there

    def examine(self) -> list[Finding]:
        """Return the findings about the file's setup."""
        connection = self.connect()
        try:
            return inspection.examine(self.path, connection.check_accepted)
        finally:
            connection.close()


class SQLiteSourceConnection:
    """Answers requests, each in one transaction."""

    database_type: ClassVar[type[Database]] = Database

    def __init__(self, store: SQLiteSource, request_timeout_s: float) -> None:
        self._url = store.url
        self._path = store.path
        self._identity = store.identity
        self._checked_opening = _NEVER
        self._next_check_s = 0.0
        self._emitted: deque[Any] = deque(maxlen=1)
        self.database = self.database_type(
            store.path, prepare=partial(register_functions, self._emitted), request_timeout_s=request_timeout_s
        )
        self._execute = self.database.execute
        self._queue = SQLiteQueue(store.path, store.identity, self.database)

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py` in one transaction."""
        answer = self._ANSWERS.get(type(request))
        if answer is None:
            raise unsupported(request, self._url)
        now_s = time.monotonic()
        if now_s >= self._next_check_s:
            self.database.drop_if_replaced()
            self._next_check_s = now_s + REPLACED_CHECK_S
        if self._checked_opening != self.database.opening:
            self._check_file(type(request))
        try:
            reply = answer(self, hash_claims(request))
        except TypeError as error:
            # A value has not its column's type: the file is damaged, or else this is a bug of ours.
            self.database.check_integrity(error)
            raise
        return restore_claims(request, reply) if isinstance(reply, ask.Renewed) else reply

    def _check_file(self, kind: type) -> None:
        """Check schema and identity; an operator may inspect, and adopt, a file that is otherwise refused."""
        self._identity.check_not_gone()
        if kind in _CREATES_NOTHING:
            check_installed(self.database)
        ensure_schema(self.database)
        if kind not in OPERATOR_REQUESTS:
            self._identity.check_file(self.database)
            self._checked_opening = self.database.opening or _NEVER

    def check_accepted(self) -> None:
        """Raise SourceError if this source is refused for acquires (for `fencelock doctor`)."""
        self.perform(ask.ReadSource())
        self._identity.check_file(self.database)

    def close(self) -> None:
        """Close the connection; never raises."""
        self.database.close()

    # --- acquire ----------------------------------------------------------------------------------
    def _acquire(self, request: ask.Acquire) -> ask.SourceReply:
        # The common case is a single UPDATE; it needs the source's state as an earlier request has read it.
        seen = self._identity.seen
        reply: ask.SourceReply = None if seen is None else self._grant_if_free(request, seen)
        if reply is None:
            reply = self.database.transact(lambda: self._queue.acquire(request))
        return self._identity.remember_grant(reply)

    def _grant_if_free(self, request: ask.Acquire, seen: SQLiteSourceState) -> ask.Granted | None:
        lock, digest, holder, ttl_ms, born_us, _ = request
        boot_id, time_namespace, _ = this_kernel()
        # In the order of the `?` in the statement.
        row = (digest, holder, ttl_ms, ttl_ms, lock, born_us, digest)
        source = (seen.history_id, seen.counter, boot_id, time_namespace, born_us)
        # It may refuse what the general path grants, never the reverse.
        if not self.database.change(SQL.grant_if_free, row + source):
            return None
        # The token comes by `fencelock_emit`, because RETURNING builds a table for each execution.
        return ask.Granted(self._emitted.pop(), ttl_ms, seen.source_id, seen.history_id)

    def _poll(self, request: ask.Poll) -> ask.SourceReply:
        return self._identity.remember_grant(self.database.transact(lambda: self._queue.poll(request)))

    # --- renew and release ----------------------------------------------------------------------------
    def _renew(self, request: ask.Renew) -> ask.SourceReply:
        return self.database.transact(lambda: self._decide_renew(request))

    def _decide_renew(self, request: ask.Renew) -> ask.Renewed:
        self._identity.check_state(read_source(self.database))
        # In the order of the table: adjacent rows share a page.
        leases = {digest: lock for lock, digest in sorted(request.leases)}
        renewed = dict(self._execute(SQL.renew, {"leases": json.dumps(leases)}).fetchall())
        not_renewed = leases.keys() - renewed if len(renewed) < len(leases) else ()
        return ask.Renewed(renewed, {digest: self._why_lost(leases[digest], digest) for digest in not_renewed})

    def _why_lost(self, lock: str, digest: str) -> str:
        row = self._execute(SQL.read_lock, {"lock": lock}).fetchone()
        if row is None:
            return "the source no longer knows the lock"
        token, current, holder, ended = row
        if current == digest:
            return "it expired at the source before it was renewed"
        if current is not None:
            return f"{holder} holds the lock now, with token {token}"
        return ended or "it ended at the source"

    def _release(self, request: ask.Release) -> ask.SourceReply:
        if self.database.change(SQL.end_lease, (request.lock, request.claim)):
            was_held, head = True, self._emitted.pop()
        else:
            was_held, head = self.database.transact(lambda: self._end_idle_claim(request))
        if head is not None:
            # After the commit: a waiter that polled before it would find the lock held, and sleep on.
            wakeup.notify(self._path, head)
        return ask.Released(was_held)

    def _end_idle_claim(self, request: ask.Release) -> tuple[bool, str | None]:
        """End a claim that did not hold the lock: it waits, has ended before, or has not arrived yet.

        Tries to release once more first: an acquire that was cancelled may have been granted in this moment.
        """
        self._identity.check_state(read_source(self.database))
        if self._execute(SQL.end_lease, (request.lock, request.claim)).rowcount:
            return True, self._emitted.pop()
        fields = {"lock": request.lock, "digest": request.claim}
        self._execute(SQL.leave_queue, fields)
        self._queue.remember_ended(**fields)
        head = self._execute(SQL.read_head, fields).fetchone()
        return False, head[0] if head else None

    # --- operators --------------------------------------------------------------------------------
    def _reserve_block(self, _: ask.ReserveBlock) -> ask.SourceReply:
        admin.reserve_block(self.database, self._identity)
        return None

    def _break(self, request: ask.Break) -> ask.SourceReply:
        decide = partial(admin.break_lease, self.database, self._queue, request)
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

    def _check(self, request: ask.Check) -> ask.SourceReply:
        return inspection.check(self.database, self._identity, request)

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
        ask.Check: _check,
        ask.ListLocks: _list,
    }


OPERATOR_REQUESTS = {ask.RaiseEpoch, ask.ReadSource, ask.Inspect, ask.ListLocks}
"""Requests that an operator may send to a file which is refused as a copy or as another kernel's."""


_CREATES_NOTHING = {ask.ReadSource, ask.Inspect, ask.ListLocks, ask.Check, ask.Purge, ask.Break, ask.RaiseEpoch}
"""Requests about what is there: a path that was mistyped is an error, and no new source."""


def register_functions(emitted: deque[Any], native: Any) -> None:
    """Register the SQL functions that the statements use. `fencelock_emit` appends its argument to `emitted`.

    Both are C functions without a Python frame: `fencelock.clock` says what a signal handler could do in one.
    """
    native.create_function("fencelock_now_ns", 0, boottime_ns)
    native.create_function("fencelock_emit", 1, emitted.append)
    native.execute("PRAGMA synchronous = NORMAL")
