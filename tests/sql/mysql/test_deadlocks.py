"""Many requests at once on a MySQL source: the server ends no deadlock, and a statement that it ends is in doubt."""

import itertools
import threading

import pytest

import fencelock
from fencelock import OutcomeUnknownError
from fencelock.protocol import source_requests as ask
from tests.sql.clients import SqlClient
from tests.sql.mysql.dialect import MySQLDialect
from tests.sql.mysql.fix_mysql import Database
from tests.support.helpers import wait_until

pytestmark = [pytest.mark.server_wide, pytest.mark.process]


def test_a_statement_that_the_server_broke_off_may_have_happened(
    sql: MySQLDialect, url: str, database: Database
) -> None:
    """KILL QUERY may come between a routine's commit and its answer: nobody can tell."""
    client = SqlClient(url)
    client.one_token()
    number = client.native.thread_id()
    errors: list[BaseException] = []

    def ask_for_it() -> None:
        try:
            client.acquire("lock", "claim")
        except OutcomeUnknownError as error:
            errors.append(error)

    with database.connect(autocommit=False) as side, side.cursor() as cursor:
        cursor.execute("select 1 from fencelock_lock where name = 'lock' for update")
        thread = threading.Thread(target=ask_for_it)
        thread.start()
        wait_until(lambda: sql.blocked(database))
        database.rows(f"kill query {number}")
        thread.join(30)
    assert len(errors) == 1
    client.close()
    assert SqlClient(url).ask(ask.Inspect("lock")).token == 1


@pytest.mark.parametrize("renewed_too", [(), ("lock2", "lock0", "lock1")], ids=["its own", "others' too"])
def test_everything_at_once_on_few_locks_does_no_harm(
    url: str, database: Database, renewed_too: tuple[str, ...]
) -> None:
    """The server counts the deadlocks that it had to end: none, unless batches name locks that others hold."""
    shall_end = threading.Event()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            client = SqlClient(url)
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

    before = _deadlocks(database)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: errors or (database.value("select token from fencelock_source") % 2**40 > 10 and
               database.value("select epoch from fencelock_source") > 12))  # fmt: skip
    shall_end.set()
    for thread in threads:
        thread.join(30)
    assert not [error for error in errors if not isinstance(error, fencelock.SourceError)], errors
    assert not errors, errors
    assert renewed_too or _deadlocks(database) == before


def test_batches_in_any_order_never_wait_for_each_other(url: str, database: Database) -> None:
    leases = [(f"lock{number}", f"claim{number}") for number in range(50)]
    clients = [SqlClient(url) for _ in range(2)]
    for lease in leases:
        clients[0].token(*lease)
    before = _deadlocks(database)
    lost: list[str] = []

    def renew(client: SqlClient, batch: list[tuple[str, str]]) -> None:
        for _ in range(100):
            lost.extend(client.ask(ask.Renew(tuple(batch))).lost)

    batches = leases, leases[::-1]
    threads = [threading.Thread(target=renew, args=each) for each in zip(clients, batches, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert lost == []
    assert _deadlocks(database) == before
    for client in clients:
        client.close()


def _deadlocks(database: Database) -> int:
    statement = "select variable_value from information_schema.global_status where variable_name = 'innodb_deadlocks'"
    return int(database.value(statement))
