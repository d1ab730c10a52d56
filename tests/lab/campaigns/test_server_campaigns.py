"""Campaigns against private servers: locks and data in one place, and nothing of ours is left in it."""

import json
from collections.abc import Iterator

import pytest

import fencelock
from fencelock import inspect_resources
from fencelock_lab.campaigns.settings import OWN_NAMES
from fencelock_lab.campaigns.verdict import CLEAN, NOT_ENOUGH
from fencelock_lab.servers.etcd import EtcdCluster, EtcdFleet
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.cli.program import Program, program
from tests.etcd.fix_etcd import Corner
from tests.lab.campaigns.test_campaign import attack_until
from tests.sql.mysql.fix_mysql import Database as MySQLDatabase
from tests.sql.postgres.fix_postgres import Database, only
from tests.zookeeper.fix_zookeeper import fresh_base

__all__ = ["program"]
pytestmark = [pytest.mark.process, pytest.mark.slow]

SHORT = ("--ttl", "0.3", "--duration", "8")
SHORT_SESSIONS = ("--ttl", "1", "--duration", "8")
"""For stores that grant no shorter leases."""


def check(program: Program, url: str, guard: str, words: tuple[str, ...] = SHORT) -> None:
    """Attack the source and the guard at the URLs, and expect that they stand."""
    with fencelock.connect(url) as source:
        source.install()
    history = program.folder / "history.jsonl"
    code, verdict = attack_until(CLEAN, program, "--source", url, "--guard", guard, "--history", str(history), *words)
    assert (code, verdict["violations"], verdict["undecided"]) == (0, [], []), verdict
    assert verdict["amounts"]["refusals"] > 0
    assert verdict["amounts"]["disturbances"] > 0
    assert inspect_resources(guard).protections == ()
    told = json.loads(program("doctor", "--source", url, "--guard", guard, "--json").stdout)
    assert [one for one in told["findings"] if (one["resource"] or "").startswith(OWN_NAMES)] == []
    assert program.left() == []


@pytest.mark.campaign
@only("15")
def test_postgres_stands(program: Program, database: Database) -> None:
    check(program, database.url(), database.url())
    tables = database.rows("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'verify%%'")
    assert tables == [(0,)]


@pytest.mark.campaign
def test_mariadb_stands(program: Program, mysql_database: MySQLDatabase) -> None:
    check(program, mysql_database.url(), mysql_database.url())
    assert len(mysql_database.rows("SHOW TABLES LIKE 'verify%%'")) == 0


@pytest.mark.campaign
def test_etcd_stands(program: Program, etcd: Corner) -> None:
    check(program, f"{etcd.url}/locks", f"{etcd.url}/data", SHORT_SESSIONS)
    assert "verify_" not in etcd.cluster.ctl("get", "--prefix", "--keys-only", etcd.prefix)


@pytest.fixture
def usual_etcd(etcd_fleet: EtcdFleet) -> Iterator[EtcdCluster]:
    """Yield a member with the election timeout that etcd has unless somebody changes it: it grants no ttl below 2 s."""
    cluster = etcd_fleet.new_cluster(1)
    cluster.servers[0].settings |= {"heartbeat-interval": 100, "election-timeout": 1000}
    with cluster:
        yield cluster


@pytest.mark.campaign
def test_a_ttl_that_only_the_server_refuses_is_a_mistake(program: Program, usual_etcd: EtcdCluster) -> None:
    url = usual_etcd.url("locks")
    with fencelock.connect(url) as source:
        source.install()
    words = ("verify", "--source", url, "--guard", usual_etcd.url("data"))
    done = program(*words, "--ttl", "1", "--duration", "1")
    assert (done.returncode, done.stdout) == (64, "")
    assert "--ttl 1 cannot be had: " in done.stderr
    assert "ask for 2 s" in done.stderr
    assert "verify_" not in usual_etcd.ctl("get", "--prefix", "--keys-only", "data")
    done = program(*words, "--duration", "1")
    assert done.returncode in {CLEAN, NOT_ENOUGH}, done.stderr


@pytest.mark.campaign
def test_zookeeper_stands(program: Program, zookeeper: ZooKeeperServer) -> None:
    base = fresh_base()
    data = zookeeper.url(f"{base}-data")
    check(program, zookeeper.url(base), data, SHORT_SESSIONS)
    client = zookeeper.client()
    try:
        assert client.get_children(f"{base}-data") == [".fencelock"]
    finally:
        client.stop()
        client.close()
