"""Connections to ZooKeeper: opening them, URLs, errors, and forks."""
