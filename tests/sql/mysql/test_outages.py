"""What goes on around a MySQL source: restarts, cuts, freezes, failover, a full server, TLS, read-only servers, loops.

Leases go on where the server does; waiters go on waiting; and what cannot be had is an error that says why.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pymysql
import pytest

import fencelock
import fencelock.aio
from fencelock import OutcomeUnknownError, SourceUnavailableError
from fencelock._drivers import aio as aio_driver
from fencelock._drivers import sync as sync_driver
from fencelock.protocol import source_requests as ask
from fencelock.stores.mysql.source.store import MySQLSource
from fencelock_lab.servers.mariadb import MariaDBFleet, MariaDBServer
from tests.helpers import wait_until, wait_until_async
from tests.sql.mysql.clients import Client
from tests.sql.mysql.fix_mysql import Database
from tests.sql.mysql.fix_tls import TlsServer
from tests.sql.mysql.proxy import MySQLProxy
from tests.sql.mysql.test_claims import ROWS_WAITED_FOR
from tests.sql.postgres.clients import Voice
from tests.sql.postgres.test_outages import TTL, Waiter, obtained, renewed, sleeping

pytestmark = pytest.mark.process

kinds = pytest.mark.parametrize("kind", ["sync", "async"])


@pytest.fixture
def own_url(own_mysql: MariaDBServer) -> str:
    own_mysql.rows("create database shop")
    url = own_mysql.url(database="shop")
    MySQLSource(url).install()
    return url


# --- the server restarts --------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_lease_and_a_waiter_outlive_a_restart_of_the_server(own_mysql: MariaDBServer, own_url: str, how: str) -> None:
    losses: list[str] = []
    with fencelock.connect(own_url) as source, fencelock.connect(own_url) as other:
        lease = source.lock("lock", ttl=9.0, on_lost=losses.append).acquire()
        assert lease is not None
        waiter = Waiter(other)
        wait_until(lambda: source.info("lock").waiters)
        getattr(own_mysql, how)()
        renewed(lease)
        assert lease.is_valid
        assert losses == []
        assert waiter.token is None
        assert lease.release()
        waiter.join(30)
        assert waiter.token is not None
        assert waiter.token > lease.token


def test_a_waiter_outlasts_a_server_that_is_away_for_a_while(own_mysql: MariaDBServer, own_url: str) -> None:
    """It is told at once that the source cannot be had, tries again, and leaves nothing of the first attempt behind."""
    with fencelock.connect(own_url) as source:
        lock = source.lock("lock", ttl=TTL)
        lock.acquire()
        own_mysql.stop()
        with pytest.raises(SourceUnavailableError, match=r"cannot be reached: .*refused") as caught:
            source.lock("lock").acquire()
        assert caught.value.definite
        own_mysql.start()
        lock.release()
        with lock:
            pass
        assert not source.info("lock").waiters


# --- the network ----------------------------------------------------------------------------------
def test_cut_connections_are_made_anew(mysql_url: str, mysql_proxy: MySQLProxy) -> None:
    with fencelock.connect(mysql_proxy.url(mysql_url)) as source, fencelock.connect(mysql_url) as direct:
        lease = direct.lock("lock", ttl=TTL).acquire()
        held = source.lock("held", ttl=3.0).acquire()
        assert lease is not None
        assert held is not None
        waiter = Waiter(source)
        for _ in range(3):
            wait_until(lambda: direct.info("lock").waiters)
            mysql_proxy.cut()
            renewed(held)
        lease.release()
        waiter.join(30)
        assert waiter.token is not None
        assert held.is_valid


@kinds
def test_a_connection_that_the_server_killed_is_made_anew(mysql_url: str, mysql_database: Database, kind: str) -> None:
    with Voice(kind, mysql_url) as voice:
        statement = "select id from information_schema.processlist where db = %s and id <> connection_id()"
        for _ in range(3):
            lease = voice.do(voice.source.lock("lock", ttl=TTL).acquire())
            for (number,) in mysql_database.rows(statement, mysql_database.name):
                with suppress(pymysql.OperationalError):
                    mysql_database.rows(f"kill {number}")
            wait_until(lambda: not mysql_database.rows(statement, mysql_database.name))
            assert voice.do(lease.release())


@kinds
def test_a_frozen_server_is_noticed_by_the_end_of_patience(
    own_mysql: MariaDBServer, own_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_driver, "REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setattr(aio_driver, "REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setattr(sync_driver.SyncDriver.__init__, "__kwdefaults__", {
        **sync_driver.SyncDriver.__init__.__kwdefaults__, "request_timeout_s": 0.3,
    })  # fmt: skip
    with Voice(kind, own_url) as voice:
        lock = voice.source.lock("lock", ttl=TTL)
        voice.do(voice.do(lock.acquire()).release())
        own_mysql.freeze()
        try:
            with pytest.raises((SourceUnavailableError, OutcomeUnknownError)):
                voice.do(lock.acquire())
        finally:
            own_mysql.thaw()
        # What it may have got meanwhile is given back by the keeper.
        lease = voice.do(lock.acquire(timeout=30))
        assert lease is not None
        voice.do(lease.release())


def test_a_statement_that_the_server_broke_off_may_have_happened(mysql_url: str, mysql_database: Database) -> None:
    """KILL QUERY may come between a routine's commit and its answer: nobody can tell."""
    client = Client(mysql_url)
    client.one_token()
    assert client.connection._native is not None
    number = client.connection._native.thread_id()
    errors: list[BaseException] = []

    def ask_for_it() -> None:
        try:
            client.acquire("lock", "claim")
        except OutcomeUnknownError as error:
            errors.append(error)

    with mysql_database.connect(autocommit=False) as side, side.cursor() as cursor:
        cursor.execute("select 1 from fencelock_lock where name = 'lock' for update")
        thread = threading.Thread(target=ask_for_it)
        thread.start()
        wait_until(lambda: int(mysql_database.value(ROWS_WAITED_FOR)))
        mysql_database.rows(f"kill query {number}")
        thread.join(30)
    assert len(errors) == 1
    client.close()
    assert Client(mysql_url).ask(ask.Inspect("lock")).token == 1


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


