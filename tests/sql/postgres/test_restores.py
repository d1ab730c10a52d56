"""The rule T7 with real ones: crashes, backups, recoveries, standbys, dumps and copies of a server.

Whatever was restored, no token comes twice, and none is lower than any that was ever issued: to processes that were
just started, and to one that knew the newer state. Each `test_…_is_not_noticed` holds a limit that the documents name:
if it fails one day, that is good news for them.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from fencelock import SourceError
from fencelock.model import EPOCH_STRIDE
from fencelock.protocol import source_requests as ask
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock_lab.servers.postgres import ADMIN, PostgresFleet, PostgresServer
from tests.sql.clients import SqlClient, one_token
from tests.sql.clock import ClockedServer
from tests.sql.postgres.fix_copies import (
    Copies,
    create_restore_point,
    disconnect,
    failover_url,
    promote,
    wait_until_replayed,
)
from tests.sql.postgres.fix_postgres import Database, only
from tests.support.helpers import wait_until

pytestmark = pytest.mark.process

REMEDY = "fencelock epoch --raise"


class Ledger:
    """Every token that any process was ever given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def note(self, token: int) -> None:
        """This token is told now: it is higher than all before."""
        assert token > max(self.tokens, default=0), f"token {token} was told after {max(self.tokens)}"
        self.tokens.append(token)

    def issue(self, url: str, count: int = 3) -> None:
        """Have so many processes issue a token each."""
        for _ in range(count):
            self.note(one_token(url, self._lock()))

    def issue_to(self, client: SqlClient) -> None:
        self.note(client.one_token(self._lock()))

    def _lock(self) -> str:
        """Return a new lock's name: of an old one, a crash may have forgotten the release."""
        return f"lock{len(self.tokens)}"

    @property
    def last(self) -> int:
        return max(self.tokens)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def primary(own_postgres: PostgresServer, ledger: Ledger) -> PostgresServer:
    """Return a server with a source that has issued a few tokens."""
    PostgresSource(own_postgres.url()).install()
    ledger.issue(own_postgres.url())
    return own_postgres


@pytest.fixture
def dumped(database: Database, ledger: Ledger) -> Database:
    """Return a database with a source, on the shared server."""
    PostgresSource(database.url()).install()
    ledger.issue(database.url())
    return database


@pytest.fixture
def clients() -> Iterator[Callable[[str], SqlClient]]:
    """Yield what opens a client; it closes with the test."""
    opened: list[SqlClient] = []

    def open_client(url: str) -> SqlClient:
        opened.append(SqlClient(url))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()


Clients = Callable[[str], SqlClient]


def epoch(url: str) -> int:
    client = SqlClient(url)
    try:
        return int(client.describe().epoch)
    finally:
        client.close()


# --- the same server ------------------------------------------------------------------------------
def test_a_clean_restart_goes_on_where_it_was(primary: PostgresServer, ledger: Ledger, clients: Clients) -> None:
    """No token is skipped, leases go on, those who wait keep their places."""
    knowing = clients(primary.url())
    ledger.note(knowing.token("held", "holder"))
    assert isinstance(knowing.acquire("held", "waiter", may_wait=True), ask.Queued)
    before = knowing.describe()
    primary.restart()
    assert knowing.describe() == before
    assert set(knowing.ask(ask.Renew((("held", "holder"),))).remaining_ms) == {"holder"}
    knowing.release("held", "holder")
    ledger.note(knowing.ask(ask.Poll("held", "waiter")).token)
    ledger.issue(primary.url(), 1)
    assert ledger.last == before.last_token + 2
    assert epoch(primary.url()) == 1


def test_maintenance_begins_no_history(dumped: Database, ledger: Ledger) -> None:
    """The rows are rewritten by another transaction, and say still who wrote them."""
    for task in ("vacuum freeze", "vacuum full", "vacuum (full, freeze)", "analyze", "reindex table"):
        for table in ("source", "witness", "lock", "waiter", "source_audit"):
            dumped.rows(f"{task} fencelock.{table}")
        ledger.issue(dumped.url())
    assert ledger.last == len(ledger.tokens)
    assert epoch(dumped.url()) == 1


