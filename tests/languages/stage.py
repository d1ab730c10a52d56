"""What an attack on a service needs: two processes of it, a proxy, a database, and clients of leases."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

import fencelock
import fencelock.http
from fencelock import Sequencer
from fencelock_lab.proxy import Proxy
from tests.languages.services import Reply, Service, build, running
from tests.sql.mysql.fix_mysql import Database as MySQLDatabase
from tests.sql.mysql.framing import MySQLProxy
from tests.sql.postgres.fix_postgres import Database as PostgresDatabase
from tests.sql.postgres.framing import PostgresProxy
from tests.support.guards import LOCK, RESOURCE, sequencer

Database = PostgresDatabase | MySQLDatabase
WRITTEN = "SELECT body FROM report"


class Client:
    """A client of one lease: it sends the token, and the seal ids that it was told."""

    def __init__(self, presented: Sequencer) -> None:
        self.sequencer = presented
        self.seals: list[str] = []

    @property
    def headers(self) -> dict[str, list[str]]:
        """The fields of its next request."""
        sealed = {"Fencing-Sealed": [", ".join(self.seals)]} if self.seals else {}
        return {"Fencing-Token": [f'"{self.sequencer}"'], **sealed}

    def ask(self, service: Service, method: str, body: str = "") -> Reply:
        """Send a request, and keep the seal id of its answer."""
        reply = service.ask(method, body, self.headers)
        if mark := reply.headers["Fencing-Mark"]:
            token, _, seal = mark.partition(";seal=")
            assert token == f'"{self.sequencer.token}"', "the mark is not the token that was admitted"
            self.seals = [seal]
        return reply

    def get(self, service: Service) -> str:
        """Read the report."""
        reply = self.ask(service, "GET")
        assert reply.status == 200, reply.body
        assert self.seals, "a fenced answer has no Fencing-Mark"
        return reply.body

    def put(self, service: Service, body: str) -> None:
        """Write the report, and have it acknowledged."""
        reply = self.ask(service, "PUT", body)
        assert reply.status == 200, reply.body
        assert self.seals, "a fenced answer has no Fencing-Mark"

    def read_and_put(self, service: Service, body: str) -> None:
        """Do what a job does: read, and write."""
        self.get(service)
        self.put(service, body)


class Stage:
    """Two processes of a service over one database; a proxy stands between the first one and the database."""

    def __init__(self, first: Service, second: Service, proxy: Proxy, database: Database) -> None:
        self.first, self.second, self.proxy, self.database = first, second, proxy, database
        self.guard = guard_of(database)
        self.clients: list[Client] = []

    def client(self, **changes: str) -> Client:
        """Return a client of a lease that is newer than all before it."""
        self.clients.append(Client(sequencer(len(self.clients) + 1, **changes)))
        return self.clients[-1]

    def lease(self) -> Sequencer:
        """Return the sequencer of a lease that is newer than all before it."""
        return self.client().sequencer

    def api(self, presented: Sequencer) -> httpx.Client:
        """Return fencelock's own client of the second process."""
        return fencelock.http.client(presented, httpx.Client(base_url=self.second.url))

    def written(self) -> str:
        """Return the report as the database has it."""
        return str(self.database.value(WRITTEN))

    def requests_of_a_put(self) -> list[list[str]]:
        """Return the statements of each request that a client's first PUT makes the first process send."""
        self.client().get(self.first)  # It connects.
        before = len(self.proxy.requests)
        self.client().put(self.first, "to count")
        return [request.statements for request in self.proxy.requests[before:]]


def guard_of(database: Database) -> fencelock.Guard:
    """Return a guard of the service's resource."""
    return fencelock.guard(database.url(), resource=RESOURCE, lock=LOCK)


def proxy_before(database: Database) -> Proxy:
    """Return a proxy that knows the protocol of the database's server."""
    kind = PostgresProxy if isinstance(database, PostgresDatabase) else MySQLProxy
    return kind(database.server.port)


def make_report(database: Database, guard: fencelock.Guard) -> None:
    """Make the service's table, which it protects."""
    database.rows("CREATE TABLE report (id int PRIMARY KEY, body varchar(9999) NOT NULL CHECK (body <> 'forbidden'))")
    database.rows("INSERT INTO report VALUES (1, '')")
    guard.protect("report")


@contextmanager
def staged(language: str, folder: Path, database: Database, replaced: dict[str, str] | None = None) -> Iterator[Stage]:
    """Build the service of a page, and run two processes of it."""
    build(language, folder, replaced or {})
    make_report(database, guard_of(database))
    with (
        proxy_before(database) as proxy,
        running(language, folder, proxy.port, database.name) as first,
        running(language, folder, database.server.port, database.name) as second,
    ):
        yield Stage(first, second, proxy, database)
