"""ZooKeeper, over kazoo, as a source of fencing tokens, and as a guard. Needs the extra `fencelock[zookeeper]`.

One acquire: `source/store.py` first removes what this process has let expire, then hands the request to
`source/queue.py`. The queue gets the session of this ttl from `source/sessions.py`, enters a queue entry
(`source/queue_entry.py`) there, and sends the creation of an ephemeral sequential node together with the read of the
queue. `source/layout.py` spells paths and values. `connection/client.py` hands the requests to kazoo's thread, and
`connection/errors.py` maps errors. If the node is the first, its czxid plus the record's offset is the token. Otherwise
the claim waits: `poll` watches the predecessor's node, and the claim's own node once it is second.

One guarded write: `guard/connection.py` runs the operations of `guard/codec.py` over one shared session. `Open` reads
the marks after a `sync` (with `locks=` in the URL also the lock's own node, `guard/colocated.py`) and yields the
transaction object of `guard/block.py`. The block's reads go out at once, its writes are collected. `Finish` sends one
`multi`, which checks the versions of the marks and of everything that was read, and writes all or nothing.

In the background: a session (`source/session.py`) holds all locks of one ttl. kazoo's thread tells watches and replies
in ZooKeeper's order, and the session notes them there. The keeper's beat (`source/renewal.py`) is a `sync`, a read of
the record, and a watch of each held node. `source/admin.py` and `source/inspection.py` serve operators.

To understand the folder, read this and three files: `source/queue.py`, `source/session.py`, `guard/block.py`.
"""
