"""The source of tokens at ZooKeeper."""
