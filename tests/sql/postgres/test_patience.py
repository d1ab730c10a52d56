"""How long a caller waits for PostgreSQL: a large batch of renewals takes the server longer than a single request."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from psycopg import waiting

from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.postgres.connection.client import open_async_connection, open_connection
from fencelock.stores.postgres.connection.errors import PostgresTimeoutError
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo, parse_url
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock.stores.sql.source import RENEWAL_S
from tests.sql.postgres.fix_postgres import Database
from tests.support.helpers import DEADLINE_S

REQUEST_TIMEOUT_S = 0.3
HELD_S = 1.0


SLOWLY = f"""
    ALTER FUNCTION fencelock.renew RENAME TO renew_at_once;
    CREATE FUNCTION fencelock.renew(bytea[], text[]) RETURNS TABLE (claim text, remaining_ms bigint, reason text)
    LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep({HELD_S}); RETURN QUERY SELECT * FROM fencelock.renew_at_once($1, $2); END $$
"""


@pytest.mark.parametrize("count", [1, int(3 * HELD_S / RENEWAL_S)])
def test_a_large_batch_of_renewals_is_waited_for_longer(database: Database, count: int) -> None:
    store = PostgresSource(database.url())
    store.install()
    with database.connect() as owner:
        owner.execute(SLOWLY.encode())
    connection = store.connect(request_timeout_s=DEADLINE_S)
    connection.perform(ask.ReadSource())
    connection._request_timeout_s = REQUEST_TIMEOUT_S  # A new connection might take longer.
    batch = ask.Renew(tuple((f"lock-{number}", draw_claim()) for number in range(count)))
    try:
        if count == 1:
            with pytest.raises(OutcomeUnknownError):
                connection.perform(batch)
        else:
            reply = connection.perform(batch)
            assert isinstance(reply, ask.Renewed)
            assert len(reply.lost) == count
    finally:
        connection.close()


CONNECT: dict[str, Callable[[PostgresConnectionInfo], object]] = {
    "sync": lambda info: open_connection(info, REQUEST_TIMEOUT_S),
    "async": lambda info: asyncio.run(open_async_connection(info, REQUEST_TIMEOUT_S)),
}


@pytest.mark.parametrize("kind", CONNECT)
def test_an_attempt_to_connect_to_a_frozen_server_ends_with_the_request_timeout(kind: str) -> None:
    """The keeper waits no longer, since leases of other sources are due meanwhile; psycopg counts whole seconds, two at
    least. Then the next address has its turn.
    """
    # The kernel accepts connections for a frozen process, too.
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = ",".join(str(server.getsockname()[1]) for server in (first, second))
        info = parse_url(f"postgresql://?host=127.0.0.1,127.0.0.1&port={ports}")
        began_s = time.monotonic()
        with pytest.raises(
            SourceUnavailableError, match=rf"cannot be reached: .*no answer within {REQUEST_TIMEOUT_S:g} s"
        ):
            CONNECT[kind](info)
        took_s = time.monotonic() - began_s
        second.accept()[0].close()
    assert 2 * REQUEST_TIMEOUT_S <= took_s < 4.0


def endless() -> Iterator[waiting.Wait]:
    """Be always ready to go on, and never done, as a reply is of which byte after byte comes."""
    while True:
        yield waiting.Wait.W


def test_h10_a_reply_that_drips_is_awaited_for_the_request_timeout(database: Database) -> None:
    info = parse_url(database.url())
    connection = open_connection(info, DEADLINE_S)
    connection.limit_wait(REQUEST_TIMEOUT_S)
    with closing(connection), pytest.raises(PostgresTimeoutError):
        connection.wait(endless())


def test_h10_a_task_awaits_a_reply_that_drips_for_the_request_timeout(database: Database) -> None:
    async def wait() -> None:
        connection = await open_async_connection(parse_url(database.url()), DEADLINE_S)
        connection.limit_wait(REQUEST_TIMEOUT_S)
        async with connection:
            await connection.wait(endless())

    with pytest.raises(PostgresTimeoutError):
        asyncio.run(wait())