def test_a_lease_fails_over_to_a_replica_that_has_it(pair: tuple[MariaDBServer, MariaDBServer]) -> None:
    primary, replica = pair
    losses: list[str] = []
    url = f"mysql://root@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/shop"
    with fencelock.connect(url) as source:
        lease = source.lock("lock", ttl=9.0, on_lost=losses.append).acquire()
        assert lease is not None
        waiter = Waiter(source)
        wait_until(lambda: source.info("lock").waiters)
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
    """Whoever owns the routines is a superuser here, whom `read_only` does not stop."""
    primary, replica = pair
    wait_until(lambda: _has_caught_up(primary, replica))
    with Voice(kind, replica.url(database="shop")) as voice:
        source = voice.source
        for request in (
            lambda: source.lock("lock").acquire(),
            lambda: source.break_lock("lock", reason="a test"),
            lambda: source.raise_epoch(reason="a test"),
            source.purge,
        ):
            with pytest.raises(SourceUnavailableError, match=r"takes no writes .* it is a replica") as caught:
                voice.do(request())
            assert caught.value.definite
        # It may be read.
        assert not voice.do(source.info("lock")).is_held
        assert voice.do(source.describe()).epoch == 1
    assert replica.rows("select * from shop.fencelock_lock") == []


def test_t7_a_failover_that_lost_grants_is_refused_by_whoever_saw_them(
    pair: tuple[MariaDBServer, MariaDBServer],
) -> None:
    """The replica is behind when it is promoted: what the primary had acknowledged is gone."""
    primary, replica = pair
    url = f"mysql://root@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/shop"
    client = Client(url)
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


# --- a full server, TLS ---------------------------------------------------------------------------
@kinds
def test_a_server_with_no_connection_left_says_so(own_mysql: MariaDBServer, own_url: str, kind: str) -> None:
    own_mysql.settings["max_connections"] = 10
    own_mysql.restart()
    own_mysql.rows("create or replace user worker")
    own_mysql.rows("grant execute on shop.* to worker")
    with Voice(kind, own_url.replace("root@", "worker@")) as voice, ExitStack() as others:
        with suppress(pymysql.OperationalError):
            for _ in itertools.repeat(None, 20):
                others.enter_context(own_mysql.connect(user="worker", database="shop"))
        with pytest.raises(SourceUnavailableError, match="Too many connections") as caught:
            voice.do(voice.source.lock("lock").acquire())
        assert caught.value.definite
        others.close()
        wait_until(lambda: len(own_mysql.rows("show processlist")) < 5)
        voice.do(voice.do(voice.source.lock("lock").acquire()).release())


@kinds
def test_tls_is_verified_as_the_url_says(tls_mysql: TlsServer, kind: str) -> None:
    server = tls_mysql.server
    trusted = server.url(ssl_ca=str(tls_mysql.authority))
    MySQLSource(trusted).install()
    with Voice(kind, trusted) as voice:
        lease = voice.do(voice.source.lock("lock").acquire())
        assert voice.do(voice.source.lock("lock").acquire(timeout=0.05)) is None
        voice.do(lease.release())
        before = server.value("select variable_value from information_schema.global_status where "
                              "variable_name = 'ssl_finished_accepts'")  # fmt: skip
        assert int(before) > 0
        for _ in range(5):
            voice.do(voice.do(voice.source.lock("lock").acquire()).release())
        after = server.value("select variable_value from information_schema.global_status where "
                             "variable_name = 'ssl_finished_accepts'")  # fmt: skip
        assert int(after) - int(before) <= 2, "its connections are kept"
    for query in ({"ssl_ca": str(tls_mysql.other_authority)}, {"ssl_mode": "VERIFY_CA"}):
        with (
            Voice(kind, server.url(**query)) as voice,
            pytest.raises(SourceUnavailableError, match="certificate verify failed"),
        ):
            voice.do(voice.source.lock("lock").acquire())
    for mode in ("REQUIRED", "PREFERRED"):
        with Voice(kind, server.url(ssl_mode=mode)) as voice:
            assert voice.do(voice.source.describe()).epoch == 1


