"""Steps of tests that interleave requests.

A side transaction holds what a statement needs, so that the statement waits inside the server, and the test decides
what happens meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fencelock.clock import boottime_us
from fencelock.model import digest_of_claim
from fencelock.protocol import source_requests as ask
from tests.sql.clients import SqlClient
from tests.sql.dialect import SqlDialect, run
from tests.sql.guarded import Step
from tests.support.helpers import wait_until
from tests.support.sources import LONG_MS


@contextmanager
def holding(sql: SqlDialect, database: Any, statement: str) -> Iterator[None]:
    """Run a statement in a transaction that stays open for the block."""
    with sql.session(database.url()) as side:
        run(side, "START TRANSACTION")
        run(side, statement)
        yield
        run(side, "COMMIT")


@contextmanager
def purging(sql: SqlDialect, database: Any, client: SqlClient) -> Iterator[int]:
    """Have a purge that ends with the block, and yield how many statements wait for it to end already."""
    if sql.name == "postgres":
        with holding(sql, database, "SELECT fencelock.purge()"):
            yield 0
        return
    with holding(sql, database, sql.hold_source):
        purge = Step(client.ask, ask.Purge())
        wait_until_blocked(sql, database, 1)
        yield 1
    assert purge.end() == 1


@contextmanager
def raising_the_epoch(sql: SqlDialect, database: Any, url: str) -> Iterator[int]:
    """Raise the epoch to 2 at the end of the block, and yield how many statements wait for that already."""
    if sql.name == "postgres":
        history_id = SqlClient(url).describe().history_id
        with holding(sql, database, f"SELECT fencelock.raise_epoch('{history_id}', 0, 'tester', 'a test')"):
            yield 0
        return
    with holding(sql, database, sql.hold_source):
        raising = Step(SqlClient(url).raise_epoch)
        wait_until_blocked(sql, database, 1)
        yield 1
    assert raising.end().epoch == 2


def wait_until_blocked(sql: SqlDialect, database: Any, count: int) -> None:
    """Return once so many statements wait inside the server for what another transaction holds."""
    wait_until(lambda: sql.blocked(database) == count)


class LateRequest:
    """An acquire that was sent now, and reaches the server when the test says, as often as it says."""

    def __init__(self, sql: SqlDialect, client: SqlClient, claim: str) -> None:
        client.describe()
        self._sql = sql
        self._url = client.url
        born_us = client.store.identity.clock.at(boottime_us())
        self._parameters = (b"lock", digest_of_claim(claim), "late", LONG_MS, born_us)
        self._seen = client.store.identity.seen

    def arrive(self, *modes: str) -> list[str]:
        """Return the outcomes that it has now."""
        with self._sql.session(self._url) as native:
            return [self._sql.acquire_late(native, self._seen, self._parameters, mode) for mode in modes or ("try",)]
