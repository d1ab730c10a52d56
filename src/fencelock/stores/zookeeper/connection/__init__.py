"""Connections to ZooKeeper: the client, URLs, errors, and forks."""
