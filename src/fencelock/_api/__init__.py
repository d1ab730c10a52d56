"""The public classes, thin over flows, drivers and keeper: sync in plain names, their async twins with the prefix
`Async`.

`source.py` and `aio_source.py` connect; `lock.py`, `rlock.py` and `aio_lock.py` are handles to a named lock;
`lease.py` and `aio_lease.py` are single holdings; `guard.py` and `aio_guard.py` enforce. `terms.py` checks what users
ask for.
"""
