"""What the stores of quorum systems (etcd, ZooKeeper) share.

- `addresses.py`: the servers in a URL. `encoding.py`: names in keys and paths, and JSON values.
- `ended_claims.py`: the claims of this process that have ended, for both sources.
- `guard_codec.py`: the guard's operations, with `stored_values.py` (marks, floors and the audit), `purging.py` (which
  marks go, and the floors that they leave) and `effects.py` (`once=` and `dispatch`).
- `write_buffer.py`: a block whose writes are collected. `colocated.py`: a guard in the same store as its locks.
"""
