"""What only MySQL has around a source: replicas, servers that take no writes, its own TLS settings."""

from collections.abc import Iterator

import pytest

import fencelock
from fencelock import SourceUnavailableError
from fencelock.stores.mysql.source.store import MySQLSource
from fencelock_lab.servers.mariadb import MariaDBFleet, MariaDBServer
from tests.sql.clients import PublicSource, SqlClient
from tests.sql.marks import kinds
from tests.sql.mysql.fix_tls import TlsServer
from tests.sql.waiters import Waiter, renewed
from tests.support.helpers import wait_until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_stray_threads"), pytest.mark.server_wide]


# --- several servers ------------------------------------------------------------------------------
def _follow(primary: MariaDBServer, replica: MariaDBServer) -> None:
    """Have one server follow another one, from its beginning."""
    primary.rows("create or replace user follower identified by 'follow'")
    primary.rows("grant replication slave on *.* to follower")
    replica.rows(
        f"change master to master_host='127.0.0.1', master_port={primary.port}, master_user='follower', "
        "master_password='follow', master_use_gtid=slave_pos"
    )
    replica.rows("start slave")


@pytest.fixture
def pair(mysql_fleet: MariaDBFleet) -> Iterator[tuple[MariaDBServer, MariaDBServer]]:
    """Yield a primary that writes a binary log, and a replica that follows it."""
    primary, replica = mysql_fleet.new_server(), mysql_fleet.new_server()
    for number, server in enumerate((primary, replica), 1):
        server.settings |= {"log_bin": "on", "sync_binlog": 1, "server_id": number, "binlog_format": "ROW"}
    replica.settings["read_only"] = 1
    with primary, replica:
        _follow(primary, replica)
        primary.rows("create database shop")
        MySQLSource(primary.url(database="shop")).install()
        yield primary, replica


def _has_caught_up(primary: MariaDBServer, replica: MariaDBServer) -> bool:
    return bool(replica.value("select @@gtid_slave_pos") == primary.value("select @@gtid_binlog_pos"))


@pytest.mark.usefixtures("early_beats")
def test_a_lease_fails_over_to_a_replica_that_has_it(pair: tuple[MariaDBServer, MariaDBServer]) -> None:
    primary, replica = pair
    losses: list[str] = []
    url = f"mysql://root@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/shop"
    with fencelock.connect(url) as source:
        lease = source.lock("lock", ttl=30.0, on_lost=losses.append).acquire()
        assert lease is not None
        waiter = Waiter(source)
        wait_until(waiter.is_asleep)
        wait_until(lambda: _has_caught_up(primary, replica))
        primary.kill()
        with pytest.raises(SourceUnavailableError, match=r"refused.*; 127.0.0.1:\d+ takes no writes"):
            fencelock.connect(url).describe()
        replica.rows("stop slave")
        replica.rows("set global read_only = off")
        renewed(lease)
        assert losses == []
        lease.release()
        waiter.join(30)
        assert waiter.token is not None
        assert waiter.token > lease.token


@kinds
def test_a_read_only_server_grants_nothing_though_the_routines_owner_might_write(
    pair: tuple[MariaDBServer, MariaDBServer], kind: str
) -> None:
    """The owner of the routines is a superuser here, whom `read_only` does not stop."""
    primary, replica = pair
    wait_until(lambda: _has_caught_up(primary, replica))
    with PublicSource(kind, replica.url(database="shop")) as public:
        source = public.source
        for request in (
            lambda: source.lock("lock").acquire(),
            lambda: source.break_lock("lock", reason="a test"),
            lambda: source.raise_epoch(reason="a test"),
            source.purge,
        ):
            with pytest.raises(SourceUnavailableError, match=r"takes no writes .* it is a replica") as caught:
                public.do(request())
            assert caught.value.definite
        # It may be read.
        assert not public.do(source.info("lock")).is_held
        assert public.do(source.describe()).epoch == 1
    assert replica.rows("select * from shop.fencelock_lock") == []


def test_t7_a_failover_that_lost_grants_is_refused_by_clients_that_saw_them(
    pair: tuple[MariaDBServer, MariaDBServer],
) -> None:
    """The replica is behind when it is promoted: what the primary had acknowledged is gone."""
    primary, replica = pair
    url = f"mysql://root@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/shop"
    client = SqlClient(url)
    client.one_token()
    wait_until(lambda: _has_caught_up(primary, replica))
    replica.rows("stop slave")
    last = client.one_token()
    primary.kill()
    replica.rows("set global read_only = off")
    # Though its counter goes past what was seen.
    for number in range(3):
        with pytest.raises(fencelock.SourceError, match=rf"issued token {last} after {last}"):
            client.one_token(f"another{number}")
    # The operator's step.
    client.raise_epoch()
    assert client.one_token() > 2**40
    client.close()


# --- TLS ------------------------------------------------------------------------------------------
@kinds
def test_tls_is_verified_as_the_url_says(tls_mysql: TlsServer, kind: str) -> None:
    server = tls_mysql.server
    trusted = server.url(ssl_ca=str(tls_mysql.authority))
    MySQLSource(trusted).install()
    with PublicSource(kind, trusted) as public:
        lease = public.do(public.source.lock("lock").acquire())
        assert public.do(public.source.lock("lock").acquire(timeout=0.05)) is None
        public.do(lease.release())
        before = server.value("select variable_value from information_schema.global_status where "
                              "variable_name = 'ssl_finished_accepts'")  # fmt: skip
        assert int(before) > 0
        for _ in range(5):
            public.do(public.do(public.source.lock("lock").acquire()).release())
        after = server.value("select variable_value from information_schema.global_status where "
                             "variable_name = 'ssl_finished_accepts'")  # fmt: skip
        assert int(after) - int(before) <= 2, "its connections are kept"
    for query in ({"ssl_ca": str(tls_mysql.other_authority)}, {"ssl_mode": "VERIFY_CA"}):
        with (
            PublicSource(kind, server.url(**query)) as public,
            pytest.raises(SourceUnavailableError, match="certificate verify failed"),
        ):
            public.do(public.source.lock("lock").acquire())
    for mode in ("REQUIRED", "PREFERRED"):
        with PublicSource(kind, server.url(ssl_mode=mode)) as public:
            assert public.do(public.source.describe()).epoch == 1
