"""Connections to etcd: the client, URLs, messages, errors, and forks."""
