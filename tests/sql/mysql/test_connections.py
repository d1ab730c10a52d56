"""Connections to a MySQL server: what each begins with, how it ends, and what a forked child makes of its parent's."""

import asyncio
import os
import time

import pytest

from fencelock.errors import ConfigError, MissingDependencyError, SourceUnavailableError
from fencelock.stores.mysql.connection.client import FORKS, AsyncMySQLConnection, MySQLConnection, is_alive
from fencelock.stores.mysql.connection.opening import open_async_connection, open_connection
from fencelock.stores.mysql.connection.url import parse_url
from fencelock_lab.servers.mariadb import MariaDBServer
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide

SETTINGS = (
    "select @@tx_isolation, @@time_zone, @@autocommit, @@character_set_client, @@completion_type, "
    "@@sql_mode, @@sql_safe_updates, @@innodb_lock_wait_timeout"
)
MODES = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
WANTED = ("READ-COMMITTED", "+00:00", 1, "utf8mb4", "NO_CHAIN", MODES, 0, 4)


def test_each_connection_begins_with_the_settings_that_decisions_need(mysql_server: MariaDBServer) -> None:
    place = parse_url(mysql_server.url())
    native = open_connection(place, 5.0)
    with native.cursor() as cursor:
        cursor.execute(SETTINGS)
        assert cursor.fetchall() == (WANTED,)
    FORKS.close(native)

    async def look() -> object:
        other = await open_async_connection(place, 5.0)
        async with other.cursor() as cursor:
            await cursor.execute(SETTINGS)
            found = await cursor.fetchall()
        FORKS.close(other)
        return found

    assert asyncio.run(look()) == (WANTED,)


def test_an_account_whose_login_needs_another_package_says_which(own_mysql: MariaDBServer) -> None:
    """So it is with accounts of MySQL 8 without TLS; MariaDB has one such method of its own."""
    own_mysql.rows("install soname 'auth_ed25519'")
    own_mysql.rows("create user 'edwards' identified via ed25519 using password('secret')")
    with pytest.raises(MissingDependencyError, match=r"'pynacl' package .*pip install 'PyMySQL\[rsa,ed25519\]'"):
        open_connection(parse_url(own_mysql.url().replace("root", "edwards:secret")), 5.0)


def _ids(server: MariaDBServer) -> set[int]:
    return {row[0] for row in server.rows("select id from information_schema.processlist")}


def test_a_closed_connection_says_goodbye(own_mysql: MariaDBServer) -> None:
    place = parse_url(own_mysql.url())
    FORKS.close(open_connection(place, 5.0))

    async def come_and_go() -> None:
        FORKS.close(await open_async_connection(place, 5.0))

    asyncio.run(come_and_go())
    assert own_mysql.rows("show global status like 'Aborted_clients'") == [("Aborted_clients", "0")]


def test_an_idle_connection_that_was_killed_is_not_alive(mysql_server: MariaDBServer) -> None:
    native = open_connection(parse_url(mysql_server.url()), 5.0)
    assert is_alive(native)
    mysql_server.rows(f"kill {native.thread_id()}")
    wait_until(lambda: not is_alive(native))
    FORKS.close(native)


@pytest.mark.asyncio
async def test_an_idle_connection_of_a_loop_that_was_killed_is_not_alive(mysql_server: MariaDBServer) -> None:
    native = await open_async_connection(parse_url(mysql_server.url()), 5.0)
    assert is_alive(native)
    # Whether or not the loop has looked since.
    mysql_server.rows(f"kill {native.thread_id()}")
    wait_until(lambda: not is_alive(native))
    await asyncio.sleep(0.05)
    assert not is_alive(native)
    FORKS.close(native)


def test_a_connection_of_a_loop_that_is_closed_is_closed_without_it(mysql_server: MariaDBServer) -> None:
    async def come() -> AsyncMySQLConnection:
        return await open_async_connection(parse_url(mysql_server.url()), 5.0)

    native = asyncio.run(come())
    number = native.thread_id()
    assert is_alive(native)
    FORKS.close(native)
    assert native.descriptor == -1
    wait_until(lambda: number not in _ids(mysql_server))


