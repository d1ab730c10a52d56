"""The source of tokens at etcd."""
