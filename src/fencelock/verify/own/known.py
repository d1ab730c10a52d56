"""The set-ups of private servers that a campaign can start, by their names.

Promise: looking a name up starts nothing.
"""

from fencelock.verify.own.etcd import Etcd3Setup, EtcdSetup
from fencelock.verify.own.mariadb import MariaDBSetup
from fencelock.verify.own.postgres import PostgresSetup
from fencelock.verify.own.setup import Setup
from fencelock.verify.own.zookeeper import ZooKeeper3Setup

SETUPS: dict[str, type[Setup]] = {
    kind.name: kind for kind in (PostgresSetup, MariaDBSetup, EtcdSetup, Etcd3Setup, ZooKeeper3Setup)
}
