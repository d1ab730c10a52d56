"""URLs of fresh sources, for the programs of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fencelock_lab.servers.etcd import EtcdFleet
from fencelock_lab.servers.mariadb import MariaDBFleet
from fencelock_lab.servers.postgres import PostgresFleet
from fencelock_lab.servers.zookeeper import ZooKeeperFleet
from tests.etcd.fix_etcd import fresh_corner
from tests.sql.dialect import install
from tests.sql.mysql.dialect import MySQLDialect
from tests.sql.postgres.dialect import PostgresDialect
from tests.zookeeper.fix_zookeeper import fresh_base


@pytest.fixture
def memory_url() -> str:
    return "memory://process"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'locks.db'}"


@pytest.fixture
def postgres_url(postgres_fleet: PostgresFleet) -> Iterator[str]:
    with PostgresDialect(postgres_fleet, "18").fresh_database() as database:
        yield install(database.url())


@pytest.fixture
def mysql_url(mysql_fleet: MariaDBFleet) -> Iterator[str]:
    with MySQLDialect(mysql_fleet).fresh_database() as database:
        yield install(database.url())


@pytest.fixture
def etcd_url(etcd_fleet: EtcdFleet) -> str:
    corner = fresh_corner(etcd_fleet, 1)
    return install(corner.url)


@pytest.fixture
def zookeeper_own_url(zookeeper_fleet: ZooKeeperFleet) -> str:
    return install(zookeeper_fleet.shared().url(fresh_base()))
