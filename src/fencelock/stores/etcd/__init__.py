"""etcd as a source of fencing tokens, and as a guard. Needs the extra `fencelock[etcd]` (grpcio, protobuf).

One acquire: `source/store.py` finds the generator for the request and sends what it yields. `source/codec.py`
(`acquire`) asks `source/cluster_state.py` for the source's record and for the session of this ttl, and yields one
transaction that creates the queue entry. `source/layout.py` spells its keys, and `connection/wire.py` its messages.
`connection/client.py` sends it to one member and maps errors. If the entry is alone in its queue, the revision of the
transaction is the token. Otherwise the claim waits: `poll` watches the key of the predecessor, and the watcher notifies
the waiter when that key is deleted.

One guarded write: a connection (`stores/optimistic`) runs the operations of `guard/codec.py`. `Open` reads the marks
(with `locks=` in the URL also the lock's own key, `guard/colocated.py`) and yields the transaction object of
`guard/block.py`. The block's reads go out at once, its writes are collected. `Finish` sends one Txn, which compares the
marks and everything that was read, and writes all or nothing.

In the background: a session (`source/session.py`) is one etcd lease for each ttl, and all queue entries of that ttl are
attached to it. The keeper's beat (`source/renewal.py`) renews it by one keepalive. One stream of watches
(`source/watcher.py`) tells the deletion of predecessors and of held keys. `source/admin.py` and `source/inspection.py`
serve operators.

To understand the folder, read this and three files: `source/codec.py`, `source/cluster_state.py`, `guard/block.py`.

Importing this package imports no client. Before anything here imports gRPC, it asks gRPC by environment variables to
prepare for fork(), because a forked child would otherwise wait for ever, and to log errors only, because gRPC would
otherwise report each fork on stderr. The variables are removed once gRPC has read them, so programs started later do
not inherit them.
"""

import os

_SETTINGS = {"GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_VERBOSITY": "ERROR"}
FOR_GRPC = [name for name in _SETTINGS if name not in os.environ]
"""The variables that are set here, because nobody else has set them."""
for _name in FOR_GRPC:
    os.environ[_name] = _SETTINGS[_name]