def kill(server: PostgresServer) -> None:
    server.kill()
    server.start()


def stop_at_once(server: PostgresServer) -> None:
    server.restart("immediate")


def kill_one_backend(server: PostgresServer) -> None:
    """Which takes all others with it: nobody knows what it did to the memory that they share."""
    with server.admin() as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        crashes = server.log.count("all server processes terminated; reinitializing") + 1
        wait_until(lambda: server.log.count("all server processes terminated; reinitializing") == crashes)
        connection.pgconn.finish()
    server.wait_until_ready()


def test_t1_when_what_is_reserved_is_spent_more_is_reserved_in_the_same_history(
    primary: PostgresServer, ledger: Ledger, clients: Clients
) -> None:
    knowing = clients(primary.url())
    for _ in range(2):
        ledger.issue_to(knowing)
        bound = ledger.last + 2
        primary.rows("update fencelock.source set bound = %s, xid = pg_current_xact_id()::xid", bound)
        for _ in range(4):
            ledger.issue_to(knowing)
        assert knowing.describe().epoch == 1
        assert knowing.describe().reserved_token > bound + 2**25
    assert ledger.last == ledger.tokens[0] + len(ledger.tokens) + 1, "of each time, one token was not issued"


@pytest.mark.parametrize("crash", [kill, stop_at_once, kill_one_backend])
def test_t7_a_crash_begins_a_history_and_what_was_flushed_goes_on(
    primary: PostgresServer, ledger: Ledger, clients: Clients, crash: Callable[[PostgresServer], None]
) -> None:
    knowing = clients(primary.url())
    ledger.note(knowing.token("held", "holder"))
    primary.rows("select pg_logical_emit_message(true, 'test', 'whatever was committed before is flushed now')")
    for crashes in (1, 2):
        crash(primary)
        ledger.issue(primary.url())
        ledger.issue_to(knowing)
        assert epoch(primary.url()) == 1 + crashes, "one history for one crash"
        assert set(knowing.ask(ask.Renew((("held", "holder"),))).remaining_ms) == {"holder"}
    assert ledger.last < 2**62, "and it does not use up what there is"


@only("18")
def test_t7_tokens_that_only_the_memory_knew_are_not_issued_again(
    primary: PostgresServer, ledger: Ledger, clients: Clients
) -> None:
    """The server dies in the moment after each grant, before anything of it is on the disk."""
    primary.settings["wal_writer_delay"] = "10s"
    primary.restart()
    for _ in range(3):
        knowing = clients(primary.url())
        for _ in range(20):
            ledger.issue_to(knowing)
        primary.crash()
    ledger.issue(primary.url())


@only("18")
def test_t7_a_crash_while_the_clock_is_wrong_is_survived(
    clocked: ClockedServer, ledger: Ledger, clients: Clients
) -> None:
    """The clock sets a history apart from those that nobody here knows of; from those that are known the bound does."""
    server = clocked.server
    PostgresSource(server.url()).install()
    for hours in (0, -1, -24 * 365 * 60, 1, 0):
        ledger.issue(server.url())
        clocked.jump(hours * 3600)
        server.crash()
        ledger.issue_to(clients(server.url()))


# --- backups --------------------------------------------------------------------------------------
def test_t7_a_base_backup_that_is_started_plainly(
    primary: PostgresServer, ledger: Ledger, copies: Copies, clients: Clients
) -> None:
    backup = copies.base_backup(primary)
    ledger.issue(primary.url(), 10)
    restored = copies.started(backup, primary)
    knowing = clients(failover_url([primary, restored]))
    ledger.issue_to(knowing)
    primary.kill()
    ledger.issue(restored.url())
    ledger.issue_to(knowing)
    assert epoch(restored.url()) == 2


@only("18")
def test_t7_a_recovery_to_a_point_in_time(
    primary: PostgresServer, ledger: Ledger, copies: Copies, clients: Clients
) -> None:
    archive = copies.archive_of(primary)
    backup = copies.base_backup(primary)
    ledger.issue(primary.url())
    create_restore_point(primary, "before")
    ledger.issue(primary.url())
    restored = copies.recovered(backup, primary, archive, "before")
    knowing = clients(failover_url([primary, restored]))
    ledger.issue_to(knowing)
    primary.kill()
    ledger.issue_to(knowing)
    ledger.issue(restored.url())


