"""One folder per system that issues tokens or enforces them, and the modules that several of them share.

Every store has the same rooms: `connection/` (open, URL, errors, forks), `source/` (issues tokens) and `guard/`
(enforces them). `sql/` is shared by PostgreSQL and MySQL, `quorum/` by etcd and ZooKeeper, `optimistic/` by the guards
without open transactions; `registry.py` finds the store of a URL. The contract of a store is public:
`fencelock.protocol.stores`.

A store knows requests, its client and its statements. It knows no public class, thread or event loop of fencelock.
"""
