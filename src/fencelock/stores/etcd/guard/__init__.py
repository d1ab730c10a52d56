"""The guard at etcd: the store, its statements, and the three ways of using a connection."""
