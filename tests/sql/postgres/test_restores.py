"""The rule T7 with real ones: crashes, backups, recoveries and copies of a PostgreSQL server.

After any restore, no token comes twice, and none is lower than any that was ever issued: to processes that were just
started, and to one that knew the newer state. Each `test_…_is_not_noticed` holds a limit that the documents name: if it
fails one day, that is good news for them.
"""

import os
import signal
from collections.abc import Callable

import pytest

from fencelock import SourceError
from fencelock.model import EPOCH_STRIDE
from fencelock.protocol import source_requests as ask
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock_lab.servers.postgres import PostgresServer
from tests.sql.clients import one_token
from tests.sql.clock import ClockedServer
from tests.sql.postgres.fix_copies import (
    Copies,
    create_restore_point,
    failover_url,
)
from tests.sql.postgres.fix_postgres import Database, only
from tests.sql.postgres.issued import REMEDY, Clients, IssuedTokens, check_refused, epoch
from tests.support.helpers import wait_until

pytestmark = pytest.mark.process


# --- the same server ------------------------------------------------------------------------------
def test_a_clean_restart_goes_on_where_it_was(primary: PostgresServer, issued: IssuedTokens, clients: Clients) -> None:
    """No token is skipped, leases go on, those who wait keep their places."""
    knowing = clients(primary.url())
    issued.note(knowing.token("held", "holder"))
    assert isinstance(knowing.acquire("held", "waiter", may_wait=True), ask.Queued)
    before = knowing.describe()
    primary.restart()
    assert knowing.describe() == before
    assert set(knowing.ask(ask.Renew((("held", "holder"),))).remaining_ms) == {"holder"}
    knowing.release("held", "holder")
    issued.note(knowing.ask(ask.Poll("held", "waiter")).token)
    issued.issue(primary.url(), 1)
    assert issued.last == before.last_token + 2
    assert epoch(primary.url()) == 1


def test_maintenance_begins_no_history(dumped: Database, issued: IssuedTokens) -> None:
    """The rows are rewritten by another transaction, and say still who wrote them."""
    for task in ("vacuum freeze", "vacuum full", "vacuum (full, freeze)", "analyze", "reindex table"):
        for table in ("source", "witness", "lock", "waiter", "source_audit"):
            dumped.rows(f"{task} fencelock.{table}")
        issued.issue(dumped.url())
    assert issued.last == len(issued.tokens)
    assert epoch(dumped.url()) == 1


def kill(server: PostgresServer) -> None:
    server.kill()
    server.start()


def stop_at_once(server: PostgresServer) -> None:
    server.restart("immediate")


def kill_one_backend(server: PostgresServer) -> None:
    """Which takes all others with it: nobody knows what it did to the memory that they share."""
    with server.admin() as connection:
        before = server.log.count("all server processes terminated; reinitializing")
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        wait_until(lambda: server.log.count("all server processes terminated; reinitializing") > before)
        connection.pgconn.finish()
    server.wait_until_ready()


def test_t1_when_what_is_reserved_is_spent_more_is_reserved_in_the_same_history(
    primary: PostgresServer, issued: IssuedTokens, clients: Clients
) -> None:
    knowing = clients(primary.url())
    for _ in range(2):
        issued.issue_to(knowing)
        bound = issued.last + 2
        primary.rows("update fencelock.source set bound = %s, xid = pg_current_xact_id()::xid", bound)
        for _ in range(4):
            issued.issue_to(knowing)
        assert knowing.describe().epoch == 1
        assert knowing.describe().reserved_token > bound + 2**25
    assert issued.last == issued.tokens[0] + len(issued.tokens) + 1, "of each time, one token was not issued"


@pytest.mark.parametrize("crash", [kill, stop_at_once, kill_one_backend])
def test_t7_a_crash_begins_a_history_and_what_was_flushed_goes_on(
    primary: PostgresServer, issued: IssuedTokens, clients: Clients, crash: Callable[[PostgresServer], None]
) -> None:
    knowing = clients(primary.url())
    issued.note(knowing.token("held", "holder"))
    primary.rows("select pg_logical_emit_message(true, 'test', 'whatever was committed before is flushed now')")
    for crashes in (1, 2):
        crash(primary)
        issued.issue(primary.url())
        issued.issue_to(knowing)
        assert epoch(primary.url()) == 1 + crashes, "one history for one crash"
        assert set(knowing.ask(ask.Renew((("held", "holder"),))).remaining_ms) == {"holder"}
    assert issued.last < 2**62, "and it does not use up what there is"


@only("18")
def test_t7_tokens_that_only_the_memory_knew_are_not_issued_again(
    primary: PostgresServer, issued: IssuedTokens, clients: Clients
) -> None:
    """The server dies in the moment after each grant, before anything of it is on the disk."""
    primary.settings["wal_writer_delay"] = "10s"
    primary.restart()
    for _ in range(3):
        knowing = clients(primary.url())
        for _ in range(20):
            issued.issue_to(knowing)
        primary.crash()
    issued.issue(primary.url())


