"""What only PostgreSQL has around a source: standbys, its own TLS settings, a pooler, a connection that listens."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import fencelock
from fencelock import SourceUnavailableError
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock_lab.servers.postgres import PostgresServer
from tests.sql.clients import PublicSource
from tests.sql.marks import kinds
from tests.sql.postgres.fix_copies import Copies, failover_url, promote, wait_until_replayed
from tests.sql.postgres.fix_pgbouncer import PgBouncer
from tests.sql.postgres.fix_postgres import Database, only
from tests.sql.postgres.fix_tls import TlsServer
from tests.sql.waiters import TTL, Waiter, renewed
from tests.support.helpers import wait_until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_stray_threads"), only("18")]


@pytest.fixture
def own_url(own_postgres: PostgresServer) -> str:
    PostgresSource(own_postgres.url()).install()
    return own_postgres.url()


# --- several servers ------------------------------------------------------------------------------
@pytest.mark.usefixtures("early_beats")
def test_a_lease_fails_over_to_a_standby_that_has_it(
    own_postgres: PostgresServer, own_url: str, copies: Copies
) -> None:
    standby = copies.standby_of(own_postgres)
    losses: list[str] = []
    with fencelock.connect(failover_url([own_postgres, standby])) as source:
        lease = source.lock("lock", ttl=30.0, on_lost=losses.append).acquire()
        assert lease is not None
        waiter = Waiter(source)
        wait_until(waiter.is_asleep)
        wait_until_replayed(own_postgres, standby)
        own_postgres.kill()
        promote(standby)
        renewed(lease)
        assert losses == []
        lease.release()
        waiter.join(30)
        assert waiter.token is not None
        assert waiter.token > lease.token


def test_a_standby_alone_is_refused_with_the_reason(own_postgres: PostgresServer, own_url: str, copies: Copies) -> None:
    standby = copies.standby_of(own_postgres)
    with fencelock.connect(standby.url()) as source:
        for request in (
            source.lock("lock").acquire,
            lambda: source.break_lock("lock", reason="a test"),
            lambda: source.raise_epoch(reason="a test"),
            source.purge,
        ):
            with pytest.raises(SourceUnavailableError, match=r"takes no writes .* it is a standby") as caught:
                request()
            assert caught.value.definite
        # It may be read.
        assert not source.info("lock").is_held
        assert source.describe().epoch == 1
        assert "standby" in {finding.code for finding in source.examine()}
    with (
        fencelock.connect(failover_url([standby])) as source,
        pytest.raises(SourceUnavailableError, match=r"cannot be reached: .*read-only"),
    ):
        source.lock("lock").acquire()


# --- TLS ------------------------------------------------------------------------------------------
@kinds
def test_tls_is_verified_as_the_url_says(tls_postgres: TlsServer, postgres_kind: str, kind: str) -> None:
    server = tls_postgres.server
    trusted = server.url(sslmode="verify-full", sslrootcert=str(tls_postgres.authority))
    PostgresSource(trusted).install()
    with PublicSource(kind, trusted) as public:
        lease = public.do(public.source.lock("lock").acquire())
        assert public.do(public.source.lock("lock").acquire(timeout=0.05)) is None
        encrypted = server.rows(
            "select ssl from pg_stat_ssl join pg_stat_activity using (pid) where usename = 'postgres'"
        )
        assert (True,) in encrypted
        public.do(lease.release())
        before = server.rows("select pid from pg_stat_activity where application_name = 'fencelock'")
        for _ in range(5):
            public.do(public.do(public.source.lock("lock").acquire()).release())
        after = server.rows("select pid from pg_stat_activity where application_name = 'fencelock'")
        # The one that listens may have closed meanwhile.
        assert after
        assert set(after) <= set(before), "its connections are kept"
    with (
        PublicSource(kind, server.url(sslmode="verify-full", sslrootcert=str(tls_postgres.other_authority))) as public,
        pytest.raises(SourceUnavailableError, match="certificate verify failed"),
    ):
        public.do(public.source.lock("lock").acquire())


# --- a pooler -------------------------------------------------------------------------------------
@kinds
def test_behind_a_transaction_pooler_waiters_look_for_themselves_and_a_warning_says_so(
    url: str, pgbouncer: PgBouncer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fencelock")
    with PublicSource(kind, pgbouncer.url(url)) as public, fencelock.connect(url) as direct:
        lock = public.source.lock("lock", ttl=TTL)
        for _ in range(3):
            public.do(public.do(lock.acquire()).release())
        for turn in range(2):
            lease = direct.lock("lock", ttl=TTL).acquire()
            assert lease is not None
            releasing = threading.Thread(target=release_when_waited_for, args=(direct, lease))
            releasing.start()
            mine = public.do(lock.acquire(timeout=30))
            releasing.join()
            assert mine.token > lease.token
            public.do(mine.release())
            assert turn >= 0
        assert public.do(lock.acquire(timeout=0)) is not None
    warnings = [record.getMessage() for record in caplog.records if "pooler" in record.getMessage()]
    assert len(warnings) == 1
    assert "waiters poll" in warnings[0]


def release_when_waited_for(source: fencelock.Source, lease: fencelock.Lease) -> None:
    wait_until(lambda: source.info(lease.lock).waiters)
    lease.release()


def test_behind_a_pooler_many_clients_share_a_few_backends(url: str, pgbouncer: PgBouncer) -> None:
    """There are more connections than the pooler has; what one prepares or sets does not disturb another."""
    pooled = pgbouncer.url(url)

    def work(number: int) -> list[int]:
        tokens = []
        with fencelock.connect(pooled) as source:
            for _ in range(5):
                with source.lock(f"lock{number % 2}", ttl=30.0) as lease:
                    tokens.append(lease.token)
            source.info("lock0")
            list(source.locks())
        return tokens

    with ThreadPoolExecutor(6) as threads:
        tokens = [token for told in threads.map(work, range(6)) for token in told]
    assert len(set(tokens)) == 30


def test_the_schema_is_made_through_a_pooler(database: Database, pgbouncer: PgBouncer) -> None:
    with fencelock.connect(pgbouncer.url(database.url())) as source:
        source.install()
        source.install()
        with source.lock("lock") as lease:
            assert lease.token == 1
        assert "pooler" in {finding.code for finding in source.examine()}


# --- the listening connection ---------------------------------------------------------------------
def listeners(database: Database) -> list[int]:
    statement = "select pid from pg_stat_activity where datname = current_database() and query like 'LISTEN%%'"
    return [pid for (pid,) in database.rows(statement)]


def test_fifty_waiters_go_on_when_their_listening_connection_is_ended(url: str, database: Database) -> None:
    """Without a new one, each would look when the one in front may be dead: after minutes."""
    with fencelock.connect(url) as source:
        holder = source.lock("lock", ttl=TTL)
        holder.acquire()
        waiters = []
        for number in range(50):
            waiters.append(Waiter(source, f"waiter{number}"))
            wait_until(lambda: len(source.info("lock").waiters) == len(waiters))
        wait_until(lambda: len(listeners(database)) == 1)
        terminate(database)
        holder.release()
        wait_until(lambda: waiters[10].token is not None)
        terminate(database)
        for waiter in waiters:
            waiter.join(30)
        tokens = [waiter.token for waiter in waiters]
        assert None not in tokens
        assert tokens == sorted(tokens), "first in, first out"
        assert len(listeners(database)) <= 1, "one connection for all of them, if the last of them still needed it"


def terminate(database: Database) -> None:
    for pid in listeners(database):
        assert database.value("select pg_terminate_backend(%s, 10000)", pid)


def test_one_listening_connection_serves_all_locks_and_closes_after_the_last_waiter(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencelock.stores.postgres.source.wakeup.LINGER_S", 0.2)
    with fencelock.connect(url) as source, ThreadPoolExecutor(8) as threads:
        leases = [source.lock(f"lock{number}", ttl=TTL).acquire() for number in range(8)]
        waiting = [threads.submit(source.lock(f"lock{number}", ttl=TTL).acquire) for number in range(8)]
        wait_until(lambda: all(source.info(f"lock{number}").waiters for number in range(8)))
        wait_until(lambda: len(listeners(database)) == 1)
        for lease in leases:
            assert lease is not None
            lease.release()
        for each in waiting:
            lease = each.result(30)
            assert lease is not None
            lease.release()
        wait_until(lambda: not listeners(database))
        # The next waiter opens another.
        with source.lock("lock0", ttl=TTL):
            waiter = threads.submit(source.lock("lock0", ttl=TTL).acquire)
            wait_until(lambda: source.info("lock0").waiters)
            wait_until(lambda: len(listeners(database)) == 1)
        assert waiter.result(30) is not None
