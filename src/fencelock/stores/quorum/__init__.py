"""What the stores of quorum systems (etcd, ZooKeeper) share: `colocated.py`, a guard in the same store as its locks."""
