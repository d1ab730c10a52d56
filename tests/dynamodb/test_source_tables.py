"""The table of a source: how it is made, which ones are refused, and copies, which would issue tokens twice."""

import pytest

import fencelock
from fencelock.errors import SchemaError, SourceError, UnsupportedError
from fencelock.stores.dynamodb.source.store import DynamoDBSource
from tests.dynamodb.fix_source import Locks

TTL = 30.0


def test_install_creates_a_protected_table_and_may_run_again(empty_table: Locks) -> None:
    for _ in range(2):
        DynamoDBSource(empty_table.url).install()
    table = empty_table.client.describe_table(TableName=empty_table.name)["Table"]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert table["DeletionProtectionEnabled"]
    backups = empty_table.client.describe_continuous_backups(TableName=empty_table.name)["ContinuousBackupsDescription"]
    assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"
    assert DynamoDBSource(empty_table.url).examine() == []


def test_a_table_with_another_key_is_refused(empty_table: Locks) -> None:
    empty_table.client.create_table(
        TableName=empty_table.name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(SchemaError, match="name another table"):
        DynamoDBSource(empty_table.url).install()


def add_time_to_live(locks: Locks) -> None:
    setting = {"Enabled": True, "AttributeName": "expires"}
    locks.client.update_time_to_live(TableName=locks.name, TimeToLiveSpecification=setting)


def test_a_table_that_deletes_items_by_itself_is_refused(locks: Locks) -> None:
    add_time_to_live(locks)
    with pytest.raises(UnsupportedError, match="time to live"):
        DynamoDBSource(locks.url).install()
    (finding,) = DynamoDBSource(locks.url).examine()
    assert (finding.code, "time to live" in finding.message) == ("unfit-table", True)


def test_a_table_that_is_not_installed_is_reported(empty_table: Locks) -> None:
    (finding,) = DynamoDBSource(empty_table.url).examine()
    assert f"run `fencelock install --source '{empty_table.url}'`" in finding.message


def copied(locks: Locks, copy: Locks) -> None:
    """Do what a restore of a backup does: make another table with the same items."""
    DynamoDBSource(copy.url).create_location()
    for item in locks.items():
        locks.client.put_item(TableName=copy.name, Item=item)


def test_a_restored_table_grants_nothing_until_its_epoch_is_raised(locks: Locks) -> None:
    copy = Locks(locks.server, f"{locks.name}-copy")
    with fencelock.connect(locks.url) as source, source.lock("a", ttl=TTL) as lease:
        copied(locks, copy)
        token = lease.token
    with fencelock.connect(copy.url) as source, pytest.raises(SourceError, match="epoch --raise"):
        source.lock("a", ttl=TTL, timeout=0.0).acquire()
    with fencelock.connect(copy.url) as source:
        source.raise_epoch(reason="restored")
        with source.lock("a", ttl=TTL) as lease:
            assert lease.token > token
