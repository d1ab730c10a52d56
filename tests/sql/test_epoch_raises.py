"""The rule T7 on an SQL server: no grant slips through while an operator raises the epoch, or a recovery does."""

from typing import Any

import pytest

from fencelock.protocol import source_requests as ask
from tests.sql.clients import SqlClient
from tests.sql.dialect import SqlDialect
from tests.sql.guarded import Step
from tests.sql.interleaving import holding, raising_the_epoch, wait_until_blocked
from tests.sql.marks import on_mysql, on_postgres

pytestmark = pytest.mark.server_wide


@on_postgres
def test_t7_a_grant_that_a_raise_has_to_wait_for_is_ended_by_it(
    sql: SqlDialect, url: str, client: SqlClient, database: Any
) -> None:
    client.one_token("other")
    before = client.describe()
    parameters = "'lock', 'slow', 'tester', 60000, 9000000000000000, 'try', null, 1000, 1000"
    with holding(sql, database, f"SELECT fencelock.acquire({parameters})"):
        raising = Step(SqlClient(url).raise_epoch)
        wait_until_blocked(sql, database, 1)
    check_ended(client, "lock", before.epoch + 1, raising)


@on_mysql
@pytest.mark.parametrize("lock", ["lock", "a new lock"])
def test_t7_a_grant_that_waits_for_its_token_when_a_raise_comes_gets_it_and_is_ended(
    sql: SqlDialect, url: str, client: SqlClient, database: Any, lock: str
) -> None:
    last = client.one_token()
    before = client.describe()
    with holding(sql, database, sql.hold_source):
        granting = Step(SqlClient(url).token, lock, "slow")
        wait_until_blocked(sql, database, 1)
        raising = Step(SqlClient(url).raise_epoch)
        wait_until_blocked(sql, database, 2)
    assert granting.end() == last + 1
    check_ended(client, lock, before.epoch + 1, raising)


def check_ended(client: SqlClient, lock: str, epoch: int, raising: Step) -> None:
    """Assert that the raise has ended the claim `slow`, and that its holder learns why."""
    assert raising.end().epoch == epoch
    assert not client.ask(ask.Inspect(lock)).is_held
    assert "epoch was raised: a test" in client.ask(ask.Renew(((lock, "slow"),))).lost["slow"]


@pytest.mark.parametrize("lock", ["lock", "a new lock"])
def test_t7_a_grant_that_waits_for_a_raise_is_of_the_new_history(
    sql: SqlDialect, url: str, client: SqlClient, database: Any, lock: str
) -> None:
    """On MySQL it has decided in the old history, and waits for its token; the raise is before it."""
    client.one_token()
    with raising_the_epoch(sql, database, url) as already:
        waiting = Step(SqlClient(url).token, lock)
        wait_until_blocked(sql, database, already + 1)
    token = waiting.end()
    assert token > 2**40
    assert token > client.describe().last_token - 2
    assert client.describe().epoch == 2


def test_t7_a_waiter_of_the_old_epoch_loses_its_place(client: SqlClient) -> None:
    client.token("lock", "holder")
    for number in range(3):
        client.acquire("lock", f"waiter{number}", may_wait=True)
    client.raise_epoch()
    assert client.ask(ask.Inspect("lock")).waiters == ()
    assert client.token() > 2**40
    for number in range(3):
        assert client.ask(ask.Poll("lock", f"waiter{number}")) == ask.ClaimEnded()


@pytest.mark.parametrize("sql_server", ["postgres18"], indirect=True)
def test_t7_one_history_for_one_recovery_however_many_notice_it(
    sql: SqlDialect, url: str, client: SqlClient, database: Any
) -> None:
    last = client.one_token()
    clients = [SqlClient(url) for _ in range(6)]
    for each in clients:
        each.describe()
    database.rows("TRUNCATE fencelock.witness")  # As any recovery does.
    with holding(sql, database, sql.hold_source):
        asked = [Step(each.one_token, f"lock{number}") for number, each in enumerate(clients)]
        wait_until_blocked(sql, database, len(clients))
    tokens = [each.end() for each in asked]
    assert len(set(tokens)) == len(tokens)
    assert min(tokens) > last
    assert client.describe().epoch == 2
