"""The proxy passes every byte unchanged, and loses exactly the request or reply that it was told to lose."""

import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import generators

from fencelock_lab.servers.postgres import PostgresServer
from tests.sql.postgres.fix_postgres import Database
from tests.sql.postgres.framing import PostgresProxy
from tests.support.helpers import wait_until

pytestmark = [pytest.mark.process, pytest.mark.server_wide]


@pytest.fixture
def url(proxy: PostgresProxy, database: Database) -> str:
    """Return the address of the test's database, through the proxy; it has a table `noted (value int)`."""
    database.rows("create table noted (value int)")
    return proxy.url(database.url())


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection]:
    """Yield an open connection through the proxy, in autocommit mode."""
    with psycopg.connect(url, autocommit=True) as the_connection:
        yield the_connection


def note(connection: psycopg.Connection, value: int) -> None:
    connection.execute("insert into noted values (%s)", [value])


def noted(database: Database) -> list[int]:
    return [value for (value,) in database.rows("select value from noted order by value")]


# It passes everything


def test_large_rows_pass_in_both_directions(connection: psycopg.Connection) -> None:
    data = bytes(range(256)) * 20_000
    [(echo,)] = connection.execute("select %b::bytea", [data]).fetchall()
    assert echo == data


def test_errors_of_the_server_pass_and_the_connection_goes_on(connection: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("select 1 / %s", [0])
    assert connection.execute("select 1").fetchall() == [(1,)]


def test_notifications_pass_to_an_idle_connection(connection: psycopg.Connection, database: Database) -> None:
    connection.execute("listen news")
    database.rows("notify news, 'heard'")
    [notification] = connection.notifies(timeout=30, stop_after=1)
    assert notification.payload == "heard"


def test_a_cancellation_passes(connection: psycopg.Connection, database: Database) -> None:
    def cancel() -> None:
        wait_until(lambda: database.value("select count(*) from pg_stat_activity where wait_event = 'PgSleep'"))
        connection.cancel_safe()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("select pg_sleep(100)")
    thread.join()


# It counts


def test_a_simple_query_is_one_request_and_one_round_trip(connection: psycopg.Connection, proxy: PostgresProxy) -> None:
    before = proxy.counts
    connection.execute("select 1")
    assert proxy.counts - before == {"requests": 1, "round trips": 1, "Query": 1}
    assert proxy.requests[-1].statements == ["select 1"]


def test_a_query_with_parameters_is_one_request(connection: psycopg.Connection, proxy: PostgresProxy) -> None:
    before = proxy.counts
    note(connection, 1)
    expected = {"requests": 1, "round trips": 1, "Parse": 1, "Bind": 1, "Describe": 1, "Execute": 1, "Sync": 1}
    assert proxy.counts - before == expected
    assert proxy.requests[-1].messages == "PBDES"
    assert proxy.requests[-1].statements == ["insert into noted values ($1)"]


def test_a_transaction_is_counted_statement_by_statement(connection: psycopg.Connection, proxy: PostgresProxy) -> None:
    before = proxy.counts
    with connection.transaction():
        note(connection, 1)
        connection.execute("select 1")
    assert (proxy.counts - before)["round trips"] == 4
    texts = [request.statements for request in proxy.requests[-4:]]
    assert texts == [["BEGIN"], ["insert into noted values ($1)"], ["select 1"], ["COMMIT"]]


def test_a_pipeline_is_one_round_trip_of_many_statements(connection: psycopg.Connection, proxy: PostgresProxy) -> None:
    before = proxy.counts
    with connection.pipeline():
        for value in range(3):
            note(connection, value)
    counted = proxy.counts - before
    assert (counted["Execute"], counted["Sync"], counted["round trips"]) == (3, 1, 1)


@pytest.mark.parametrize("is_extended", [False, True], ids=["simple", "extended"])
def test_a_copy_is_one_request(
    connection: psycopg.Connection, proxy: PostgresProxy, database: Database, is_extended: bool
) -> None:
    before = proxy.counts
    statement = b"copy noted from stdin"
    if is_extended:
        connection.pgconn.send_query_params(statement, None)
    else:
        connection.pgconn.send_query(statement)
    connection.wait(generators.execute(connection.pgconn))
    connection.wait(generators.copy_to(connection.pgconn, b"7\n8\n"))
    connection.wait(generators.copy_end(connection.pgconn, None))
    assert proxy.requests[-1].messages[0] == ("P" if is_extended else "Q")
    note(connection, 9)
    assert (proxy.counts - before)["requests"] == 2
    assert (proxy.counts - before)["round trips"] == 2
    assert noted(database) == [7, 8, 9]


# It loses


def test_after_a_dropped_reply_the_server_has_done_it(
    connection: psycopg.Connection, proxy: PostgresProxy, database: Database
) -> None:
    fault = proxy.drop_reply()
    with pytest.raises(psycopg.OperationalError):
        note(connection, 1)
    assert fault.has_happened
    assert noted(database) == [1]


def test_after_a_dropped_request_the_server_has_not_done_it(
    connection: psycopg.Connection, proxy: PostgresProxy, database: Database
) -> None:
    fault = proxy.drop_request()
    with pytest.raises(psycopg.OperationalError):
        note(connection, 1)
    assert fault.has_happened
    wait_until(lambda: database.value("select count(*) from pg_stat_activity where datname = current_database()") == 1)
    assert noted(database) == []


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_exactly_the_nth_reply_is_dropped(
    connection: psycopg.Connection, proxy: PostgresProxy, database: Database, nth: int
) -> None:
    proxy.drop_reply(nth)
    for value in range(1, nth):
        note(connection, value)
    with pytest.raises(psycopg.OperationalError):
        note(connection, nth)
    assert noted(database) == list(range(1, nth + 1))


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_exactly_the_nth_request_is_dropped(
    connection: psycopg.Connection, proxy: PostgresProxy, database: Database, nth: int
) -> None:
    proxy.drop_request(nth)
    for value in range(1, nth):
        note(connection, value)
    with pytest.raises(psycopg.OperationalError):
        note(connection, nth)
    assert noted(database) == list(range(1, nth))


def test_requests_are_numbered_over_all_connections(
    connection: psycopg.Connection, proxy: PostgresProxy, url: str, database: Database
) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        proxy.drop_request(2)
        note(other, 1)
        with pytest.raises(psycopg.OperationalError):
            note(connection, 2)
        note(other, 3)
    assert noted(database) == [1, 3]


def test_not_a_byte_of_a_dropped_reply_arrives_and_the_server_goes_on_to_the_end(
    proxy: PostgresProxy, url: str, database: Database
) -> None:
    statement = """
        do $$ begin
            raise notice 'the reply begins here';
            perform pg_sleep(0.3);
            insert into noted values (1);
        end $$
    """
    heard: list[psycopg.errors.Diagnostic] = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.add_notice_handler(heard.append)
        proxy.drop_reply()
        with pytest.raises(psycopg.OperationalError):
            connection.execute(statement)
    assert heard == []
    assert noted(database) == [1]


def test_after_a_dropped_commit_the_transaction_is_committed(
    connection: psycopg.Connection, proxy: PostgresProxy, database: Database
) -> None:
    proxy.drop_reply(3)
    with pytest.raises(psycopg.OperationalError), connection.transaction():
        note(connection, 1)
    assert noted(database) == [1]


def test_a_dropped_request_ends_the_transaction_that_it_was_in(
    connection: psycopg.Connection, proxy: PostgresProxy, database: Database
) -> None:
    proxy.drop_request(3)
    with pytest.raises(psycopg.OperationalError), connection.transaction():
        note(connection, 1)
    assert noted(database) == []
    # No lock of it is left.
    database.rows("drop table noted")


def test_a_reply_that_never_came_counts_as_dropped(connection: psycopg.Connection, proxy: PostgresProxy) -> None:
    fault = proxy.drop_reply()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select pg_terminate_backend(pg_backend_pid())")
    fault.wait()


def test_replies_before_the_dropped_one_arrive_in_a_pipeline(
    connection: psycopg.Connection, proxy: PostgresProxy, database: Database
) -> None:
    proxy.drop_reply(2)
    cursor = connection.cursor()

    def note_two() -> None:
        with connection.pipeline() as pipeline:
            cursor.execute("insert into noted values (1) returning value")
            pipeline.sync()
            connection.execute("insert into noted values (2)")

    with pytest.raises(psycopg.OperationalError):
        note_two()
    assert cursor.fetchall() == [(1,)]
    assert noted(database) == [1, 2]


# It holds


def test_a_held_request_reaches_the_server_when_released(
    connection: psycopg.Connection, proxy: PostgresProxy, database: Database
) -> None:
    fault = proxy.hold_request()
    writer = threading.Thread(target=note, args=(connection, 1))
    writer.start()
    fault.wait()
    assert noted(database) == []
    fault.release()
    writer.join()
    assert noted(database) == [1]


def test_a_held_request_is_done_though_its_client_is_gone(proxy: PostgresProxy, url: str, database: Database) -> None:
    connection = psycopg.connect(url, autocommit=True)
    fault = proxy.hold_request()
    connection.pgconn.send_query(b"insert into noted values (1)")
    fault.wait()
    connection.close()
    assert noted(database) == []
    fault.release()
    wait_until(lambda: noted(database) == [1])


def test_a_held_reply_arrives_when_released(
    connection: psycopg.Connection, proxy: PostgresProxy, database: Database
) -> None:
    fault = proxy.hold_reply()
    writer = threading.Thread(target=note, args=(connection, 1))
    writer.start()
    fault.wait()
    assert noted(database) == [1]
    assert writer.is_alive()
    fault.release()
    writer.join()


def test_a_reply_that_drips_arrives_to_its_end(connection: psycopg.Connection, proxy: PostgresProxy) -> None:
    proxy.drip_s = 0.001
    for number in range(2):
        assert connection.execute("select %s", [number]).fetchall() == [(number,)]


def test_a_fault_that_no_request_meets_has_not_happened(connection: psycopg.Connection, proxy: PostgresProxy) -> None:
    fault = proxy.drop_reply(3)
    connection.execute("select 1")
    connection.execute("select 2")
    assert not fault.has_happened
    with pytest.raises(AssertionError, match="no request came to drop reply"):
        fault.wait(timeout=0)


# Whole connections


def test_a_cut_ends_every_connection_and_new_ones_work(proxy: PostgresProxy, url: str) -> None:
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        proxy.cut()
        for connection in (first, second):
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
    with psycopg.connect(url) as third:
        assert third.execute("select 1").fetchall() == [(1,)]


def test_new_connections_are_refused_and_open_ones_stay(
    connection: psycopg.Connection, proxy: PostgresProxy, url: str
) -> None:
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError, match="Connection refused"):
        psycopg.connect(url)
    assert connection.execute("select 1").fetchall() == [(1,)]
    proxy.accept()
    with psycopg.connect(url) as other:
        assert other.execute("select 2").fetchall() == [(2,)]


def test_a_frozen_proxy_passes_nothing_until_it_is_thawed(
    connection: psycopg.Connection, proxy: PostgresProxy, database: Database
) -> None:
    proxy.freeze()
    connection.pgconn.send_query(b"insert into noted values (1)")
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(proxy.url(database.url()), connect_timeout=2)
    assert noted(database) == []
    proxy.thaw()
    wait_until(lambda: noted(database) == [1])
    connection.close()


def test_the_end_of_the_server_is_passed_on(own_postgres: PostgresServer) -> None:
    with PostgresProxy(own_postgres.port) as proxy, psycopg.connect(proxy.url(own_postgres.url())) as connection:
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(proxy.url(own_postgres.url()))
        own_postgres.start()
        psycopg.connect(proxy.url(own_postgres.url())).close()
