"""PostgreSQL as the tests of both servers see it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import psycopg

from fencelock import Sequencer
from fencelock.stores.postgres.source.codec import SQL
from fencelock_lab.servers.postgres import ADMIN, PostgresFleet, PostgresServer
from tests.sql.clients import SqlClient
from tests.sql.dialect import MakeRole, SqlDialect, empty, run
from tests.sql.postgres.fix_postgres import Database, fresh_database
from tests.sql.postgres.framing import PostgresProxy
from tests.support.guards import RESOURCE, sequencer

REFUSED = "takes writes only with its newest sealed token"


class PostgresDialect(SqlDialect):
    """A PostgreSQL server of one version."""

    name = "postgres"
    prefix = "fencelock."
    call = "SELECT fencelock."
    refused_resource = "resource {}"
    implausible = "no source can have issued"
    client_error = psycopg.Error
    lost_connection = psycopg.OperationalError
    invalid_parameter = psycopg.errors.InvalidParameterValue
    check_violation = psycopg.errors.CheckViolation
    duplicate_key = psycopg.errors.UniqueViolation
    proxy_type = PostgresProxy
    idle_limit = "SELECT extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)"
    write_after_loss = psycopg.OperationalError
    async_connection = psycopg.AsyncConnection
    async_ends: ClassVar = [lambda native: native.commit(), lambda native: native.rollback()]
    unfenced = REFUSED
    names_in_full = True
    withdraw = "SELECT fencelock.withdraw('reports')"
    no_sequencer = "22023"
    odd_setting = "SET extra_float_digits = 0"
    lock_column = "lock"
    also_forbidden: ClassVar = {
        "emptying": "TRUNCATE fencelock.mark",
        "emptying the audit": "TRUNCATE fencelock.guard_audit CASCADE",
        "an audit entry without a reason": "SELECT fencelock.write_audit('w', 'lower', 'reports', 9, 1, ' ')",
    }
    keeps_itself = ("FL009", "23514", "23503")
    is_by_admin = "role = 'postgres'"
    wait_briefly = "SET lock_timeout = '1ms'"
    commit_presented = "COMMIT"
    now_us = "SELECT fencelock.now_us()"
    acquire_tail = "null, 1000, 1000"
    schema_column = "schema"
    clock_s = "SELECT extract(epoch from clock_timestamp())::float8"
    upsert = "INSERT INTO {} VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    append = "UPDATE reports SET value = value || %s"
    audited = "SELECT token FROM fencelock.source_audit WHERE action = 'break' AND token > %s"
    unreachable_url = "postgresql://127.0.0.1:1/nowhere"
    too_many_clients = "too many clients"
    denied = (
        r"does not permit it \(permission denied for function (\w+)\): .* GRANT EXECUTE ON FUNCTION fencelock\.\1 TO …"
    )
    operators_statements = (
        "UPDATE fencelock.source SET bound = 7",
        "SELECT digest FROM fencelock.lock",
        "SELECT nextval('fencelock.token')",
        "DROP FUNCTION fencelock.release(bytea, text, bigint)",
    )
    tables = "SELECT nspname FROM pg_namespace WHERE nspname = 'fencelock'"
    objects = (
        "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg_%%'",
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace",
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
        "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
    )
    need_table = "CREATE VIEW own_need AS SELECT id FROM fencelock.{}"
    forgo_table = "DROP VIEW own_need"

    def __init__(self, fleet: PostgresFleet, version: str) -> None:
        self.fleet = fleet
        self.version = version

    # Servers and databases

    def shared(self) -> PostgresServer:
        return self.fleet.shared(self.version)

    def new_server(self) -> PostgresServer:
        return self.fleet.copied_server(self.version)

    def new_database(self, server: PostgresServer, name: str) -> Database:
        server.rows(f"CREATE DATABASE {name}")
        return Database(server, name)

    @contextmanager
    def fresh_database(
        self, fill: Callable[[Database], None] = empty, *, has_source: bool = False
    ) -> Iterator[Database]:
        with fresh_database(self.shared(), fill, has_source=has_source) as database:
            yield database

    def flush(self, database: Database) -> None:
        database.rows("SELECT pg_logical_emit_message(true, 'test', 'flushed')")

    def limited_user(self, database: Database) -> str:
        return ADMIN

    @contextmanager
    def accounts(self, database: Database) -> Iterator[None]:
        for role in ("installer", "worker"):
            database.rows(f"CREATE ROLE {role} LOGIN")
        database.rows(f"ALTER DATABASE {database.name} OWNER TO installer")
        yield
        database.rows(f"ALTER DATABASE {database.name} OWNER TO {ADMIN}")
        for role in ("worker", "installer"):
            database.rows(f"DROP OWNED BY {role} CASCADE")
            database.rows(f"DROP ROLE {role}")

    @contextmanager
    def roles(self, database: Database) -> Iterator[MakeRole]:
        made: list[str] = []

        def make(*groups: str) -> str:
            role = f"role{len(made)}_{database.name}"
            database.rows(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA fencelock TO {role}")
            database.rows(
                f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON reports TO {role}; "
                f"GRANT USAGE ON SCHEMA public TO {role}"
            )
            for group in groups:
                database.rows(f"GRANT {group} TO {role}")
            made.append(role)
            return role

        yield make
        for role in made:
            database.rows(f"DROP OWNED BY {role}; DROP ROLE {role}")

    def permit_worker(self, database: Database) -> None:
        with database.connect(user="installer") as native:
            native.execute("GRANT USAGE ON SCHEMA fencelock TO worker")

    def permit_to_connect(self, database: Database, account: str) -> None:
        """Do nothing: every role may connect."""

    # Sessions

    @contextmanager
    def session(self, url: str) -> Iterator[psycopg.Connection]:
        with psycopg.connect(url, autocommit=True) as native:
            yield native

    @contextmanager
    def client(self, database: Database, level: str, **params: Any) -> Iterator[psycopg.Connection]:
        options = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
        with database.connect(options=options, **params) as native:
            yield native

    def number_of(self, native: psycopg.Connection) -> int:
        return native.info.backend_pid

    def sessions(self, database: Database) -> set[int]:
        statement = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return {pid for (pid,) in database.rows(statement)}

    def session_ports(self, database: Database) -> dict[int, int]:
        statement = "SELECT pid, client_port FROM pg_stat_activity WHERE datname = current_database()"
        return dict(database.rows(f"{statement} AND client_port IS NOT NULL"))

    def end_session(self, database: Database, number: int) -> None:
        database.value("SELECT pg_terminate_backend(%s)", number)

    # Who waits inside the server

    def blocked(self, database: Database) -> int:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(database.value(waiting))

    def is_blocked(self, database: Database, native: psycopg.Connection | None = None) -> bool:
        if native is None:
            return self.blocked(database) > 0
        return bool(database.value("SELECT cardinality(pg_blocking_pids(%s)) > 0", self.number_of(native)))

    # The source

    def acquire_late(self, native: psycopg.Connection, seen: Any, parameters: tuple[Any, ...], mode: str) -> str:
        [row] = run(native, SQL.acquire, *parameters, mode, None, 1000, 1000)
        return str(row[0])

    def impatient(self, url: str) -> SqlClient:
        client = SqlClient(url)
        client.describe()
        client.connection._request_timeout_s = 0.1  # A new connection might take longer.
        return client

    def limit_statements(self, client: SqlClient) -> None:
        client.native.execute("SET statement_timeout = '100ms'")

    def arrivals(self, database: Database, proxy: PostgresProxy) -> int:
        return proxy.counts["round trips"]

    def wait_for_abandoned(self, database: Database, number: int) -> None:
        """Do nothing: a request that has arrived was also done."""

    def rows_touched(self, native: psycopg.Connection, database: Database) -> int:
        native.execute("SELECT pg_stat_force_next_flush()")
        return int(database.value(READ_ROWS))

    # The guard

    def present(self, native: psycopg.Connection, presented: Sequencer, *resources: str) -> None:
        """Present a token for all resources by one call."""
        native.execute("SELECT fencelock.present(%s, VARIADIC %s)", (str(presented), list(resources)))

    def seal_in_steps(self, native: psycopg.Connection, token: int) -> None:
        native.execute("BEGIN")
        native.execute("SELECT fencelock.seal(%s, %s)", (str(sequencer(token)), RESOURCE))

    def overtaken(self, level: str) -> str:
        return "FL002" if level == "read committed" else "40001"

    def after_error(self, native: psycopg.Connection) -> None:
        native.execute("ROLLBACK")

    def schema_of(self, database: Database) -> str:
        return "public"

    def has_ended(self, native: psycopg.Connection, error: Any) -> bool:
        return error.sqlstate is None or native.closed

    def code_of(self, error: BaseException) -> str:
        assert isinstance(error, psycopg.Error)
        return str(error.sqlstate)

    def change_rows(self, native: psycopg.Connection) -> None:
        native.row_factory = psycopg.rows.dict_row

    def guard_params(self, level: str) -> dict[str, str]:
        escaped = level.replace(" ", "\\ ")
        return {"options": f"-c default_transaction_isolation={escaped}"}

    def server_level(self, level: str) -> nullcontext[None]:
        return nullcontext()

    def level_of(self, native: psycopg.Connection) -> str:
        [(level,)] = run(native, "SHOW transaction_isolation")
        return str(level)

    def protected_tables(self, database: Database) -> list[Any]:
        return database.rows("SELECT name FROM fencelock.protected_table")


READ_ROWS = """
    SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) + n_tup_ins + n_tup_upd + n_tup_del)
    FROM pg_stat_user_tables WHERE schemaname = 'fencelock'
"""
