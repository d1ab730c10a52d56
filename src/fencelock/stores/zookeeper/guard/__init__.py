"""The guard of resources at ZooKeeper."""
