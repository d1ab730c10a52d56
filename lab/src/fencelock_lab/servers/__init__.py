"""Private servers for tests, benchmarks and campaigns, which may kill, freeze, isolate and restore them.

Promise: each server is private: its folder, its ports on 127.0.0.1 and its processes are its own. Nothing of it is left
in the end, however the process that started it ends. Never: asks or touches a service of the machine.

`server` and `cluster` say what every server can do; `postgres`, `mariadb`, `etcd`, `zookeeper`, `ministack`,
`seaweedfs`, `rclone`, `redis`, `nats` and `rabbitmq` say how each one is started and used. `fleet` makes and shares
them, `setup` and `setups` are what campaigns attack.
"""
