"""What the fixtures around a server promise: a pooler, TLS, and a clock that jumps."""

import psycopg
import pytest

from tests.sql.clock import NEAR_S, ClockedServer
from tests.sql.postgres.fix_pgbouncer import PgBouncer
from tests.sql.postgres.fix_postgres import Database
from tests.sql.postgres.fix_tls import TlsServer

pytestmark = [pytest.mark.process, pytest.mark.server_wide]

HOUR_S = 3600

BACKEND = "select pg_backend_pid()"


# The pooler


def test_through_the_pooler_a_transaction_has_one_backend(pgbouncer: PgBouncer, database: Database) -> None:
    with psycopg.connect(pgbouncer.url(database.url())) as connection:
        first, second = (connection.execute(BACKEND).fetchone() for _ in range(2))
    assert first == second


def test_the_pooler_gives_a_backend_to_each_transaction_anew(pgbouncer: PgBouncer, database: Database) -> None:
    url = pgbouncer.url(database.url())
    with psycopg.connect(url, autocommit=True) as idle, psycopg.connect(url) as one, psycopg.connect(url) as two:
        before = idle.execute(BACKEND).fetchone()
        pair = {connection.execute(BACKEND).fetchone() for connection in (one, two)}
        assert len(pair) == 2
        assert before in pair


def test_a_listener_behind_the_pooler_hears_nothing(pgbouncer: PgBouncer, database: Database) -> None:
    with psycopg.connect(pgbouncer.url(database.url()), autocommit=True) as connection:
        connection.execute("listen news")
        database.rows("notify news")
        assert list(connection.notifies(timeout=0.5)) == []


def test_every_role_may_use_the_pooler(pgbouncer: PgBouncer, database: Database) -> None:
    database.rows("drop role if exists pooled")
    database.rows("create role pooled login")
    with psycopg.connect(pgbouncer.url(database.url(user="pooled"))) as connection:
        assert connection.execute("select current_user").fetchone() == ("pooled",)
    database.rows("drop role pooled")


# TLS


def test_a_certificate_is_verified_by_its_authority_and_name(tls_postgres: TlsServer) -> None:
    url = tls_postgres.server.url(sslmode="verify-full", sslrootcert=str(tls_postgres.authority))
    with psycopg.connect(url) as connection:
        in_use = connection.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchone()
    assert in_use == (True,)


def test_a_certificate_of_another_authority_is_refused(tls_postgres: TlsServer) -> None:
    url = tls_postgres.server.url(sslmode="verify-full", sslrootcert=str(tls_postgres.other_authority))
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        psycopg.connect(url)


def test_a_certificate_for_another_name_is_refused(tls_postgres: TlsServer) -> None:
    url = tls_postgres.server.url(sslmode="verify-full", sslrootcert=str(tls_postgres.authority))
    with pytest.raises(psycopg.OperationalError, match="does not match host name"):
        psycopg.connect(url, host="elsewhere.test", hostaddr="127.0.0.1")


def test_a_server_without_tls_is_refused_where_tls_is_required(database: Database) -> None:
    with pytest.raises(psycopg.OperationalError, match="server does not support SSL"):
        psycopg.connect(database.url(sslmode="require"))


# A clock that jumps


@pytest.mark.parametrize("hours", [1, -1])
def test_the_clock_jumps_within_an_open_connection(clocked: ClockedServer, hours: int) -> None:
    question = "select extract(epoch from clock_timestamp())::float8"
    with clocked.server.admin() as connection:
        [(before,)] = connection.execute(question).fetchall()
        clocked.jump(hours * HOUR_S)
        [(after,)] = connection.execute(question).fetchall()
    assert after - before == pytest.approx(hours * HOUR_S, abs=NEAR_S)


def test_the_clock_comes_back(clocked: ClockedServer) -> None:
    clocked.jump(HOUR_S)
    clocked.jump(0)
    assert clocked.ahead_s() == pytest.approx(0, abs=NEAR_S)


def test_the_clock_stays_where_it_is_over_a_crash(clocked: ClockedServer) -> None:
    clocked.jump(HOUR_S)
    clocked.server.crash()
    assert clocked.ahead_s() == pytest.approx(HOUR_S, abs=NEAR_S)


def test_waiting_takes_true_seconds(clocked: ClockedServer) -> None:
    """A time limit of the server is over in time though its clock stands an hour back."""
    clocked.jump(-HOUR_S)
    with clocked.server.admin() as connection:
        connection.execute("set statement_timeout = '100 ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("select pg_sleep(60)")
