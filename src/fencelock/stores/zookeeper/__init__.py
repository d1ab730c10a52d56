"""ZooKeeper, over kazoo: a source of tokens among its locks, and marks beside its data.

Each module here says what it promises; `fencelock[zookeeper]` installs the client that they need.
"""
