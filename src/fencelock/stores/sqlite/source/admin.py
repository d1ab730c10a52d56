"""Operators' requests and the reservation of tokens at a SQLite source: rare requests of one or two transactions.

Promise: a block of tokens is on disk before the bound that allows them is raised (T1). A break mints a token of its
own, so that the broken holder's token is below it (G10); it is audited, and a repeated request breaks only once.
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
    """Make the next block of tokens durable, then allow it; SourceError if no token is left."""

    def reserve() -> int:
        row = read_source(database)
        identity.check_state(row)
        counter = row.counter
        if counter >= MAX_TOKEN:
            raise SourceError(f"{database.path} has issued token {counter}, the last one there is: make a new source")
        reserved = min(counter + BLOCK_TOKENS, MAX_TOKEN)
        database.execute(SQL.reserve_block, {"reserved": reserved})
        return reserved

    flushed = database.transact_flushed(reserve)
    # Only after the flush: any process that reads the bound may rely on it, even if this one is killed here.
    database.run(SQL.raise_bound, {"reserved": flushed})


def break_lease(database: Database, queue: SQLiteQueue, request: ask.Break) -> tuple[ask.SourceReply, str | None]:
    """End the lease on the lock, if there is one; return the reply, and the digest of the claim whose turn it is."""
    look = queue.look(request.lock, request.claim)
    done = database.execute(SQL.read_break, {"digest": request.claim}).fetchone()
    # An earlier request has broken the lock, and its reply was lost.
    if done is not None:
        return ask.Broken(done[0], look.source_id, look.history_id, done[1]), look.head
    token = queue.next_token(look, request.lock)
    if token is None:
        return ask.BlockSpent(), None
    holder = look.holder if look.remaining_ms() > 0 else None
    ended = f"{request.holder} broke it: {request.reason}"
    database.execute(SQL.break_lease, {"lock": request.lock, "token": token, "ended": ended})
    who, lock, digest = request.holder, request.lock, request.claim
    write_audit(database, SQLiteAuditEntry(who, "break", lock, token, request.reason, holder, digest))
    return ask.Broken(token, look.source_id, look.history_id, holder), look.head


def purge(database: Database, identity: SQLiteIdentity) -> int:
    """Delete the locks without holder and waiters; return how many."""
    identity.check_state(read_source(database))
    database.execute(SQL.end_expired_leases)
    database.execute(SQL.refuse_older_claims)
    for (digest,) in database.execute(SQL.drop_every_dead_waiter).fetchall():
        wakeup.remove(database.path, digest)
    return database.execute(SQL.purge).rowcount
