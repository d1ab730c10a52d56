"""The source of tokens at etcd: the store, its statements, and what waiting needs."""
