"""The source of tokens at ZooKeeper: the store, its statements, and what waiting needs."""
