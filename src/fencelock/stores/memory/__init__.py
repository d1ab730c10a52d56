"""The store in this process's memory, `memory://NAME`: a source of tokens for tests of code that takes a lock.

It is a store like any other: `connect("memory://jobs")` returns leases, queues, expiry on the real clock and fencing
tokens, without a file or a server. There is no guard: a mark in memory could protect nothing that outlives the process.

    source.py            the store and its connection: a mutex and wakeups around the model
    reference_model.py   what a source decides, as plain values: the smallest implementation of every rule

An acquire goes from `MemoryConnection.perform` through `MemoryWorld.answer`, which reads the clock under the mutex, to
`ReferenceModel.answer`. The simulator of fencelock-lab drives the same model in virtual time, and compares SQLite and
PostgreSQL with it. Durable guards refuse tokens from here, because they begin at 1 in each process.
"""
