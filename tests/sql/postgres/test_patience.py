"""How long a caller waits for PostgreSQL: a large batch of renewals takes the server longer than a single request."""

import pytest

from fencelock.errors import OutcomeUnknownError
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock.stores.sql.source import RENEWAL_S
from tests.sql.postgres.fix_postgres import Database

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
    connection = store.connect(request_timeout_s=REQUEST_TIMEOUT_S)
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
