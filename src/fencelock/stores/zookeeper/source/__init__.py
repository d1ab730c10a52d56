"""The source at ZooKeeper: `store` dispatches, `queue` answers claims, `session` remembers and listens."""
