"""The public classes, thin over flows, drivers and keeper: sync in plain names, their async twins with the prefix
`Async`.

`source.py` connects, `lock.py` has the handles to a named lock, `lease.py` a single holding, `guard.py` enforces; each
has a twin `aio_….py`, and its base class holds what the two share. `leading.py` loops over terms of leadership, by what
`repeatable.py` says of errors. `idle_limit.py` says for how long a block may be idle. `guard_core.py` and
`executors.py` do a guard's work, in the caller's thread and for tasks. `credentials.py` says what a guard accepts as a
lease; `lock_options.py` and `validation.py` check arguments.
"""
