"""What the stores of quorum systems (etcd, ZooKeeper) share: the encoding of names and marks, and a block's writes."""
