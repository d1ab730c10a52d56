"""The rule T7 with real dumps and upgrades of a PostgreSQL database: no token comes twice after a restore."""

from pathlib import Path
from typing import Literal

import pytest

from fencelock import SourceError
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock.stores.registry import guard_store, source_store
from fencelock_lab.servers.postgres import ADMIN, PostgresFleet, PostgresServer
from tests.sql.dialect import install
from tests.sql.guarded import Guarded
from tests.sql.postgres.fix_copies import (
    Copies,
    failover_url,
)
from tests.sql.postgres.fix_postgres import Database, only
from tests.sql.postgres.issued import Clients, IssuedTokens, epoch
from tests.sql.restored_rights import RestoredRights

pytestmark = pytest.mark.process


# --- dumps ----------------------------------------------------------------------------------------
@only("18")
@pytest.mark.parametrize("form", ["plain", "custom"])
def test_t7_a_dump_restored_into_another_database_of_the_cluster(
    dumped: Database, issued: IssuedTokens, copies: Copies, form: Literal["plain", "custom"]
) -> None:
    dump = copies.dump(dumped.server, dumped.name, form)
    issued.issue(dumped.url())
    other = f"{dumped.name}_other"
    dumped.server.rows(f"create database {other}")
    copies.restore(dump, dumped.server, other)
    issued.issue(dumped.server.url(dbname=other))
    dumped.server.rows(f"drop database {other} with (force)")


def test_t7_a_dump_restored_into_another_cluster(
    dumped: Database, issued: IssuedTokens, copies: Copies, own_postgres: PostgresServer
) -> None:
    dump = copies.dump(dumped.server, dumped.name)
    issued.issue(dumped.url())
    own_postgres.rows("create database restored")
    copies.restore(dump, own_postgres, "restored")
    issued.issue(own_postgres.url(dbname="restored"))


@only("18")
def test_t7_a_dump_restored_in_the_place_of_the_original(
    dumped: Database, issued: IssuedTokens, copies: Copies, clients: Clients
) -> None:
    """The same database of the same cluster; processes are running, whose connections go on."""
    dump = copies.dump(dumped.server, dumped.name)
    knowing = clients(dumped.url())
    issued.issue_to(knowing)
    dumped.rows("drop schema fencelock cascade")
    copies.restore(dump, dumped.server, dumped.name)
    issued.issue_to(knowing)
    issued.issue(dumped.url())


TABLES = "fencelock.source, fencelock.lock, fencelock.waiter, fencelock.source_audit"


@only("18")
@pytest.mark.parametrize(
    ("emptied", "options"),
    [(f"{TABLES}, fencelock.witness", ()), (TABLES, ("--no-unlogged-table-data",))],
    ids=["all tables", "all but the witness"],
)
@pytest.mark.parametrize("is_running", [False, True], ids=["nobody running", "a process running"])
def test_t7_data_alone_restored_over_an_install(
    dumped: Database,
    issued: IssuedTokens,
    copies: Copies,
    clients: Clients,
    emptied: str,
    options: tuple[str, ...],
    is_running: bool,
) -> None:
    """The same tables in the same place, with what they held before, and the counter set back."""
    dump = data_of(dumped, copies, *options)
    issued.issue(dumped.url(), 10)
    knowing = clients(dumped.url())
    issued.issue_to(knowing)
    dumped.rows(f"truncate {emptied}")
    copies.restore(dump, dumped.server, dumped.name)
    assert dumped.value("select last_value from fencelock.token") < issued.last
    if is_running:
        issued.issue_to(knowing)
    issued.issue(dumped.url())


def data_of(database: Database, copies: Copies, *options: str) -> Path:
    """Return a dump of what fencelock's tables hold, and of nothing else."""
    path = copies.dump(database.server, database.name)
    arguments = ("--data-only", "--schema=fencelock", *options, f"--file={path}", database.url())
    database.server.programs.run("pg_dump", *arguments, cwd=path.parent)
    return path


@only("18")
def test_t7_data_of_another_source_is_refused_by_clients_of_the_first(
    dumped: Database, issued: IssuedTokens, copies: Copies, clients: Clients, postgres_fleet: PostgresFleet
) -> None:
    dump = data_of(dumped, copies)
    other = Database(dumped.server, f"{dumped.name}_other")
    dumped.server.rows(f"create database {other.name}")
    PostgresSource(other.url()).install()
    knowing = clients(other.url())
    issued.note(knowing.one_token() + issued.last)
    other.rows(f"truncate {TABLES}, fencelock.witness")
    copies.restore(dump, dumped.server, other.name)
    with pytest.raises(SourceError, match=r"was source \w+ and is source \w+ now: its schema was replaced"):
        knowing.acquire()
    issued.issue(other.url())
    dumped.server.rows(f"drop database {other.name} with (force)")


