"""SQLite: the embedded default, for processes on one machine. Needs only Python's own `sqlite3`.

The same rooms as every store; the source and the guard share `connection/` and nothing else.

    connection/  database.py (a file and a connection to it), file_identity.py (copies, second names, kernels),
                 forks.py (no open file survives a fork), errors.py (result codes and remedies),
                 macos.py (what stands in for Linux there), removal.py (uninstall),
                 wal_reset.py (the bug that `doctor` reports)
    source/      store.py, queue.py, identity.py, wakeup.py, admin.py, inspection.py; SQL: schema.sql, source.sql
    guard/       store.py, block.py, caller.py, framework.py (the three kinds of connection), connection.py (answers
                 over a block connection), marks.py, purging.py (floors), protection.py, inspection.py;
                 SQL: schema.sql, guard.sql, triggers.sql

An acquire arrives at `SQLiteSourceConnection.perform`. If the lock was taken before and is free, one UPDATE
(`grant_if_free` in source.sql) grants it. Otherwise `SQLiteQueue.acquire` decides inside one BEGIN IMMEDIATE: it reads
everything with the statement `look`, then grants, queues or refuses. `SQLiteIdentity` refuses a copy, another kernel's
file, or a history that went back. A release notifies the next waiter through a named pipe (wakeup.py). Tokens come
from a block that `admin.reserve_block` has flushed.

A guarded write begins with `SQLiteGuardConnection`: `Begin` and `Commit` seal the mark in a flushed transaction of
their own. `Open` begins the block's transaction and presents the token (`present` in guard.sql); `Finish` withdraws it
and commits. Triggers (triggers.sql) refuse writes to protected tables of a transaction that presents no token, and a
deferred foreign key (schema.sql) keeps a presented token from ever being committed, whatever the user's code does.
"""
