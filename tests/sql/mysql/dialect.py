"""MySQL as the tests of both servers see it."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import aiomysql
import pymysql

from fencelock import GuardError
from fencelock.stores.mysql.connection.client import FORKS
from fencelock.stores.mysql.connection.opening import open_connection
from fencelock.stores.mysql.connection.url import parse_url
from fencelock.stores.mysql.source.codec import SQL, answer_of
from fencelock_lab.servers.mariadb import MariaDBFleet, MariaDBServer
from tests.sql.clients import SqlClient
from tests.sql.dialect import MakeRole, SqlDialect, empty, install, run, run_async
from tests.sql.mysql.fix_mysql import Database, fresh_mysql_database
from tests.sql.mysql.framing import MySQLProxy
from tests.support.guards import RESOURCE, sequencer

UNFENCED = "FL001 no token presented"
DEADLOCK = 1213
SIGNALLED = 1644
"""The server's own number for an error that a routine has raised."""
ENDED = 1792
"""The server's own number for a write in a transaction that is read-only."""
SHOWN_ANEW_S = 0.15
"""The server shows the same transactions again to a client that looks more than ten times a second."""
STATUS = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = %s"


def code_of(error: BaseException) -> str:
    """Return the SQLSTATE of a refusal, which its text begins with as well."""
    assert isinstance(error, pymysql.Error)
    number, text = error.args
    found = re.match(r"(FL0\d\d) ", text)
    assert number == SIGNALLED, error
    assert found is not None, error
    assert error.sqlstate == found.group(1)
    assert len(text) <= 128
    return found.group(1)


