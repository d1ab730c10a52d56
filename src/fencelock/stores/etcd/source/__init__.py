"""The source at etcd: `store` dispatches, `codec` answers claims, `cluster_state` remembers, `watcher` listens."""