@only("18")
def test_t7_a_backup_from_before_a_crash_of_the_original(
    primary: PostgresServer, ledger: Ledger, copies: Copies, clients: Clients
) -> None:
    """The original is two histories ahead: fresh processes go on above them, and who knew them refuses."""
    backup = copies.base_backup(primary)
    for _ in range(2):
        primary.crash()
        ledger.issue(primary.url())
    restored = copies.started(backup, primary)
    knowing = clients(failover_url([primary, restored]))
    ledger.issue_to(knowing)
    primary.kill()
    check_refused(knowing, r"went back from epoch 3 \(history \w+\) to 1")
    ledger.issue(restored.url())
    check_refused(knowing, r"went back from epoch 3 \(history \w+\) to 2")


def check_refused(client: SqlClient, message: str) -> None:
    """Assert that a client that knows a newer state is granted nothing, and told what to do."""
    for request in (
        lambda: client.acquire("lock", may_wait=True),
        lambda: client.acquire("new"),
        lambda: client.ask(ask.Break("lock", "breaker", "tester", "a test")),
    ):
        with pytest.raises(SourceError, match=message) as caught:
            request()
        assert REMEDY in str(caught.value)
        client.close()  # As the pool does with a connection that saw an error.


# --- standbys -------------------------------------------------------------------------------------
def lagging(primary: PostgresServer, copies: Copies) -> PostgresServer:
    """Return a standby that has all that there is now, and gets no more."""
    standby = copies.standby_of(primary)
    wait_until_replayed(primary, standby)
    disconnect(standby)
    return standby


@only("18")
def test_t7_a_standby_that_is_promoted_without_the_last_grants(
    primary: PostgresServer, ledger: Ledger, copies: Copies, clients: Clients
) -> None:
    standby = lagging(primary, copies)
    knowing = clients(failover_url([primary, standby]))
    ledger.issue(primary.url())
    ledger.note(knowing.token("held", "holder"))
    primary.kill()
    promote(standby)
    ledger.issue_to(knowing)
    ledger.issue(standby.url())
    assert "knows nothing of it" in knowing.ask(ask.Renew((("held", "holder"),))).lost["holder"]


@only("18")
@pytest.mark.parametrize("has_crashed_before", [False, True])
def test_t7_two_standbys_that_are_promoted_one_after_the_other(
    primary: PostgresServer, ledger: Ledger, copies: Copies, clients: Clients, has_crashed_before: bool
) -> None:
    """The second never saw the history of the first, and begins its own from the same state: above it, by the clock."""
    if has_crashed_before:
        primary.crash()
        ledger.issue(primary.url())
    first, second = lagging(primary, copies), lagging(primary, copies)
    ledger.issue(primary.url())
    primary.kill()
    promote(first)
    knowing = clients(failover_url([first, second]))
    ledger.issue_to(knowing)
    ledger.issue(first.url())
    first.kill()
    promote(second)
    ledger.issue(second.url())
    check_refused(knowing, r"went back from epoch (\d) \(history \w+\) to \1 \(history \w+\)")


@only("18")
def test_t7_a_primary_that_goes_on_after_it_was_replaced(
    primary: PostgresServer, ledger: Ledger, copies: Copies, clients: Clients
) -> None:
    """Split in two, both issue tokens: the new primary's are above the old one's."""
    standby = lagging(primary, copies)
    ledger.issue(primary.url())
    promote(standby)
    behind = [one_token(primary.url()) for _ in range(3)]
    for token in behind:
        ledger.note(token)
    ledger.issue(standby.url())
    assert one_token(primary.url()) == behind[-1] + 1
    knowing = clients(standby.url())
    ledger.issue_to(knowing)


