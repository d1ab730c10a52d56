"""What operators, and the reservation of tokens, do to a SQLite source: rare requests, each a transaction or two.

Promise: a block of tokens is on the disk before the bound that allows them is raised (T1). A break mints a token of its
own, so that the broken holder's is below it (G10), is written into the audit, and done once however often it is asked.
"""

from fencelock.errors import SourceError
from fencelock.model import MAX_TOKEN
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.connection.database import Database
from fencelock.stores.sqlite.source import wakeup
from fencelock.stores.sqlite.source.identity import SQL, SQLiteAuditEntry, SQLiteIdentity, read_source, write_audit
from fencelock.stores.sqlite.source.queue import SQLiteQueue

BLOCK_TOKENS = 4096
"""Tokens reserved by one flushed transaction, and the most that an unclean start can skip."""


def reserve_block(database: Database, identity: SQLiteIdentity) -> None:
    """Make the next block of tokens durable, and allow it; SourceError when there are no more."""

    def reserve() -> int:
        row = read_source(database)
        identity.check_unmoved(row)
        counter = row.counter
        if counter >= MAX_TOKEN:
            raise SourceError(f"{database.path} has issued token {counter}, the last one there is: make a new source")
        reserved = min(counter + BLOCK_TOKENS, MAX_TOKEN)
        database.execute(SQL.reserve_block, {"reserved": reserved})
        return reserved

    flushed = database.transact_flushed(reserve)
    # Only now: whoever sees the bound, after whatever became of this process, may rely on it.
    database.run(SQL.raise_bound, {"reserved": flushed})


def break_lease(database: Database, queueing: SQLiteQueue, request: ask.Break) -> tuple[ask.SourceReply, str | None]:
    """End whoever holds the lock; return the reply, and the claim whose turn it is now."""
    look = queueing.look(request.lock, request.claim)
    done = database.execute(SQL.read_break, {"claim": request.claim}).fetchone()
    if done is not None:
        return ask.Broken(done[0], look.source_id, look.history_id, done[1]), look.head
    token = queueing.next_token(look, request.lock)
    if token is None:
        return ask.BlockSpent(), None
    holder = look.holder if look.remaining_ms() > 0 else None
    ended = f"{request.holder} broke it: {request.reason}"
    database.execute(SQL.break_lease, {"lock": request.lock, "token": token, "ended": ended})
    who, lock, claim = request.holder, request.lock, request.claim
    write_audit(database, SQLiteAuditEntry(who, "break", lock, token, request.reason, holder, claim))
    return ask.Broken(token, look.source_id, look.history_id, holder), look.head


def purge(database: Database, identity: SQLiteIdentity) -> int:
    """Forget locks that nobody holds or waits for; return how many."""
    identity.check_unmoved(read_source(database))
    database.execute(SQL.end_expired_leases)
    database.execute(SQL.refuse_older_claims)
    for (claim,) in database.execute(SQL.drop_every_dead_waiter).fetchall():
        wakeup.remove(database.path, claim)
    return database.execute(SQL.purge).rowcount
