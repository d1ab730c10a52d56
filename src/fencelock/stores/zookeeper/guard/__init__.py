"""The guard at ZooKeeper: the store, its statements, and the three ways of using a connection."""