def _child_lets_go(native: MySQLConnection | AsyncMySQLConnection, descriptor: int) -> bool:
    """Fork, and tell whether the child finds the connection dropped, and its descriptor closed."""
    pid = os.fork()
    if pid == 0:
        is_gone = False
        try:
            FORKS.close(native)
            os.fstat(descriptor)
        except OSError:
            is_gone = not is_alive(native) and native.descriptor == -1
        finally:
            os._exit(0 if is_gone else 1)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_lets_go_of_its_parents_connection(mysql_server: MariaDBServer) -> None:
    native = open_connection(parse_url(mysql_server.url()), 5.0)
    assert _child_lets_go(native, native.descriptor)
    with native.cursor() as cursor:
        cursor.execute("select 7")
        assert cursor.fetchone() == (7,)
    FORKS.close(native)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.asyncio
async def test_a_forked_child_lets_go_of_its_parents_connection_of_a_loop(mysql_server: MariaDBServer) -> None:
    native = await open_async_connection(parse_url(mysql_server.url()), 5.0)
    assert _child_lets_go(native, native.descriptor)
    async with native.cursor() as cursor:
        await cursor.execute("select 7")
        assert await cursor.fetchone() == (7,)
    FORKS.close(native)


def test_a_frozen_server_is_waited_for_no_longer_than_the_patience(own_mysql: MariaDBServer) -> None:
    own_mysql.freeze()
    began = time.monotonic()
    with pytest.raises(SourceUnavailableError, match="cannot be reached"):
        open_connection(parse_url(own_mysql.url()), 0.2)
    with pytest.raises(SourceUnavailableError, match="cannot be reached"):
        asyncio.run(open_async_connection(parse_url(own_mysql.url()), 0.2))
    assert time.monotonic() - began < 30
    own_mysql.thaw()


def test_of_several_servers_the_first_that_takes_writes_is_used(
    mysql_server: MariaDBServer, own_mysql: MariaDBServer
) -> None:
    own_mysql.rows("set global read_only = on")
    hosts = f"127.0.0.1:1,127.0.0.1:{own_mysql.port},127.0.0.1:{mysql_server.port}"
    place = parse_url(f"mysql://root@{hosts}/mysql")
    native = open_connection(place, 5.0)
    with native.cursor() as cursor:
        cursor.execute("select @@port")
        assert cursor.fetchone() == (mysql_server.port,)
    FORKS.close(native)
    none = parse_url(f"mysql://root@127.0.0.1:1,127.0.0.1:{own_mysql.port}/mysql")
    with pytest.raises(SourceUnavailableError, match=rf"refused.*; 127.0.0.1:{own_mysql.port} takes no writes"):
        open_connection(none, 5.0)


@pytest.mark.asyncio
async def test_of_several_servers_a_loop_too_uses_the_first_that_takes_writes(
    mysql_server: MariaDBServer, own_mysql: MariaDBServer
) -> None:
    own_mysql.rows("set global read_only = on")
    hosts = f"127.0.0.1:1,127.0.0.1:{own_mysql.port},127.0.0.1:{mysql_server.port}"
    native = await open_async_connection(parse_url(f"mysql://root@{hosts}/mysql"), 5.0)
    async with native.cursor() as cursor:
        await cursor.execute("select @@port")
        assert await cursor.fetchone() == (mysql_server.port,)
    FORKS.close(native)


def test_a_socket_is_connected_to(mysql_server: MariaDBServer) -> None:
    place = parse_url(f"mysql://root@/mysql?unix_socket={mysql_server.socket}")
    native = open_connection(place, 5.0)
    assert "UNIX socket" in native.host_info
    FORKS.close(native)

    async def look() -> str:
        other = await open_async_connection(place, 5.0)
        FORKS.close(other)
        return str(other.host_info)

    assert "UNIX socket" in asyncio.run(look())


