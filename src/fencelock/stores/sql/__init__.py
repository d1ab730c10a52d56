"""What the two SQL stores, PostgreSQL and MySQL, share: base classes that each of them derives from.

- `errors.py`: tables of definite errors, the words for lost connections, the check of a schema's number.
- `source.py`: `SourceOperation` (one request as SQL), the answer of `acquire`, the decoding of common rows;
  `SourceProtocolBase` greets a connection, asks, and refuses a source that is older than it has seen it;
  `BlockingSourceConnection` and `AsyncioSourceConnection` open, reopen and bound the wait.
- `guard.py`: the table of encoders; how a request is performed on a connection of the guard's own
  (`BlockingGuardConnection`, `AsyncioGuardConnection`) and on one of a caller or a framework
  (`BlockingCallerConnection`, `AsyncioCallerConnection`); `BlockState` refuses a block that ends its own transaction.
- `guard_store.py`: `GuardStoreBase` and its pools of idle connections.
- `signing.py`: a key as HMAC needs it in SQL.
- `inspection.py`: findings of `fencelock doctor` that are the same for both.

An abstract method with a leading underscore is what a store fills in: `_open`, `_run`, `_exchange`, `_encode`,
`_map_request_error`. Nothing here imports a client library.
"""
