"""Locks of another store guard keys of etcd: the mark decides, whatever source the token is from."""

import pytest

import fencelock
from fencelock import StaleTokenError, WrongLockError
from fencelock.stores.postgres.source.store import PostgresSource
from tests.etcd.fix_etcd import Corner
from tests.etcd.guarded import Direct
from tests.sql.postgres.fix_postgres import Database, only
from tests.support.guards import LOCK

pytestmark = only("18")


def test_a_lock_in_postgres_guards_keys_of_etcd(etcd: Corner, database: Database) -> None:
    PostgresSource(database.url()).install()
    guard = fencelock.guard(etcd.url, resource="r", lock=LOCK)
    key = f"{etcd.prefix}/r/value"
    with fencelock.connect(database.url()) as source:
        first = source.lock(LOCK).acquire()
        assert first is not None
        with guard.transaction(first) as txn:
            txn.put(key, "first")
        first.release()
        with source.lock(LOCK) as second, guard.transaction(second) as txn:
            txn.put(key, f"{txn.get(key).decode()}, second")
        with pytest.raises(StaleTokenError), guard.transaction(first.sequencer) as txn:
            txn.put(key, "late")
    assert Direct(etcd.url).get(key) == "first, second"


def test_g5_a_resource_stays_with_the_source_that_sealed_it_first(
    etcd: Corner, database: Database, source: fencelock.Source
) -> None:
    PostgresSource(database.url()).install()
    guard = fencelock.guard(etcd.url, resource="r", lock=LOCK)
    with fencelock.connect(database.url()) as postgres:
        with postgres.lock(LOCK) as lease:
            guard.seal(lease)
        with source.lock(LOCK) as lease, pytest.raises(WrongLockError, match="is bound to source"):
            guard.seal(lease)
        source.raise_epoch(reason="above every mark")
        guard.rebind(LOCK, source=source, reason="moved")
    with source.lock(LOCK) as lease, guard.transaction(lease) as txn:
        txn.put(f"{etcd.prefix}/r/value", "moved")
    assert Direct(etcd.url).get(f"{etcd.prefix}/r/value") == "moved"