# --- asyncio --------------------------------------------------------------------------------------
def test_several_loops_in_one_process_share_a_source(mysql_url: str) -> None:
    source = fencelock.aio.connect(mysql_url)
    tokens: list[int] = []
    inside = []

    async def work() -> None:
        for _ in range(5):
            async with source.lock("lock", ttl=30.0) as lease:
                inside.append(lease.token)
                assert len(inside) == 1
                await asyncio.sleep(0)
                tokens.append(inside.pop())

    threads = [threading.Thread(target=lambda: asyncio.run(_two_tasks(work))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(tokens) == 30
    assert tokens == sorted(set(tokens))
    asyncio.run(source.close())


async def _two_tasks(work: Callable[[], Any]) -> None:
    await asyncio.gather(work(), work())


@pytest.mark.parametrize("is_held", [False, True], ids=["free", "waiting"])
@pytest.mark.parametrize("side", ["request", "reply"])
def test_h5_a_cancelled_acquire_leaves_nothing_behind_whenever_it_is_cancelled(
    mysql_url: str, mysql_proxy: MySQLProxy, is_held: bool, side: str
) -> None:
    """With each of its requests on the way to the server, or each reply on the way back, or asleep in the queue."""
    referee = Client(mysql_url)

    async def cancel(nth: int) -> None:
        async with fencelock.aio.connect(mysql_proxy.url(mysql_url)) as source:
            fault = mysql_proxy.hold_request(nth) if side == "request" else mysql_proxy.hold_reply(nth)
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
        return task.done() or (is_held and bool(referee.ask(ask.Inspect("lock")).waiters) and sleeping(mysql_proxy))

    for nth in range(1, 6):
        claim = obtained(referee)
        if not is_held:
            referee.release("lock", claim)
        asyncio.run(cancel(nth))
        wait_until(lambda: not referee.ask(ask.Inspect("lock")).waiters)
        assert referee.release("lock", claim) == is_held
    # Nobody but the keeper can have given it back each time.
    obtained(referee)
    referee.close()


# --- threads that meet ----------------------------------------------------------------------------
@pytest.mark.parametrize("renewed_too", [(), ("lock2", "lock0", "lock1")], ids=["its own", "others' too"])
def test_everything_at_once_on_few_locks_does_no_harm(
    mysql_url: str, mysql_database: Database, renewed_too: tuple[str, ...]
) -> None:
    """The server counts the deadlocks that it had to end: none, unless batches name locks that others hold."""
    shall_end = threading.Event()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            client = Client(mysql_url)
            for turn in itertools.count():
                lock = f"lock{(number + turn) % 3}"
                claim = fencelock.model.draw_claim()
                client.acquire(lock, claim, may_wait=turn % 2 == 0)
                client.ask(ask.Renew(tuple((each, claim) for each in renewed_too or (lock,))))
                client.ask(ask.Poll(lock, claim))
                if turn % 7 == 3:
                    client.ask(ask.Purge())
                if turn % 31 == 5:
                    client.raise_epoch()
                if turn % 11 == 5:
                    client.ask(ask.Break(lock, fencelock.model.draw_claim(), "tester", "a test"))
                client.release(lock, claim)
                if shall_end.is_set():
                    break
            client.close()
        except BaseException as error:
            errors.append(error)

    before = _deadlocks(mysql_database)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: errors or (mysql_database.value("select token from fencelock_source") % 2**40 > 10 and
               mysql_database.value("select epoch from fencelock_source") > 12))  # fmt: skip
    shall_end.set()
    for thread in threads:
        thread.join(30)
    assert not [error for error in errors if not isinstance(error, fencelock.SourceError)], errors
    assert not errors, errors
    assert renewed_too or _deadlocks(mysql_database) == before


def test_batches_in_any_order_never_wait_for_each_other(mysql_url: str, mysql_database: Database) -> None:
    leases = [(f"lock{number}", f"claim{number}") for number in range(50)]
    clients = [Client(mysql_url) for _ in range(2)]
    for lease in leases:
        clients[0].token(*lease)
    before = _deadlocks(mysql_database)
    lost: list[str] = []

    def renew(client: Client, batch: list[tuple[str, str]]) -> None:
        for _ in range(100):
            lost.extend(client.ask(ask.Renew(tuple(batch))).lost)

    batches = leases, leases[::-1]
    threads = [threading.Thread(target=renew, args=each) for each in zip(clients, batches, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert lost == []
    assert _deadlocks(mysql_database) == before
    for client in clients:
        client.close()


def _deadlocks(database: Database) -> int:
    statement = "select variable_value from information_schema.global_status where variable_name = 'innodb_deadlocks'"
    return int(database.value(statement))


@pytest.fixture(autouse=True)
def no_stray_threads() -> Iterator[None]:
    """Every waiter's thread ends with its test."""
    before = set(threading.enumerate())
    yield
    stray = [thread for thread in set(threading.enumerate()) - before if isinstance(thread, Waiter)]
    wait_until(lambda: not any(thread.is_alive() for thread in stray))
