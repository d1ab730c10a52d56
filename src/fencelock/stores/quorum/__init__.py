"""What the stores for etcd and ZooKeeper share: how names, values and marks are written, and what a block collects."""
