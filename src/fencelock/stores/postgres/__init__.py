"""PostgreSQL: a source of tokens, and a guard whose triggers refuse stale writers in any language.

Needs the extra `fencelock[postgres]` (psycopg 3). What it shares with MySQL is in `stores/sql/`.

An acquire: `source/store.py` greets a new connection and sends one statement; `source/codec.py` encodes the request and
decodes the answer; `connection/client.py` and `connection/wire.py` carry it as a prepared statement; the function
`fencelock.acquire` in `source/functions_lease.sql` decides, and mints the token. A waiter sleeps until
`source/wakeup.py` receives a NOTIFY. Errors become FencelockError in `connection/errors.py`.

A guarded write: `guard/store.py` hands out a connection for one of three owners. `guard/connection.py` begins and
ends the transaction itself, `guard/caller.py` joins the caller's, `guard/framework.py` joins that of Django or
SQLAlchemy. `guard/codec.py` encodes the requests, with `guard/rights.py`, `guard/purging.py` and
`guard/effects.py`; `fencelock.offer` in `guard/functions_present.sql` presents the lease, and the trigger
`fencelock.enforce` in `guard/functions_triggers.sql` refuses every write without it. `guard/errors.py` maps the
refusals.

The SQL, by file:
- `source/schema.sql`, `functions_queue.sql`, `functions_lease.sql`, `functions_history.sql`: installed, in this order;
  `source/source.sql`: the statements that a client sends.
- `guard/schema.sql`, `functions_rights.sql`, `functions_present.sql`, `functions_triggers.sql`,
  `functions_effects.sql`, `functions_marks.sql`, `functions_floors.sql`, `protection.sql`: installed, in this order;
  `guard/guard.sql`: the statements that a client sends; `guard/inspection.sql`: those of `fencelock doctor`.
- `connection/common.sql`: functions that both parts call; `connection/install.sql`: what surrounds an installation.

To read first: `source/store.py`, `guard/connection.py`, `source/functions_lease.sql`.
"""