class MySQLDialect(SqlDialect):
    """A MariaDB server."""

    name = "mysql"
    prefix = "fencelock_"
    call = "CALL fencelock_"
    refused_resource = "resource '{}'"
    implausible = "above ceiling"
    client_error = pymysql.Error
    lost_connection = pymysql.OperationalError
    invalid_parameter = pymysql.Error
    check_violation = pymysql.Error
    duplicate_key = pymysql.IntegrityError
    proxy_type = MySQLProxy
    idle_limit = "SELECT @@idle_transaction_timeout"
    write_after_loss = GuardError
    async_connection = aiomysql.Connection
    async_ends: ClassVar = [
        lambda native: native.commit(),
        lambda native: native.rollback(),
        lambda native: native.begin(),
        lambda native: run_async(native, "COMMIT"),
    ]
    unfenced = UNFENCED
    names_in_full = False
    withdraw = "CALL fencelock_withdraw()"
    no_sequencer = "FL011"
    odd_setting = "SET div_precision_increment = 0"
    lock_column = "lock_name"
    also_forbidden: ClassVar = {
        "replacing": "REPLACE INTO fencelock_mark (resource, lock_name, token) VALUES ('reports', 'nightly-report', 1)",
    }
    keeps_itself = ("FL009",)
    is_by_admin = "account LIKE 'root@%'"
    wait_briefly = "SET SESSION innodb_lock_wait_timeout = 1"
    commit_presented = "CALL fencelock_commit()"
    now_us = "SELECT timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))"
    acquire_tail = "1000, 0, ''"
    schema_column = "schema_number"
    clock_s = "SELECT unix_timestamp(sysdate(6))"
    upsert = "INSERT INTO {} VALUES (%s, %s) ON DUPLICATE KEY UPDATE value = VALUES(value)"
    append = "UPDATE reports SET value = CONCAT(value, %s)"
    audited = "SELECT token FROM fencelock_source_audit WHERE what = 'break' AND token > %s"
    unreachable_url = "mysql://127.0.0.1:1/nowhere"
    too_many_clients = "Too many connections"
    denied = r"does not permit it .*denied"
    operators_statements = (
        "UPDATE fencelock_source SET token = 7",
        "SELECT digest FROM fencelock_lock",
        "CALL fencelock_decide('lock', 'digest', 'worker', 1000, 0, 'try', 1)",
        "DROP PROCEDURE fencelock_acquire",
    )
    tables = "SHOW TABLES"
    objects = (
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()",
        "SELECT ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE()",
        "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE()",
    )
    # Tables with a partition take a foreign key only from who does not check it.
    need_table = (
        "SET STATEMENT foreign_key_checks = 0 FOR "
        "CREATE TABLE own_need (FOREIGN KEY (id) REFERENCES fencelock_{0}_audit (id)) ENGINE = InnoDB "
        "SELECT id FROM fencelock_{0}_audit"
    )
    forgo_table = "DROP TABLE own_need"

    def __init__(self, fleet: MariaDBFleet) -> None:
        self.fleet = fleet

    # Servers and databases

    def shared(self) -> MariaDBServer:
        return self.fleet.shared()

    def new_server(self) -> MariaDBServer:
        return self.fleet.new_server()

    def new_database(self, server: MariaDBServer, name: str) -> Database:
        server.rows(f"CREATE DATABASE {name}")
        return Database(server, name)

    @contextmanager
    def fresh_database(
        self, fill: Callable[[Database], None] = empty, *, has_source: bool = False
    ) -> Iterator[Database]:
        with fresh_mysql_database(self.shared()) as database:
            fill(database)
            if has_source:
                install(database.url())
            yield database

    def flush(self, database: Database) -> None:
        """Do nothing: the server flushes each commit."""

    def limited_user(self, database: Database) -> str:
        database.rows("CREATE OR REPLACE USER worker")
        database.rows(f"GRANT EXECUTE ON {database.name}.* TO worker")
        return "worker"

    @contextmanager
    def accounts(self, database: Database) -> Iterator[None]:
        database.rows("CREATE USER installer, worker")
        rights = "CREATE, DROP, CREATE ROUTINE, ALTER ROUTINE, EXECUTE, SELECT, INSERT, UPDATE, DELETE"
        database.rows(f"GRANT {rights} ON {database.name}.* TO installer")
        yield
        database.rows("DROP USER installer, worker")

    @contextmanager
    def roles(self, database: Database) -> Iterator[MakeRole]:
        made: list[str] = []

        def make(host: str = "%") -> str:
            role = f"role{len(made)}_{database.name}"
            database.rows(f"CREATE USER {role}@'{host}'")
            database.rows(f"GRANT EXECUTE ON {database.name}.* TO {role}@'{host}'")
            database.rows(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database.name}.reports TO {role}@'{host}'")
            made.append(f"{role}@'{host}'")
            return role

        yield make
        for account in made:
            database.rows(f"DROP USER {account}")

    def permit_worker(self, database: Database) -> None:
        for routine in ("describe", "acquire", "release", "renew", "inspect"):
            database.rows(f"GRANT EXECUTE ON PROCEDURE {database.name}.fencelock_{routine} TO worker")

    def permit_to_connect(self, database: Database, account: str) -> None:
        database.rows(f"GRANT EXECUTE ON {database.name}.* TO {account}")

    # Sessions

    @contextmanager
    def session(self, url: str) -> Iterator[Any]:
        native = open_connection(parse_url(url), 10.0)
        try:
            yield native
        finally:
            FORKS.close(native)

    @contextmanager
    def client(self, database: Database, level: str, **params: Any) -> Iterator[Any]:
        with database.connect(**params) as native:
            run(native, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            yield native

    def number_of(self, native: Any) -> int:
        return int(native.thread_id())

    def sessions(self, database: Database) -> set[int]:
        statement = "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> connection_id()"
        return {number for (number,) in database.rows(statement, database.name)}

    def session_ports(self, database: Database) -> dict[int, int]:
        known = database.rows("SELECT id, host FROM information_schema.processlist WHERE db = %s", database.name)
        return {number: int(host.rpartition(":")[2]) for number, host in known if ":" in host}

    def end_session(self, database: Database, number: int) -> None:
        database.rows(f"KILL {number}")

    # Who waits inside the server

    def blocked(self, database: Database) -> int:
        # Not `innodb_trx`, which shows the same again to a client that looks often.
        [(_, count)] = database.rows("SHOW GLOBAL STATUS LIKE 'innodb_row_lock_current_waits'")
        return int(count)

    def is_blocked(self, database: Database, native: Any = None) -> bool:
        time.sleep(SHOWN_ANEW_S)
        statement = "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
        waiting = [number for (number,) in database.rows(statement)]
        return bool(waiting) if native is None else self.number_of(native) in waiting

    # The source

    def acquire_late(self, native: Any, seen: Any, parameters: tuple[Any, ...], mode: str) -> str:
        [row] = run(native, SQL.acquire, *parameters, mode, 1000, seen.epoch, seen.history_id)
        return answer_of(row, seen).outcome

    def impatient(self, url: str) -> SqlClient:
        client = SqlClient(url, request_timeout_s=30.0)
        client.describe()
        client.connection._request_timeout_s = 0.1  # The server waits for a row for longer.
        return client

    def limit_statements(self, client: SqlClient) -> None:
        run(client.native, "SET SESSION innodb_lock_wait_timeout = 1")

    def arrivals(self, database: Database, proxy: MySQLProxy) -> int:
        return int(database.value(STATUS, "com_call_procedure"))

    def wait_for_abandoned(self, database: Database, number: int) -> None:
        # The server finds at the end of the call that its client has gone.
        self.wait_for_end(database, number)

    def rows_touched(self, native: Any, database: Database) -> int:
        run(native, "FLUSH LOCAL STATUS")
        return int(run(native, READ_ROWS)[0][0])

    # The guard

    def seal_in_steps(self, native: Any, token: int) -> None:
        run(native, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        run(native, "START TRANSACTION")
        statement = "UPDATE fencelock_mark SET token = %s, digest = %s WHERE resource = %s"
        run(native, statement, token, sequencer(token).digest, RESOURCE)

    def overtaken(self, level: str) -> str:
        return "FL002"

    def after_error(self, native: Any) -> None:
        """Do nothing: a transaction goes on after an error."""

    def schema_of(self, database: Database) -> str:
        return database.name

    def has_ended(self, native: Any, error: Any) -> bool:
        return bool(error.args[0] != SIGNALLED)

    def code_of(self, error: BaseException) -> str:
        return code_of(error)

    def change_rows(self, native: Any) -> None:
        native.cursorclass = pymysql.cursors.DictCursor

    def guard_params(self, level: str) -> dict[str, str]:
        return {}

    @contextmanager
    def server_level(self, level: str) -> Iterator[None]:
        server = self.shared()
        before = server.value("SELECT @@global.tx_isolation")
        server.rows(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {level}")
        yield
        server.rows(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {before.replace('-', ' ')}")

    def level_of(self, native: Any) -> str:
        [(level,)] = run(native, "SELECT @@tx_isolation")
        return str(level).replace("-", " ").lower()

    def protected_tables(self, database: Database) -> list[Any]:
        return database.rows("SHOW TRIGGERS LIKE 'reports'")


READ_ROWS = """
    SELECT sum(variable_value) FROM information_schema.session_status
    WHERE variable_name IN ('Handler_read_key', 'Handler_read_next', 'Handler_read_first', 'Handler_read_rnd_next',
                            'Handler_read_prev', 'Handler_write', 'Handler_update', 'Handler_delete')
"""
