"""A login that the server refuses is an error that only a person can mend, and not a server that is away (K1)."""

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

import fencelock
from fencelock import SourceError, SourceUnavailableError
from fencelock.stores.postgres.connection.errors import map_connect_error
from fencelock.stores.postgres.connection.url import parse_url
from fencelock_lab.servers.mariadb import MariaDBServer
from fencelock_lab.servers.postgres import PostgresServer
from tests.fix_servers import fresh_name
from tests.sql.clients import PublicSource
from tests.sql.dialect import SqlDialect
from tests.sql.marks import kinds

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_stray_threads")]
PASSWORD = "not-this-one"


def check_refused(kind: str, url: str) -> None:
    """Check that a lock of this URL ends at once, with what to correct and without a secret."""
    with PublicSource(kind, url) as public:
        with pytest.raises(SourceError, match=r"refused the login \(.*: correct the user, the password") as caught:
            public.do(public.source.lock("lock").acquire())
        assert not isinstance(caught.value, SourceUnavailableError)
        assert caught.value.definite
        assert PASSWORD not in str(caught.value)
        assert "\n" not in str(caught.value)


@kinds
def test_an_unknown_user_is_told_what_to_correct(database: Any, kind: str) -> None:
    check_refused(kind, database.url(user="nobody_of_this_name"))


@kinds
def test_an_unknown_database_is_told_what_to_correct(database: Any, kind: str) -> None:
    check_refused(kind, database.url().replace(database.name, "no_such_database"))


def test_a_leader_whose_login_is_refused_ends(database: Any) -> None:
    with (
        fencelock.connect(database.url(user="nobody_of_this_name")) as source,
        pytest.raises(SourceError, match="refused the login"),
    ):
        next(source.lead("lock"))


@kinds
@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("sslmode=requir", 'invalid sslmode value: "requir"'),
        ("target_session_attrs=some", 'invalid target_session_attrs value: "some"'),
        ("ssl_min_protocol_version=TLS", 'invalid "ssl_min_protocol_version" value: "TLS"'),
        ("port=99999", 'invalid port number: "99999"'),
        ("host=a,b&hostaddr=127.0.0.1,127.0.0.1&port=1,2&sslmode=on", 'invalid sslmode value: "on"'),
        ("sslmode=hunter2@host/db", "invalid sslmode value"),
    ],
)
def test_postgres_names_a_value_that_libpq_refuses(kind: str, query: str, value: str) -> None:
    with PublicSource(kind, f"postgresql://127.0.0.1:1/app?{query}") as public:
        with pytest.raises(SourceError, match=re.escape(f"({value}): correct it in the URL")) as caught:
            public.do(public.source.lock("lock").acquire())
        assert not isinstance(caught.value, SourceUnavailableError)
        assert "hunter2" not in str(caught.value)


def test_postgres_of_several_servers_one_with_a_right_port_may_come_back() -> None:
    url = "postgresql:///app?host=127.0.0.1,127.0.0.1&port=99999,1"
    with fencelock.connect(url) as source, pytest.raises(SourceUnavailableError, match="cannot be reached"):
        source.lock("lock").acquire()


def test_of_several_servers_one_that_is_away_may_admit_the_login_later(sql: SqlDialect, database: Any) -> None:
    port = f":{sql.shared().port}"
    url = database.url(user="nobody_of_this_name").replace(port, f"{port},127.0.0.1:1")
    with fencelock.connect(url) as source, pytest.raises(SourceUnavailableError, match="cannot be reached"):
        source.lock("lock").acquire()


@kinds
def test_mysql_refuses_a_wrong_password(mysql_server: MariaDBServer, kind: str) -> None:
    keeper = fresh_name("keeper")
    mysql_server.rows(f"CREATE USER {keeper} IDENTIFIED BY 'right'")
    mysql_server.rows(f"GRANT ALL ON mysql.* TO {keeper}")
    check_refused(kind, mysql_server.url(user=keeper, password=PASSWORD))
    mysql_server.rows(f"DROP USER {keeper}")