# --- dumps ----------------------------------------------------------------------------------------
@only("18")
@pytest.mark.parametrize("form", ["plain", "custom"])
def test_t7_a_dump_restored_into_another_database_of_the_cluster(
    dumped: Database, ledger: Ledger, copies: Copies, form: Literal["plain", "custom"]
) -> None:
    dump = copies.dump(dumped.server, dumped.name, form)
    ledger.issue(dumped.url())
    other = f"{dumped.name}_other"
    dumped.server.rows(f"create database {other}")
    copies.restore(dump, dumped.server, other)
    ledger.issue(dumped.server.url(dbname=other))
    dumped.server.rows(f"drop database {other} with (force)")


def test_t7_a_dump_restored_into_another_cluster(
    dumped: Database, ledger: Ledger, copies: Copies, own_postgres: PostgresServer
) -> None:
    dump = copies.dump(dumped.server, dumped.name)
    ledger.issue(dumped.url())
    own_postgres.rows("create database restored")
    copies.restore(dump, own_postgres, "restored")
    ledger.issue(own_postgres.url(dbname="restored"))


@only("18")
def test_t7_a_dump_restored_in_the_place_of_the_original(
    dumped: Database, ledger: Ledger, copies: Copies, clients: Clients
) -> None:
    """The same database of the same cluster; processes are running, whose connections go on."""
    dump = copies.dump(dumped.server, dumped.name)
    knowing = clients(dumped.url())
    ledger.issue_to(knowing)
    dumped.rows("drop schema fencelock cascade")
    copies.restore(dump, dumped.server, dumped.name)
    ledger.issue_to(knowing)
    ledger.issue(dumped.url())


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
    ledger: Ledger,
    copies: Copies,
    clients: Clients,
    emptied: str,
    options: tuple[str, ...],
    is_running: bool,
) -> None:
    """The same tables in the same place, with what they held before, and the counter set back."""
    dump = data_of(dumped, copies, *options)
    ledger.issue(dumped.url(), 10)
    knowing = clients(dumped.url())
    ledger.issue_to(knowing)
    dumped.rows(f"truncate {emptied}")
    copies.restore(dump, dumped.server, dumped.name)
    assert dumped.value("select last_value from fencelock.token") < ledger.last
    if is_running:
        ledger.issue_to(knowing)
    ledger.issue(dumped.url())


def data_of(database: Database, copies: Copies, *options: str) -> Path:
    """Return a dump of what fencelock's tables hold, and of nothing else."""
    path = copies.dump(database.server, database.name)
    arguments = ("--data-only", "--schema=fencelock", *options, f"--file={path}", database.url())
    database.server.programs.run("pg_dump", *arguments, cwd=path.parent)
    return path


@only("18")
def test_t7_data_of_another_source_is_refused_by_who_knew_the_first(
    dumped: Database, ledger: Ledger, copies: Copies, clients: Clients, postgres_fleet: PostgresFleet
) -> None:
    dump = data_of(dumped, copies)
    other = Database(dumped.server, f"{dumped.name}_other")
    dumped.server.rows(f"create database {other.name}")
    PostgresSource(other.url()).install()
    knowing = clients(other.url())
    ledger.note(knowing.one_token() + ledger.last)
    other.rows(f"truncate {TABLES}, fencelock.witness")
    copies.restore(dump, dumped.server, other.name)
    with pytest.raises(SourceError, match=r"was source \w+ and is source \w+ now: its schema was replaced"):
        knowing.acquire()
    ledger.issue(other.url())
    dumped.server.rows(f"drop database {other.name} with (force)")


@only("18")
def test_t7_a_database_made_from_the_source_as_its_template(dumped: Database, ledger: Ledger) -> None:
    copy = f"{dumped.name}_copy"
    dumped.server.rows(f"create database {copy} template {dumped.name}")
    ledger.issue(dumped.url())
    ledger.issue(dumped.server.url(dbname=copy))
    dumped.server.rows(f"drop database {copy} with (force)")


@only("18")
def test_t7_a_schema_made_anew_is_another_source(dumped: Database, ledger: Ledger, clients: Clients) -> None:
    """Its tokens begin again, so guards know it by its id, and so do processes that knew the first."""
    knowing = clients(dumped.url())
    ledger.issue_to(knowing)
    before = knowing.describe()
    dumped.rows("drop schema fencelock cascade")
    PostgresSource(dumped.url()).install()
    with pytest.raises(SourceError, match=rf"was source {before.source_id} and is source \w+ now"):
        knowing.acquire()