@only("18")
def test_t7_a_crash_while_the_clock_is_wrong_is_survived(
    clocked: ClockedServer, issued: IssuedTokens, clients: Clients
) -> None:
    """The clock sets a history apart from those that nobody here knows of; from those that are known the bound does."""
    server = clocked.server
    PostgresSource(server.url()).install()
    for hours in (0, -1, -24 * 365 * 60, 1, 0):
        issued.issue(server.url())
        clocked.jump(hours * 3600)
        server.crash()
        issued.issue_to(clients(server.url()))


# --- backups --------------------------------------------------------------------------------------
def test_t7_a_base_backup_that_is_started_plainly(
    primary: PostgresServer, issued: IssuedTokens, copies: Copies, clients: Clients
) -> None:
    backup = copies.base_backup(primary)
    issued.issue(primary.url(), 10)
    restored = copies.started(backup, primary)
    knowing = clients(failover_url([primary, restored]))
    issued.issue_to(knowing)
    primary.kill()
    issued.issue(restored.url())
    issued.issue_to(knowing)
    assert epoch(restored.url()) == 2


@only("18")
def test_t7_a_recovery_to_a_point_in_time(
    primary: PostgresServer, issued: IssuedTokens, copies: Copies, clients: Clients
) -> None:
    archive = copies.archive_of(primary)
    backup = copies.base_backup(primary)
    issued.issue(primary.url())
    create_restore_point(primary, "before")
    issued.issue(primary.url())
    restored = copies.recovered(backup, primary, archive, "before")
    knowing = clients(failover_url([primary, restored]))
    issued.issue_to(knowing)
    primary.kill()
    issued.issue_to(knowing)
    issued.issue(restored.url())


@only("18")
def test_t7_a_backup_from_before_a_crash_of_the_original(
    primary: PostgresServer, issued: IssuedTokens, copies: Copies, clients: Clients
) -> None:
    """The original is two histories ahead: fresh processes go on above them, and who knew them refuses."""
    backup = copies.base_backup(primary)
    for _ in range(2):
        primary.crash()
        issued.issue(primary.url())
    restored = copies.started(backup, primary)
    knowing = clients(failover_url([primary, restored]))
    issued.issue_to(knowing)
    primary.kill()
    check_refused(knowing, r"went back from epoch 3 \(history \w+\) to 1")
    issued.issue(restored.url())
    check_refused(knowing, r"went back from epoch 3 \(history \w+\) to 2")


# --- what cannot be seen --------------------------------------------------------------------------
def restored_cold(primary: PostgresServer, issued: IssuedTokens, copies: Copies) -> PostgresServer:
    """Return a copy of a stopped server's files, made before the original went on and issued more."""
    primary.stop()
    copy = copies.cold_copy(primary)
    primary.start()
    issued.issue(primary.url(), 10)
    return copy


@only("18")
def test_a_cold_copy_without_a_witness_is_not_noticed(
    primary: PostgresServer, issued: IssuedTokens, copies: Copies
) -> None:
    """The documented limit: a server that was stopped in good order, and its copy, are the same."""
    copy = restored_cold(primary, issued, copies)
    token = one_token(copy.url())
    assert token in issued.tokens, "issued before: this is why a restore ends with `fencelock epoch --raise`"


@only("18")
def test_t7_a_cold_copy_is_noticed_by_clients_that_knew_more(
    primary: PostgresServer, issued: IssuedTokens, copies: Copies, clients: Clients
) -> None:
    copy = restored_cold(primary, issued, copies)
    knowing = clients(failover_url([primary, copy]))
    issued.issue_to(knowing)
    primary.kill()
    with pytest.raises(SourceError, match=rf"issued token \d+ after {issued.last}: an older state") as caught:
        knowing.acquire("lock")
    assert REMEDY in str(caught.value)


@only("18")
@pytest.mark.parametrize("has_crashed", [False, True], ids=["one history", "a later history"])
@pytest.mark.parametrize("knows_more", [False, True], ids=["fresh process", "knowing process"])
def test_t7_raising_the_epoch_of_a_cold_copy_makes_it_good(
    primary: PostgresServer, issued: IssuedTokens, copies: Copies, clients: Clients, has_crashed: bool, knows_more: bool
) -> None:
    """Also where the original has begun a history of its own meanwhile, far above what the copy knows."""
    copy = restored_cold(primary, issued, copies)
    knowing = clients(failover_url([primary, copy]))
    if has_crashed:
        primary.crash()
        issued.issue(primary.url())
    elif knows_more:
        issued.issue_to(knowing)
    primary.kill()
    raised = (knowing if knows_more else clients(copy.url())).raise_epoch("restored")
    assert raised.last_token > issued.last
    assert raised.last_token % EPOCH_STRIDE == 0
    issued.issue(copy.url())
    issued.issue_to(knowing)
    copy.crash()
    issued.issue(copy.url())
