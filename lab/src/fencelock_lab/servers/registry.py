"""The set-ups of private servers that a campaign can start, by their names.

Promise: looking a name up starts nothing.
"""

from fencelock_lab.servers.etcd import Etcd3Setup, EtcdSetup
from fencelock_lab.servers.mariadb import MariaDBSetup
from fencelock_lab.servers.postgres import PostgresSetup
from fencelock_lab.servers.setup import Setup
from fencelock_lab.servers.zookeeper import ZooKeeper3Setup

SETUPS: dict[str, type[Setup]] = {
    kind.name: kind for kind in (PostgresSetup, MariaDBSetup, EtcdSetup, Etcd3Setup, ZooKeeper3Setup)
}
