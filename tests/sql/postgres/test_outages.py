"""What goes on around a PostgreSQL source: restarts, cuts, freezes, failover, a full server, TLS, a pooler, a standby.

Leases go on where the server does; waiters go on waiting; and what cannot be had is an error that says why.
"""

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest

import fencelock
import fencelock.aio
from fencelock import OutcomeUnknownError, SourceUnavailableError
from fencelock._drivers import aio as aio_driver
from fencelock._drivers import sync as sync_driver
from fencelock.protocol import source_requests as ask
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock_lab.servers.postgres import PostgresServer
from tests.helpers import wait_until, wait_until_async
from tests.sql.postgres.clients import Client, Voice
from tests.sql.postgres.fix_copies import Copies, failover_url, promote, wait_until_replayed
from tests.sql.postgres.fix_pgbouncer import PgBouncer
from tests.sql.postgres.fix_postgres import Database, only
from tests.sql.postgres.fix_tls import TlsServer
from tests.sql.postgres.proxy import Proxy

pytestmark = [pytest.mark.process, only("18")]

TTL = 600.0
"""What is free again before that was given back."""

kinds = pytest.mark.parametrize("kind", ["sync", "async"])


@pytest.fixture
def url(database: Database) -> str:
    PostgresSource(database.url()).install()
    return database.url()


@pytest.fixture
def own_url(own_postgres: PostgresServer) -> str:
    PostgresSource(own_postgres.url()).install()
    return own_postgres.url()


class Waiter(threading.Thread):
    """A thread that waits for a lock, whatever becomes of the source meanwhile, and gives the lock back at once."""

    def __init__(self, source: fencelock.Source, name: str = "waiter") -> None:
        super().__init__(daemon=True)
        self._lock = source.lock("lock", ttl=TTL, holder=name)
        self.token: int | None = None
        self.start()

    def run(self) -> None:
        with self._lock as lease:
            self.token = lease.token


def renewed(lease: fencelock.Lease) -> None:
    """Wait until a lease has been renewed once more."""
    before = lease.deadline_ms
    wait_until(lambda: lease.deadline_ms > before)


# --- the server restarts --------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["fast", "crash"])
def test_a_lease_and_a_waiter_outlive_a_restart_of_the_server(
    own_postgres: PostgresServer, own_url: str, how: str
) -> None:
    losses: list[str] = []
    with fencelock.connect(own_url) as source, fencelock.connect(own_url) as other:
        lease = source.lock("lock", ttl=9.0, on_lost=losses.append).acquire()
        assert lease is not None
        waiter = Waiter(other)
        wait_until(lambda: source.info("lock").waiters)
        own_postgres.rows("select pg_logical_emit_message(true, 'test', 'flushed')")
        if how == "fast":
            own_postgres.restart()
        else:
            own_postgres.crash()
        renewed(lease)
        assert lease.is_valid
        assert losses == []
        assert waiter.token is None
        assert lease.release()
        waiter.join(30)
        assert waiter.token is not None
        assert waiter.token > lease.token


def test_whoever_comes_while_the_server_is_away_is_told_at_once(own_postgres: PostgresServer, own_url: str) -> None:
    """And leaves nothing of the attempt behind."""
    with fencelock.connect(own_url) as source:
        lock = source.lock("lock", ttl=TTL)
        lock.acquire()
        own_postgres.stop()
        with pytest.raises(SourceUnavailableError, match=r"cannot be reached: .*refused") as caught:
            source.lock("lock").acquire()
        assert caught.value.definite
        own_postgres.start()
        lock.release()
        with lock:
            pass
        assert not source.info("lock").waiters


# --- the network ----------------------------------------------------------------------------------
def test_cut_connections_are_made_anew(url: str, proxy: Proxy) -> None:
    with fencelock.connect(proxy.url(url)) as source, fencelock.connect(url) as direct:
        lease = direct.lock("lock", ttl=TTL).acquire()
        held = source.lock("held", ttl=3.0).acquire()
        assert lease is not None
        assert held is not None
        waiter = Waiter(source)
        for _ in range(3):
            wait_until(lambda: direct.info("lock").waiters)
            proxy.cut()
            renewed(held)
        lease.release()
        waiter.join(30)
        assert waiter.token is not None
        assert held.is_valid


