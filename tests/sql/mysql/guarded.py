"""What tests of the MySQL guard share: a database with a table, guards on it, and connections stepped by hand."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

import fencelock
from fencelock import Guard
from tests.guards import LOCK, RESOURCE, HandmadeLease, sequencer
from tests.helpers import wait_until
from tests.sql.mysql.fix_mysql import Database

UNFENCED = "FL001 no token presented"
DEADLOCK = 1213
SIGNALLED = 1644
ENDED = 1792
"""The server's own number for a write in a transaction that is read-only."""
TABLE = ("CREATE TABLE reports (id int PRIMARY KEY, value varchar(64))", "INSERT INTO reports VALUES (1, 'first')")


def run(native: pymysql.Connection, statement: str, *params: object) -> list[tuple[Any, ...]]:
    """Run a statement and return the rows of its first result."""
    with native.cursor() as cursor:
        cursor.execute(statement, params or None)
        return list(cursor.fetchall())


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


TOLD_ANEW_S = 0.15
"""The server shows the same transactions again to whoever looks ten times a second."""


class Guarded:
    """A database whose table `reports` is protected as the resource of that name."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def guard(self, *resources: str, user: str = "root") -> Guard:
        return fencelock.guard(self.database.url(user=user), resources=resources or (RESOURCE,), lock=LOCK)

    def value(self, key: int = 1) -> Any:
        return self.database.value("SELECT value FROM reports WHERE id = %s", key)

    def sealed(self, token: int) -> HandmadeLease:
        """Return a lease that has sealed the resource."""
        lease = HandmadeLease(token)
        self.guard().seal(lease)
        return lease

    def present(self, native: pymysql.Connection, token: int, resource: str = RESOURCE) -> None:
        """Present a token as any client does."""
        run(native, "CALL fencelock_present(%s, %s)", str(sequencer(token)), resource)

    @contextmanager
    def client(self, level: str = "read committed", **params: Any) -> Iterator[pymysql.Connection]:
        """Yield a client that knows no guard, in autocommit mode."""
        with self.database.connect(**params) as native:
            run(native, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            yield native

    def wait_for_lock(self, native: pymysql.Connection) -> None:
        """Return once what this connection does waits for somebody else's row lock."""
        self._wait("trx_mysql_thread_id = %s", native.thread_id())

    def wait_for_anybody(self) -> None:
        """Return once somebody waits for a row lock."""
        self._wait("1 = %s", 1)

    def _wait(self, which: str, value: int) -> None:
        statement = f"SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT' AND {which}"

        def is_waiting() -> bool:
            time.sleep(TOLD_ANEW_S)
            return bool(self.database.value(statement, value))

        wait_until(is_waiting)

    def kill(self, native: Any) -> None:
        """Have the server end a connection, and return once it has."""
        number = native.thread_id()
        self.database.rows(f"KILL {number}")
        self.wait_for_end(number)

    def wait_for_end(self, number: int) -> None:
        statement = "SELECT 1 FROM information_schema.PROCESSLIST WHERE id = %s"
        wait_until(lambda: not self.database.rows(statement, number))
