"""Redis and Valkey as a guard, never as a source. Needs the extra `fencelock[redis]` (redis-py).

One guarded write: a connection (`stores/optimistic`) runs the operations of `guard/codec.py`. `Open` reads the marks,
and yields the transaction object of `guard/block.py`. The block's reads go out at once, each after a WATCH of its keys
on the block's own connection; its commands are collected, and checked against what the server says of them
(`guard/commands.py`). `Finish` sends one script, `guard/compare_and_do.lua`: it compares the marks, and then runs the
commands.

`connection/client.py` sends the requests to the right server, over `connection/connections.py`: redis-py's lowest
layer, because its clients send again what may have been done. `connection/server.py` examines each server before it is
used: a replica, one that may evict a mark, and one that does not flush what it acknowledges are refused.

To understand the folder, read this and three files: `guard/compare_and_do.lua`, `guard/block.py`, `guard/codec.py`.
"""
