"""The guard of resources at etcd."""
