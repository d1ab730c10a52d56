"""What the stores of quorum systems (etcd, ZooKeeper) share.

- `ended_claims.py`: the claims of this process that have ended, for both sources.
- `colocated.py`: a guard in the same store as its locks.
"""