# --- migrations ---------------------------------------------------------------------------------
@pytest.mark.slow
def test_t7_a_cluster_that_pg_upgrade_has_made(postgres_fleet: PostgresFleet, ledger: Ledger, clients: Clients) -> None:
    """Everything is carried over, what is not logged too; only the cluster's own identity says that it is another."""
    old = postgres_fleet.copied_server("15")
    with old:
        PostgresSource(old.url()).install()
        ledger.issue(old.url())
        old.stop()
        new = upgraded(postgres_fleet, old)
        with new:
            assert new.value("select count(*) from fencelock.witness") == 1
            old.start()
            knowing = clients(failover_url([old, new]))
            ledger.issue_to(knowing)
            old.kill()
            ledger.issue(new.url())
            ledger.issue_to(knowing)
            assert epoch(new.url()) == 2


def upgraded(fleet: PostgresFleet, old: PostgresServer) -> PostgresServer:
    """Return a server of the newer version, not started yet, with all that a stopped one holds."""
    new = PostgresServer(fleet.programs("18"), fleet.new_folder("upgraded"))
    options = ("--auth=trust", f"--username={ADMIN}", "--encoding=UTF8", "--locale=C", "--no-sync")
    new.programs.run("initdb", "-D", new.data, *options, "--no-data-checksums", cwd=new.folder)
    places = ("-b", old.programs.folder, "-B", new.programs.folder, "-d", old.data, "-D", new.data)
    new.programs.run("pg_upgrade", *places, "-U", ADMIN, "-p", old.port, "-P", new.port, cwd=new.folder)
    return new


# --- what cannot be seen --------------------------------------------------------------------------
def restored_cold(primary: PostgresServer, ledger: Ledger, copies: Copies) -> PostgresServer:
    """Return a copy of a stopped server's files, made before the original went on and issued more."""
    primary.stop()
    copy = copies.cold_copy(primary)
    primary.start()
    ledger.issue(primary.url(), 10)
    return copy


@only("18")
def test_a_cold_copy_without_a_witness_is_not_noticed(primary: PostgresServer, ledger: Ledger, copies: Copies) -> None:
    """The documented limit: a server that was stopped in good order, and its copy, are the same."""
    copy = restored_cold(primary, ledger, copies)
    token = one_token(copy.url())
    assert token in ledger.tokens, "issued before: this is why a restore ends with `fencelock epoch --raise`"


@only("18")
def test_t7_a_cold_copy_is_noticed_by_who_knew_more(
    primary: PostgresServer, ledger: Ledger, copies: Copies, clients: Clients
) -> None:
    copy = restored_cold(primary, ledger, copies)
    knowing = clients(failover_url([primary, copy]))
    ledger.issue_to(knowing)
    primary.kill()
    with pytest.raises(SourceError, match=rf"issued token \d+ after {ledger.last}: an older state") as caught:
        knowing.acquire("lock")
    assert REMEDY in str(caught.value)


@only("18")
@pytest.mark.parametrize("has_crashed", [False, True], ids=["one history", "a later history"])
@pytest.mark.parametrize("knows_more", [False, True], ids=["fresh process", "knowing process"])
def test_t7_raising_the_epoch_of_a_cold_copy_makes_it_good(
    primary: PostgresServer, ledger: Ledger, copies: Copies, clients: Clients, has_crashed: bool, knows_more: bool
) -> None:
    """Also where the original has begun a history of its own meanwhile, far above what the copy knows."""
    copy = restored_cold(primary, ledger, copies)
    knowing = clients(failover_url([primary, copy]))
    if has_crashed:
        primary.crash()
        ledger.issue(primary.url())
    elif knows_more:
        ledger.issue_to(knowing)
    primary.kill()
    raised = (knowing if knows_more else clients(copy.url())).raise_epoch("restored")
    assert raised.last_token > ledger.last
    assert raised.last_token % EPOCH_STRIDE == 0
    ledger.issue(copy.url())
    ledger.issue_to(knowing)
    copy.crash()
    ledger.issue(copy.url())
