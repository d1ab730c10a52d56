"""Connections to etcd: opening them, URLs, errors, and forks."""
