"""T1 across a kill and the end of all power: every grant is flushed before it is told, and no token is told twice.

The server of these tests lies on a disk: in memory it would map its log, and flush nothing. What a copy of its files
holds at the moment of an answer is what the kernel knew then: it lacks what the server kept to itself. That the kernel
was told to write it down is what the server's own count of flushes says.
"""

import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fencelock
from fencelock.stores.mysql.source.store import MySQLSource
from fencelock_lab.servers.fleet import fleet_of
from fencelock_lab.servers.mariadb import MariaDBFleet, MariaDBServer
from tests.sql.clients import SqlClient
from tests.sql.granters import check_tokens_over_stops
from tests.support.helpers import wait_until
from tests.support.programs import need

pytestmark = pytest.mark.process

NEVER_S = 2700
"""The longest time after which the server flushes what nobody asked it to."""


@pytest.fixture(scope="module")
def disk_fleet() -> Iterator[MariaDBFleet]:
    """Yield what makes servers on a disk."""
    with fleet_of(MariaDBFleet, "fl-my-disk-", on_disk=True) as fleet:
        yield fleet


@pytest.fixture(params=["no binary log", "binary log"])
def server(disk_fleet: MariaDBFleet, request: pytest.FixtureRequest) -> Iterator[MariaDBServer]:
    """Yield a server that flushes each commit, and nothing by itself."""
    server = disk_fleet.new_server()
    server.settings |= {"innodb_flush_log_at_timeout": NEVER_S}
    if request.param == "binary log":
        server.settings |= {"log_bin": "on", "sync_binlog": 1, "binlog_format": "ROW"}
    with server:
        server.rows("create database shop")
        MySQLSource(server.url(database="shop")).install()
        yield server


@pytest.mark.campaign
def test_t1_no_token_comes_twice_over_kills_in_the_middle_of_load(server: MariaDBServer) -> None:
    check_tokens_over_stops(server.url(database="shop"), server.crash, "kill")


class ToldTooLateError(AssertionError):
    """A token was told after one that is as high or higher."""


def _grant(server: MariaDBServer, told: list[int], count: int, *, locks: str = "lock") -> None:
    """Grant and release so many times, and note what was told."""
    client = SqlClient(server.url(database="shop"))
    for number in range(count):
        token = client.one_token(f"{locks}{number % 7}")
        if token <= max(told, default=0):
            raise ToldTooLateError(f"token {token} was told after {max(told)}")
        told.append(token)
    client.close()


def _survivor(fleet: MariaDBFleet, server: MariaDBServer) -> MariaDBServer:
    """Return a server, not started yet, over what the files of a running one hold at this moment."""
    server.freeze()
    try:
        left = fleet.copy_of(server.data)
    finally:
        server.thaw()
    left.settings |= server.settings
    return left


def test_t1_a_granted_token_is_in_the_files_when_the_reply_comes(
    disk_fleet: MariaDBFleet, server: MariaDBServer
) -> None:
    told: list[int] = []
    moments = random.Random("cut")
    for _ in range(3):
        _grant(server, told, moments.randrange(1, 40))
        with _survivor(disk_fleet, server) as left:
            one_more = list(told)
            _grant(left, one_more, 3)


def test_t1_a_server_that_does_not_flush_commits_issues_a_token_again(
    disk_fleet: MariaDBFleet, server: MariaDBServer
) -> None:
    """The same check must see what it is for; doctor names the setting."""
    if server.settings.get("log_bin"):
        server.rows("set global sync_binlog = 0")
    told: list[int] = []
    _grant(server, told, 3)
    server.rows("flush engine logs")
    server.rows("set global innodb_flush_log_at_trx_commit = 0")
    with fencelock.connect(server.url(database="shop")) as source:
        assert "unflushed" in {finding.code for finding in source.examine()}

    def is_told_again() -> bool:
        _grant(server, told, 30)
        with _survivor(disk_fleet, server) as left:
            try:
                # A cut may lie between a grant and its release: that lock stays with a lease that nobody has.
                _grant(left, list(told), 3, locks="another")
            except ToldTooLateError:
                return True
        return False

    # The server may write at any time what nobody asked it to, the last grant with it: then that cut takes nothing.
    assert any(is_told_again() for _ in range(5))


@contextmanager
def _flushes(server: MariaDBServer, file: Path) -> Iterator[Callable[[], int]]:
    """Yield what returns how many times the server has told the kernel to write a file down."""
    command = [need("strace"), "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(file), "-p", str(server.pid)]
    file.touch()

    def counted() -> int:
        return file.read_text().count("sync(")

    def is_traced() -> bool:
        server.rows("create or replace table shop.noticed (id int)")
        return counted() > 0

    with subprocess.Popen(command, start_new_session=True) as tracing:
        try:
            wait_until(is_traced)
            yield counted
        finally:
            tracing.send_signal(signal.SIGINT)


@pytest.mark.parametrize("setting", [1, 2])
def test_t1_each_grant_and_each_release_is_flushed_before_its_reply(
    server: MariaDBServer, tmp_path: Path, setting: int
) -> None:
    """And with 2 they are not, which only a power cut would show."""
    server.rows(f"set global innodb_flush_log_at_trx_commit = {setting}")
    if setting == 2:
        server.rows("set global sync_binlog = 0")
    client = SqlClient(server.url(database="shop"))
    client.one_token()
    with _flushes(server, tmp_path / "flushes") as counted:
        before = counted()
        for _ in range(20):
            client.one_token()
        flushes = counted() - before
    client.close()
    assert flushes >= 40 if setting == 1 else flushes < 20