def test_a_password_of_any_letters_is_taken(mysql_server: MariaDBServer) -> None:
    password = "a/b@c:d?é€#%"
    mysql_server.rows("set names utf8mb4")
    mysql_server.rows("create or replace user 'guest'@'%%' identified by %s", password)
    place = parse_url(mysql_server.url(user="guest", password=password, database="information_schema"))
    FORKS.close(open_connection(place, 5.0))
    FORKS.close(asyncio.run(open_async_connection(place, 5.0)))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://u:p@h/db", "mysql://h:3306/db"),
        ("mariadb://u:p@h:7/db?ssl_ca=/secret/ca", "mysql://h:7/db"),
        ("mysql://u:p%40%2F@h1:1,[::1]:2,/d%62", "mysql://h1:1,[::1]:2,localhost:3306/db"),
        ("mysql:///db?unix_socket=/run/m.sock", "mysql://%2Frun%2Fm.sock/db"),
    ],
)
def test_a_url_is_shown_in_one_spelling_and_without_secrets(
    url: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MYSQL_HOST", "MYSQL_TCP_PORT"):
        monkeypatch.delenv(name, raising=False)
    place = parse_url(url)
    assert place.url == shown
    assert repr(place) == f"MySQLConnectionInfo({shown!r})"


def test_a_url_has_the_defaults_of_the_servers_own_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_HOST", "db.example")
    monkeypatch.setenv("MYSQL_TCP_PORT", "3307")
    assert parse_url("mysql://u@/app").url == "mysql://db.example:3307/app"
    assert parse_url("mysql://h,:1/app").url == "mysql://h:3307,db.example:1/app"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:hunter2@h",
        "mysql://u:hunter2@h/",
        "mysql://u:hunter2@h/a/b",
        "mysql://u:hun/ter2@h/db",
        "mysql://u:hunter2@h:hunter2/db",
        "mysql://u:hunter2@h:0/db",
        "mysql://u:hunter2@h/db?ssl_mod=REQUIRED",
        "mysql://u:hunter2@h/db?ssl_mode=ON",
        "mysql://u:hunter2@h/db?ssl_key=/k",
        "mysql://u:hunter2@h/db?x",
    ],
)
def test_a_url_that_is_not_understood_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="a MySQL URL is not understood") as caught:
        parse_url(url)
    assert "hun" not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        ("", "PREFERRED"),
        ("?ssl_mode=required", "REQUIRED"),
        ("?ssl_ca=/ca", "VERIFY_IDENTITY"),
        ("?ssl_ca=/ca&ssl_mode=VERIFY_CA", "VERIFY_CA"),
    ],
)
def test_a_url_that_names_an_authority_has_the_identity_checked(query: str, mode: str) -> None:
    assert parse_url(f"mysql://h/db{query}").ssl_mode == mode


def test_a_certificate_that_is_no_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="a certificate or key cannot be used"):
        parse_url("mysql://h/db?ssl_ca=/nowhere").tls()


def test_a_client_that_asks_for_tls_sends_nothing_to_a_server_without_it(mysql_server: MariaDBServer) -> None:
    before = _aborted(mysql_server)
    place = parse_url(mysql_server.url(ssl_mode="REQUIRED", user="nobody_at_all"))
    with pytest.raises(SourceUnavailableError, match="the server offers none"):
        open_connection(place, 5.0)
    with pytest.raises(SourceUnavailableError, match="the server offers none"):
        asyncio.run(open_async_connection(place, 5.0))
    # Who had logged in as nobody would have been denied; these went without a word.
    wait_until(lambda: _aborted(mysql_server) >= before + 2)
    assert "Access denied" not in mysql_server.log


def _aborted(server: MariaDBServer) -> int:
    [(_, count)] = server.rows("show global status like 'Aborted_connects'")
    return int(count)
