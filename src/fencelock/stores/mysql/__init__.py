"""MySQL and MariaDB: a source of tokens, and a guard whose triggers refuse stale writers in any language.

Needs the extra `fencelock[mysql]` (PyMySQL, and aiomysql for asyncio). What it shares with PostgreSQL is in
`stores/sql/`.

An acquire: `source/store.py` greets a new connection and sends one CALL, again if the server ended a deadlock;
`source/codec.py` encodes the request and decodes the answer; `connection/client.py` carries it; the routine
`fencelock_acquire` in `source/routines_lease.sql` decides, and mints the token. There is no NOTIFY: the answer tells a
waiter when to poll. Errors become FencelockError in `connection/errors.py`.

A guarded write: `guard/store.py` hands out a connection for one of three owners. `guard/connection.py` begins and
ends the transaction itself, `guard/caller.py` joins the caller's, `guard/framework.py` joins that of Django or
SQLAlchemy. `guard/codec.py`, with `guard/rights.py`, `guard/purging.py` and `guard/effects.py`, encodes each request
as one statement of literals; `fencelock_open`
and `fencelock_offer` in `guard/routines_present.sql` present the lease, and the triggers of `guard/triggers.sql`
refuse every row without it. `guard/protection.py` creates and drops those triggers; `guard/errors.py` maps the
refusals.

Claims and proofs are masked in statements: `connection/masks.py`, and the `REVEAL` of `connection/expressions.py`,
which also has what the routines share. Rights, signatures and the ceiling are checked by
`guard/routines_checks.sql`.

The SQL, by file:
- `source/schema.sql`, `routines_queue.sql`, `routines_lease.sql`, `routines_history.sql`: installed, in this order;
  `source/source.sql`: the statements that a client sends.
- `guard/schema.sql`, `routines_checks.sql`, `routines_present.sql`, `routines_effects.sql`, `routines_marks.sql`,
  `routines_floors.sql`: installed, in this order, with `guard/install.sql`; `guard/guard.sql`: the statements that a
  client sends;
  `guard/inspection.sql`: those of `fencelock doctor`.

To read first: `source/store.py`, `guard/connection.py`, `source/routines_lease.sql`.
"""