@kinds
def test_a_frozen_server_is_noticed_by_the_end_of_patience(
    own_postgres: PostgresServer, own_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_driver, "REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setattr(aio_driver, "REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setattr(sync_driver.SyncDriver.__init__, "__kwdefaults__", {
        **sync_driver.SyncDriver.__init__.__kwdefaults__, "request_timeout_s": 0.3,
    })  # fmt: skip
    with Voice(kind, own_url) as voice:
        lock = voice.source.lock("lock", ttl=TTL)
        voice.do(voice.do(lock.acquire()).release())
        own_postgres.freeze()
        try:
            with pytest.raises((SourceUnavailableError, OutcomeUnknownError)):
                voice.do(lock.acquire())
        finally:
            own_postgres.thaw()
        # What it may have got meanwhile is given back by the keeper.
        lease = voice.do(lock.acquire(timeout=30))
        assert lease is not None
        voice.do(lease.release())


# --- several servers ------------------------------------------------------------------------------
def test_a_lease_fails_over_to_a_standby_that_has_it(
    own_postgres: PostgresServer, own_url: str, copies: Copies
) -> None:
    standby = copies.standby_of(own_postgres)
    losses: list[str] = []
    with fencelock.connect(failover_url([own_postgres, standby])) as source:
        lease = source.lock("lock", ttl=9.0, on_lost=losses.append).acquire()
        assert lease is not None
        waiter = Waiter(source)
        wait_until(lambda: source.info("lock").waiters)
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


# --- a full server, TLS, roles --------------------------------------------------------------------
@kinds
def test_a_server_with_no_connection_left_says_so(own_postgres: PostgresServer, own_url: str, kind: str) -> None:
    own_postgres.settings["max_connections"] = 12
    own_postgres.restart()
    with Voice(kind, own_url) as voice, ExitStack() as others:
        with suppress(psycopg.OperationalError):
            for _ in itertools.repeat(None, 20):
                others.enter_context(own_postgres.admin())
        with pytest.raises(SourceUnavailableError, match="too many clients") as caught:
            voice.do(voice.source.lock("lock").acquire())
        assert caught.value.definite
        others.close()
        wait_until(lambda: can_connect(own_postgres))
        voice.do(voice.do(voice.source.lock("lock").acquire()).release())


def can_connect(server: PostgresServer) -> bool:
    with suppress(psycopg.OperationalError), server.admin():
        return True
    return False


@kinds
def test_tls_is_verified_as_the_url_says(tls_postgres: TlsServer, postgres_kind: str, kind: str) -> None:
    server = tls_postgres.server
    trusted = server.url(sslmode="verify-full", sslrootcert=str(tls_postgres.authority))
    PostgresSource(trusted).install()
    with Voice(kind, trusted) as voice:
        lease = voice.do(voice.source.lock("lock").acquire())
        assert voice.do(voice.source.lock("lock").acquire(timeout=0.05)) is None
        encrypted = server.rows(
            "select ssl from pg_stat_ssl join pg_stat_activity using (pid) where usename = 'postgres'"
        )
        assert (True,) in encrypted
        voice.do(lease.release())
        before = server.rows("select pid from pg_stat_activity where application_name = 'fencelock'")
        for _ in range(5):
            voice.do(voice.do(voice.source.lock("lock").acquire()).release())
        assert server.rows("select pid from pg_stat_activity where application_name = 'fencelock'") == before
    with (
        Voice(kind, server.url(sslmode="verify-full", sslrootcert=str(tls_postgres.other_authority))) as voice,
        pytest.raises(SourceUnavailableError, match="certificate verify failed"),
    ):
        voice.do(voice.source.lock("lock").acquire())


# --- a pooler -------------------------------------------------------------------------------------
@kinds
def test_behind_a_transaction_pooler_waiters_look_for_themselves_and_a_warning_says_so(
    url: str, pgbouncer: PgBouncer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fencelock")
    with Voice(kind, pgbouncer.url(url)) as voice, fencelock.connect(url) as direct:
        lock = voice.source.lock("lock", ttl=TTL)
        for _ in range(3):
            voice.do(voice.do(lock.acquire()).release())
        for turn in range(2):
            lease = direct.lock("lock", ttl=TTL).acquire()
            assert lease is not None
            releasing = threading.Thread(target=release_when_waited_for, args=(direct, lease))
            releasing.start()
            mine = voice.do(lock.acquire(timeout=30))
            releasing.join()
            assert mine.token > lease.token
            voice.do(mine.release())
            assert turn >= 0
        assert voice.do(lock.acquire(timeout=0)) is not None
    warnings = [record.getMessage() for record in caplog.records if "pooler" in record.getMessage()]
    assert len(warnings) == 1
    assert "waiters poll" in warnings[0]


def release_when_waited_for(source: fencelock.Source, lease: fencelock.Lease) -> None:
    wait_until(lambda: source.info(lease.lock).waiters)
    lease.release()


def test_behind_a_pooler_many_clients_share_a_few_backends(url: str, pgbouncer: PgBouncer) -> None:
    """More connections than the pooler has; whatever they prepare, or set, is on nobody's way."""
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
        assert len(listeners(database)) == 1, "one connection for all of them"


def terminate(database: Database) -> None:
    for pid in listeners(database):
        assert database.value("select pg_terminate_backend(%s, 10000)", pid)


def test_one_listening_connection_serves_all_locks_and_closes_when_nobody_waits(
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


# --- asyncio --------------------------------------------------------------------------------------
@pytest.mark.reduced
def test_several_loops_in_one_process_share_a_source(url: str) -> None:
    source = fencelock.aio.connect(url)
    tokens: list[int] = []
    inside = []

    async def work() -> None:
        for _ in range(5):
            async with source.lock("lock", ttl=30.0) as lease:
                inside.append(lease.token)
                assert len(inside) == 1
                await asyncio.sleep(0)
                tokens.append(inside.pop())

    threads = [threading.Thread(target=lambda: asyncio.run(two_tasks(work))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(tokens) == 30
    assert tokens == sorted(set(tokens))
    asyncio.run(source.close())


async def two_tasks(work: Callable[[], Any]) -> None:
    await asyncio.gather(work(), work())


@pytest.mark.reduced
@pytest.mark.parametrize("is_held", [False, True], ids=["free", "waiting"])
@pytest.mark.parametrize("side", ["request", "reply"])
def test_h5_a_cancelled_acquire_leaves_nothing_behind_whenever_it_is_cancelled(
    url: str, proxy: Proxy, is_held: bool, side: str
) -> None:
    """With each of its requests on the way to the server, or each reply on the way back, or asleep in the queue."""
    referee = Client(url)

    async def cancel(nth: int) -> None:
        async with fencelock.aio.connect(proxy.url(url)) as source:
            fault = proxy.hold_request(nth) if side == "request" else proxy.hold_reply(nth)
            task = asyncio.create_task(source.lock("lock", ttl=TTL).acquire())
            await wait_until_async(lambda: fault.has_happened or is_settled(task))
            task.cancel()
            await asyncio.wait([task], timeout=20)
            assert task.done(), "a cancelled task ends"
            if not task.cancelled():
                await task.result().release()
            fault.release()

    def is_settled(task: asyncio.Task[Any]) -> bool:
        """Tell whether there is no further request: it is done, or sleeps in the queue."""
        return task.done() or (is_held and bool(referee.ask(ask.Inspect("lock")).waiters) and sleeping(proxy))

    for nth in range(1, 8):
        claim = obtained(referee)
        if not is_held:
            referee.release("lock", claim)
        asyncio.run(cancel(nth))
        wait_until(lambda: not referee.ask(ask.Inspect("lock")).waiters)
        assert referee.release("lock", claim) == is_held
    # Nobody but the keeper can have given it back each time.
    obtained(referee)
    referee.close()


def obtained(client: Client) -> str:
    """Return a claim that has the lock, which may be on its way back."""
    claims: list[str] = []

    def take() -> bool:
        claims.append(fencelock.model.draw_claim())
        return isinstance(client.acquire("lock", claims[-1]), ask.Granted)

    wait_until(take)
    return claims[-1]


def sleeping(proxy: Proxy) -> bool:
    """Tell whether every request that came has its reply."""
    counts = proxy.counts
    return counts["requests"] == counts["round trips"]


@pytest.fixture(autouse=True)
def no_stray_threads() -> Iterator[None]:
    """Every waiter's thread ends with its test."""
    before = set(threading.enumerate())
    yield
    stray = [thread for thread in set(threading.enumerate()) - before if isinstance(thread, Waiter)]
    wait_until(lambda: not any(thread.is_alive() for thread in stray))