@kinds
@pytest.mark.parametrize("postgres_kind", ["15"], indirect=True)
def test_postgres_refuses_a_wrong_password_or_none_and_who_is_not_in_its_list(
    own_postgres: PostgresServer, kind: str
) -> None:
    own_postgres.rows("CREATE ROLE keeper LOGIN PASSWORD 'right'")
    rules = (
        "host all keeper 127.0.0.1/32 scram-sha-256",
        "host all postgres 127.0.0.1/32 trust",
        "local all all trust",
    )
    Path(own_postgres.value("SHOW hba_file")).write_text("\n".join(rules) + "\n")
    url = own_postgres.url()
    own_postgres.restart()
    for login in (f"keeper:{PASSWORD}", "keeper", "stranger"):
        check_refused(kind, url.replace("postgres@", f"{login}@"))


# --- libpq's words ------------------------------------------------------------------------------------------------
def mapped(text: str, url: str = "postgresql://a:5432/shop") -> SourceError:
    return map_connect_error(psycopg.OperationalError(text), parse_url(url))


AT_A = 'connection failed: connection to server at "a", port 5432 failed: '
HEAD = "Multiple connection attempts failed. All failures were:"
NOBODY = 'FATAL:  role "nobody" does not exist'
AWAY = "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?"


def attempt(host: str, address: str, failure: str) -> str:
    return f"\n- host: {host!r}, port: '5432', hostaddr: {address!r}: {AT_A}{failure}"


@pytest.mark.parametrize(
    "failure",
    [
        "FATAL:  the database system is starting up",
        "FATAL:  the database system is shutting down",
        "FATAL:  sorry, too many clients already",
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'FATAL:  too many connections for role "app"',
        'FATAL:  database "shop" is not currently accepting connections',
        "FATAL:  Rolle »nobody« existiert nicht",
        f"{NOBODY}\n{AT_A}FATAL:  the database system is starting up",
        AWAY,
    ],
)
def test_what_may_pass_by_itself_stays_unavailable(failure: str) -> None:
    assert isinstance(mapped(AT_A + failure), SourceUnavailableError)


@pytest.mark.parametrize(
    "failure",
    [
        NOBODY,
        'FATAL:  role "app" is not permitted to log in',
        'FATAL:  password authentication failed for user "app"\nDETAIL:  See the log.',
        'FATAL:  Peer authentication failed for user "app"',
        'FATAL:  no pg_hba.conf entry for host "::1", user "app", database "shop", no encryption',
        'FATAL:  pg_hba.conf rejects connection for host "::1", user "app", database "shop", no encryption',
        'FATAL:  permission denied for database "shop"\nDETAIL:  User does not have CONNECT privilege.',
        "fe_sendauth: no password supplied",
        "FATAL:  no such database: shop",
    ],
)
def test_a_refusal_is_known_by_its_words(failure: str) -> None:
    assert type(mapped(AT_A + failure)) is SourceError


def test_of_the_addresses_of_one_server_one_refusal_is_enough() -> None:
    text = AT_A + NOBODY + "\n" + HEAD + attempt("localhost", "::1", AWAY) + attempt("localhost", "127.0.0.1", NOBODY)
    assert type(mapped(text, "postgresql://localhost/shop")) is SourceError


def test_of_two_servers_both_must_refuse() -> None:
    url = "postgresql://a,b/shop"
    both = AT_A + NOBODY + "\n" + HEAD + attempt("a", "10.0.0.1", NOBODY) + attempt("b", "10.0.0.2", NOBODY)
    assert type(mapped(both, url)) is SourceError
    one = AT_A + NOBODY + "\n" + HEAD + attempt("a", "10.0.0.1", AWAY) + attempt("b", "10.0.0.2", NOBODY)
    assert isinstance(mapped(one, url), SourceUnavailableError)
    assert isinstance(mapped(AT_A + NOBODY, url), SourceUnavailableError)


def test_libpqs_lines_are_joined_to_sentences() -> None:
    assert str(mapped(AT_A + AWAY)).endswith(
        "failed: Connection refused. Is the server running on that host and accepting TCP/IP connections?"
    )
    lost = "server closed the connection unexpectedly\n\tThis probably means the server terminated abnormally\n\tbefore"
    assert "unexpectedly. This probably means the server terminated abnormally before" in str(mapped(lost))
