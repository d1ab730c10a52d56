"""The guard behind a transaction-pooling PgBouncer, whose backends serve one client after the other."""

import psycopg
import pytest

import fencelock
from fencelock import StaleTokenError
from tests.sql.guarded import Guarded
from tests.sql.postgres.dialect import REFUSED
from tests.sql.postgres.fix_pgbouncer import PgBouncer
from tests.sql.postgres.fix_postgres import only
from tests.support.guards import LOCK, RESOURCE, HandmadeLease

pytestmark = only("15")


def test_guarded_transactions_work_behind_a_pooler(guarded: Guarded, pgbouncer: PgBouncer) -> None:
    url = pgbouncer.url(guarded.database.url())
    guard, lease = fencelock.guard(url, resource=RESOURCE, lock=LOCK), HandmadeLease(5)
    for number in range(20):
        with guard.transaction(lease) as native:
            native.execute("UPDATE reports SET value = %s", (str(number),), prepare=False)
    assert guarded.value() == "19"
    guard.seal(HandmadeLease(6))
    with pytest.raises(StaleTokenError), guard.transaction(lease):
        raise AssertionError("not reached")


def test_what_one_client_presents_admits_no_other_on_its_backends(guarded: Guarded, pgbouncer: PgBouncer) -> None:
    url = pgbouncer.url(guarded.database.url())
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as other:
        with guard.transaction(HandmadeLease(5)) as native:
            native.execute("UPDATE reports SET value = 'held'", prepare=False)
        for _ in range(5):
            with pytest.raises(psycopg.Error, match=REFUSED):
                other.execute("DELETE FROM reports")
