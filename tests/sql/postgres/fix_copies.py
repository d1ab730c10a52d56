"""Copies of a server and of its past: backups, cold copies, standbys, recoveries to a point in time, and dumps.

Each is made as an operator makes it, by the server's own programs. What a test starts here ends with the test.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlencode

import pytest

from fencelock_lab.servers.postgres import ADMIN, PostgresFleet, PostgresServer
from tests.support.helpers import wait_until


class Copies:
    """Makes copies of servers, and ends those that it has started."""

    def __init__(self, fleet: PostgresFleet) -> None:
        self._fleet = fleet
        self._servers: list[PostgresServer] = []

    def close(self) -> None:
        for server in self._servers:
            server.close()

    # Files

    def base_backup(self, server: PostgresServer, *options: str) -> Path:
        """Return a data folder as `pg_basebackup` makes it of a running server, complete in itself."""
        backup = self._fleet.new_folder("backup") / "data"
        options = ("--wal-method=stream", "--checkpoint=fast", "--no-sync", *options)
        server.programs.run("pg_basebackup", "-D", backup, "-d", server.url(), *options, cwd=backup.parent)
        return backup

    def started(self, data: Path, of: PostgresServer) -> PostgresServer:
        """Return a running server over a copy of the data folder `data`, with the programs and settings of another."""
        server = self._prepared(data, of)
        server.start()
        return server

    def cold_copy(self, server: PostgresServer) -> PostgresServer:
        """Return a running server over a copy of the files of one that is down."""
        assert not server.is_running(), "the files of a running server are no copy of it"
        return self.started(server.data, server)

    def _prepared(self, data: Path, of: PostgresServer) -> PostgresServer:
        server = self._fleet.copy_of(data, of.programs)
        server.settings = dict(of.settings)
        self._servers.append(server)
        return server

    # Standbys

    def standby_of(self, primary: PostgresServer) -> PostgresServer:
        """Return a running standby that follows `primary` asynchronously, and may be read."""
        server = self.started(self.base_backup(primary, "--write-recovery-conf"), primary)
        wait_until(lambda: is_streaming(server))
        return server

    # Recovery to a point in time

    def archive_of(self, server: PostgresServer) -> Path:
        """Restart a server so that it archives its log, and return the folder where."""
        archive = self._fleet.new_folder("archive")
        server.settings |= {"archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
        server.restart()
        return archive

    def recovered(self, backup: Path, of: PostgresServer, archive: Path, restore_point: str) -> PostgresServer:
        """Return a running server: `backup`, recovered from the archive up to the named restore point of `of`."""
        wait_until_archived(of)
        server = self._prepared(backup, of)
        server.settings |= {
            "archive_mode": "off",
            "restore_command": f"cp {archive}/%f %p",
            "recovery_target_name": restore_point,
            "recovery_target_action": "promote",
        }
        (server.data / "recovery.signal").touch()
        server.start()
        wait_until(lambda: not is_in_recovery(server))
        return server

    # Dumps

    def dump(self, server: PostgresServer, dbname: str, form: Literal["plain", "custom"] = "plain") -> Path:
        """Return a dump of one database, as `pg_dump` makes it."""
        path = self._fleet.new_folder("dump") / form
        arguments = (f"--format={form}", f"--file={path}", server.url(dbname=dbname))
        server.programs.run("pg_dump", *arguments, cwd=path.parent)
        return path

    def restore(self, dump: Path, server: PostgresServer, dbname: str, *options: str) -> None:
        """Read a dump into a database that is there and empty. Roles that it names have to be there too."""
        if dump.name == "plain":
            arguments = ["psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}"]
        else:
            arguments = ["pg_restore", "--exit-on-error", str(dump)]
        server.programs.run(*arguments, *options, f"--dbname={server.url(dbname=dbname)}", cwd=dump.parent)


def is_in_recovery(server: PostgresServer) -> bool:
    return server.value("select pg_is_in_recovery()")


def is_streaming(standby: PostgresServer) -> bool:
    """Tell whether a standby receives what its primary writes."""
    return standby.rows("select status from pg_stat_wal_receiver") == [("streaming",)]


def wait_until_replayed(primary: PostgresServer, standby: PostgresServer) -> None:
    """Wait until a standby shows all that is committed on its primary at the moment of the call."""
    with primary.admin() as connection:
        # A flushed commit: what was committed without a flush lies before it.
        connection.execute("select pg_logical_emit_message(true, 'fixture', 'replayed')")
        [(position,)] = connection.execute("select pg_current_wal_flush_lsn()").fetchall()
    wait_until(lambda: standby.value("select pg_last_wal_replay_lsn() >= %s::pg_lsn", position))


def disconnect(standby: PostgresServer) -> None:
    """Let a standby fall behind: from now on it receives nothing."""
    with standby.admin() as connection:
        connection.execute("alter system set primary_conninfo = ''")
        connection.execute("select pg_reload_conf()")
    wait_until(lambda: not standby.rows("select from pg_stat_wal_receiver"))


def promote(standby: PostgresServer) -> None:
    """Make a standby a primary, and return once it is one."""
    assert standby.value("select pg_promote(wait => true)")
    assert not is_in_recovery(standby)


def create_restore_point(server: PostgresServer, name: str) -> None:
    """Name the present moment, so that a recovery may end there."""
    server.rows("select pg_create_restore_point(%s)", name)


def wait_until_archived(server: PostgresServer) -> None:
    """Wait until the archive has all that the server has written until now."""
    segment = server.value("select pg_walfile_name(pg_switch_wal())")
    wait_until(lambda: server.value("select coalesce(last_archived_wal, '') from pg_stat_archiver") >= segment)


def failover_url(
    servers: Sequence[PostgresServer], *, user: str = ADMIN, dbname: str = ADMIN, **params: str | int
) -> str:
    """Return an address that names several servers, as libpq reads it: the first that will do is taken."""
    places = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    query = urlencode({"target_session_attrs": "read-write", **params}, quote_via=quote)
    return f"postgresql://{quote(user, safe='')}@{places}/{quote(dbname, safe='')}?{query}"


@pytest.fixture
def copies(postgres_fleet: PostgresFleet) -> Iterator[Copies]:
    """Yield what copies servers; what it has started ends with the test."""
    the_copies = Copies(postgres_fleet)
    yield the_copies
    the_copies.close()