@only("18")
def test_t7_a_database_made_from_the_source_as_its_template(dumped: Database, issued: IssuedTokens) -> None:
    copy = f"{dumped.name}_copy"
    dumped.server.rows(f"create database {copy} template {dumped.name}")
    issued.issue(dumped.url())
    issued.issue(dumped.server.url(dbname=copy))
    dumped.server.rows(f"drop database {copy} with (force)")


@only("18")
def test_t7_a_schema_made_anew_is_another_source(dumped: Database, issued: IssuedTokens, clients: Clients) -> None:
    """Its tokens begin again, so guards know it by its id, and so do processes that knew the first."""
    knowing = clients(dumped.url())
    issued.issue_to(knowing)
    before = knowing.describe()
    dumped.rows("drop schema fencelock cascade")
    PostgresSource(dumped.url()).install()
    with pytest.raises(SourceError, match=rf"was source {before.source_id} and is source \w+ now"):
        knowing.acquire()


# --- migrations ---------------------------------------------------------------------------------
@pytest.mark.slow
def test_t7_a_cluster_that_pg_upgrade_has_made(
    postgres_fleet: PostgresFleet, issued: IssuedTokens, clients: Clients
) -> None:
    """Everything is carried over, what is not logged too; only the cluster's own identity says that it is another."""
    old = postgres_fleet.copied_server("15")
    with old:
        PostgresSource(old.url()).install()
        issued.issue(old.url())
        old.stop()
        new = upgraded(postgres_fleet, old)
        with new:
            assert new.value("select count(*) from fencelock.witness") == 1
            old.start()
            knowing = clients(failover_url([old, new]))
            issued.issue_to(knowing)
            old.kill()
            issued.issue(new.url())
            issued.issue_to(knowing)
            assert epoch(new.url()) == 2


def upgraded(fleet: PostgresFleet, old: PostgresServer) -> PostgresServer:
    """Return a server of the newer version, not started yet, with all that a stopped one holds."""
    new = PostgresServer(fleet.programs("18"), fleet.new_folder("upgraded"))
    options = ("--auth=trust", f"--username={ADMIN}", "--encoding=UTF8", "--locale=C", "--no-sync")
    new.programs.run("initdb", "-D", new.data, *options, "--no-data-checksums", cwd=new.folder)
    places = ("-b", old.programs.folder, "-B", new.programs.folder, "-d", old.data, "-D", new.data)
    new.programs.run("pg_upgrade", *places, "-U", ADMIN, "-p", old.port, "-P", new.port, cwd=new.folder)
    return new


# --- rights and keys ------------------------------------------------------------------------------
@only("18")
@pytest.mark.server_wide
def test_g12_a_restore_brings_back_rights_and_keys_and_the_documented_steps_take_them_away(
    guarded: Guarded, role: str, copies: Copies
) -> None:
    server, name = guarded.database.server, guarded.database.name
    story = RestoredRights(guarded, role)
    dump = copies.dump(server, name)
    story.take_away()
    server.rows(f"drop database {name} with (force)")
    server.rows(f"create database {name}")
    copies.restore(dump, server, name)
    story.check()


@only("18")
@pytest.mark.server_wide
def test_g12_doctor_reports_a_dump_that_was_restored_without_its_privileges(
    guarded: Guarded, role: str, copies: Copies
) -> None:
    """Every role may call what only the schema's functions call, and so present what it likes."""
    server, name = guarded.database.server, guarded.database.name
    install(guarded.database.url())

    def found() -> list[str]:
        url = guarded.database.url(user=role)
        both = [*guard_store(url).examine(), *source_store(url).examine()]
        return [one.code for one in both if one.code == "open-functions"]

    dump = copies.dump(server, name, "custom")
    assert found() == []
    server.rows(f"drop database {name} with (force)")
    server.rows(f"create database {name}")
    copies.restore(dump, server, name, "--no-privileges")
    guarded.database.rows(f"GRANT USAGE ON SCHEMA fencelock TO {role}")
    assert found() == ["open-functions"] * 2
    with guarded.database.connect(user=role) as native:
        native.execute("SELECT fencelock.note_name('reports')")
