"""What an operator does with a guard at DynamoDB: install it, look into it, limit its users, restore a backup."""

import asyncio
import json
import shlex
import subprocess
import sys
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import ConfigError, FencelockError, GuardError, SchemaError, UnsupportedError
from fencelock.clock import boottime_ms
from fencelock.protocol import (
    AuditEntry,
    Begin,
    Commit,
    FindOldMarks,
    Floor,
    InspectResources,
    PurgeMarks,
    RaiseMarks,
    ReadMarks,
)
from fencelock.protocol.generators import run_generator
from fencelock.protocol.mark_requests import MAX_PURGED_MARKS
from fencelock.stores.aws.clients import Refusal
from fencelock.stores.dynamodb import table as table_module
from fencelock.stores.dynamodb.guard.codec import DynamoGuardCodec
from fencelock.stores.dynamodb.table import DynamoTables, create_table
from fencelock.stores.errors import GUARD_PART
from fencelock.stores.registry import guard_store
from tests.dynamodb.fix_dynamodb import DATA, Corner
from tests.dynamodb.guarded import Scene
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource, sequencer


def codes(corner: Corner) -> list[str]:
    return [one.code for one in guard_store(corner.url()).examine()]


# --- the table --------------------------------------------------------------------------------------------------------
def test_installing_makes_a_table_that_is_hard_to_lose_and_may_be_repeated(corner: Corner) -> None:
    for _ in range(2):
        guard_store(corner.url()).install()
    table = corner.client.describe_table(TableName=corner.name)["Table"]
    assert [(one["AttributeName"], one["KeyType"]) for one in table["KeySchema"]] == [("pk", "HASH"), ("sk", "RANGE")]
    assert table["DeletionProtectionEnabled"] is True
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    backups = corner.client.describe_continuous_backups(TableName=corner.name)["ContinuousBackupsDescription"]
    assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"


OWN_KEY = [{"AttributeName": "pk"}, {"AttributeName": "sk"}]
FIT: dict[str, Any] = {"TableStatus": "ACTIVE", "KeySchema": OWN_KEY}
NOT_YET = Refusal("ContinuousBackupsUnavailableException", "not yet", {})


def installing(*, is_there: bool, tables: list[dict[str, Any]], backups: list[Any], ttl: str = "DISABLED") -> list[str]:
    """Install a table that is described so, one time after the other; return what was sent, and refused."""
    answers: dict[str, list[Any]] = {
        "create_table": [Refusal("ResourceInUseException", "there", {}) if is_there else {}],
        "describe_table": [{"Table": table} for table in tables],
        "describe_time_to_live": [{"TimeToLiveDescription": {"TimeToLiveStatus": ttl}}],
        "update_continuous_backups": backups,
    }
    sent: list[str] = []

    def send(call: Any) -> Any:
        sent.append(getattr(call, "operation", "pause"))
        found = answers.get(sent[-1], [None])
        return found.pop(0) if len(found) > 1 else found[0]

    try:
        run_generator(create_table(DynamoTables("dynamodb://eu-central-1/marks", "marks", GUARD_PART)), send)
    except FencelockError as error:
        sent.append(type(error).__name__)
    return [one for one in sent if not one.startswith("describe")]


def test_installing_waits_until_the_table_can_be_used() -> None:
    """As it takes some seconds at Amazon's."""
    sent = installing(is_there=False, tables=[{"TableStatus": "CREATING"}, FIT], backups=[NOT_YET, {}])
    assert sent == ["create_table", "pause", "update_continuous_backups", "pause", "update_continuous_backups"]


@pytest.mark.parametrize(
    ("sign", "ttl", "error"),
    [
        ({"Replicas": [{"RegionName": "eu-west-1"}]}, "DISABLED", "UnsupportedError"),
        ({"KeySchema": [{"AttributeName": "id"}]}, "DISABLED", "SchemaError"),
        ({}, "ENABLED", "UnsupportedError"),
    ],
)
def test_installing_changes_nothing_at_a_table_that_it_refuses(sign: dict[str, Any], ttl: str, error: str) -> None:
    assert installing(is_there=True, tables=[FIT | sign], backups=[{}], ttl=ttl) == ["create_table", error]


def test_without_a_table_every_use_says_what_to_run(corner: Corner) -> None:
    guard = fencelock.guard(corner.url(), resource=RESOURCE, lock=LOCK)
    waiting = fencelock.aio.guard(corner.url(), resource=RESOURCE, lock=LOCK)
    uses = (lambda: guard.seal(HandmadeLease(5)), guard.mark, guard.protect, lambda: asyncio.run(waiting.protect()))
    for use in uses:
        with pytest.raises(SchemaError, match=r"holds no guard.*fencelock install --guard 'dynamodb://"):
            use()
    assert codes(corner) == ["guard-refused"]


@pytest.mark.parametrize("roles", [[], ["--roles", "app"]])
def test_protect_makes_no_table_of_a_mistyped_name(corner: Corner, roles: list[str]) -> None:
    told = [sys.executable, "-m", "fencelock.cli", "protect", corner.url(), "--resource", RESOURCE, "--lock", LOCK]
    assert subprocess.run([*told, *roles], check=False, capture_output=True).returncode != 0
    assert corner.name not in corner.client.list_tables()["TableNames"]


def test_a_table_with_another_key_is_refused(corner: Corner) -> None:
    guard = fencelock.guard(corner.url().replace(corner.name, DATA), resource=RESOURCE, lock=LOCK)
    with pytest.raises(SchemaError, match="was not made for fencelock"):
        guard.seal(HandmadeLease(5))


def test_a_table_that_deletes_by_itself_is_refused_before_the_first_seal(corner: Corner) -> None:
    guard_store(corner.url()).install()
    setting = {"Enabled": True, "AttributeName": "ends"}
    corner.client.update_time_to_live(TableName=corner.name, TimeToLiveSpecification=setting)
    guard = fencelock.guard(corner.url(), resource=RESOURCE, lock=LOCK)
    for use in (lambda: guard.seal(HandmadeLease(5)), guard.protect):
        with pytest.raises(UnsupportedError, match="has a time to live"):
            use()
    assert corner.own_items() == []
    assert codes(corner) == ["guard-refused"]


@pytest.mark.parametrize("sign", [{"Replicas": [{"RegionName": "eu-west-1"}]}, {"GlobalTableVersion": "2019.11.21"}])
@pytest.mark.parametrize("which", ["marks", "data"])
def test_a_global_table_is_refused(corner: Corner, sign: dict[str, Any], which: str) -> None:
    """A condition holds in one region of it."""
    scene = Scene(corner)
    name = corner.name if which == "marks" else DATA
    guard = scene.opened()
    store = guard._core.store
    make_client = store.make_client

    def make_changed() -> Any:
        client = make_client()
        call = client.call

        def answered(one: Any) -> Any:
            answer = call(one)
            if one.operation == "describe_table" and one.arguments["TableName"] == name:
                answer["Table"] |= sign
            return answer

        client.call = answered
        return client

    store.make_client = make_changed
    with (
        pytest.raises(UnsupportedError, match=f"table '{name}' is a global table"),
        guard.transaction(scene.lease) as txn,
    ):
        scene.put(txn, "a", "1")
    assert scene.names("a") == []


def test_an_accelerator_is_refused(corner: Corner) -> None:
    """DAX needs a client of its own, and answers eventually consistent reads from a cache."""
    url = "dynamodb://eu-central-1/marks?endpoint=daxs://my-cluster.l6fzcv.dax-clusters.eu-central-1.amazonaws.com"
    with pytest.raises(ConfigError, match="DAX"):
        fencelock.guard(url, resource=RESOURCE, lock=LOCK)


# --- who may write ----------------------------------------------------------------------------------------------------
def test_the_doctor_says_that_anybody_may_write_and_writes_nothing(corner: Corner) -> None:
    guard_store(corner.url()).install()
    assert codes(corner) == ["open-to-all"]
    assert corner.own_items() == []


def test_the_doctor_finds_nothing_where_the_policy_is_in_force(corner: Corner) -> None:
    """As IAM answers a plain PutItem: the emulator knows no policies."""
    store: Any = guard_store(corner.url())
    store.install()
    make_client = store.make_client
    refusal = Refusal("AccessDeniedException", "not authorized", {})

    def limited() -> Any:
        client = make_client()
        call = client.call
        client.call = lambda one: refusal if one.operation == "put_item" else call(one)
        return client

    store.make_client = limited
    assert store.examine() == []


def test_a_policy_lets_a_role_write_in_transactions_only_and_one_mark() -> None:
    store: Any = guard_store("dynamodb://eu-central-1/marks")
    script = store.policy("daily/report", LOCK, "app", "other")
    commands = [line for line in shlex.split(script, comments=True) if line.startswith("{")]
    assert len(commands) == 2
    statements = json.loads(commands[0])["Statement"]
    allowed = [one for one in statements if one["Effect"] == "Allow"]
    for one in allowed:
        writes = {
            action for action in one["Action"] if action.rpartition(":")[2] in ("PutItem", "UpdateItem", "DeleteItem")
        }
        condition = one.get("Condition", {})
        if writes:
            assert condition["ForAnyValue:StringEquals"] == {"dynamodb:EnclosingOperation": ["TransactWriteItems"]}
            if one["Resource"].endswith("table/marks"):
                assert condition["ForAllValues:StringEquals"] == {"dynamodb:LeadingKeys": ["guard#daily%2Freport"]}
    denied = [one for one in statements if one["Effect"] == "Deny"]
    assert {one["Resource"] for one in denied} == {one["Resource"] for one in statements}
    china: Any = guard_store("dynamodb://cn-north-1/marks")
    assert "arn:aws-cn:dynamodb:cn-north-1:*:table/marks" in china.policy(RESOURCE, LOCK, "app")


# --- restored tables --------------------------------------------------------------------------------------------------
def restore_own_table(corner: Corner) -> None:
    """Replace the table of the marks by another one with the same items, as a restored backup is."""
    items = corner.own_items()
    corner.client.update_table(TableName=corner.name, DeletionProtectionEnabled=False)
    corner.client.delete_table(TableName=corner.name)
    guard_store(corner.url()).install()
    for item in items:
        corner.client.put_item(TableName=corner.name, Item=item)


@pytest.mark.parametrize("has_seen_the_former_table", [False, True])
def test_a_mark_from_a_backup_admits_nobody_until_an_operator_raises_it(
    corner: Corner, monkeypatch: pytest.MonkeyPatch, *, has_seen_the_former_table: bool
) -> None:
    """DynamoDB restores into a new table, whose id is another one."""
    monkeypatch.setattr(table_module, "SAME_TABLE_MS", 0, raising=False)
    scene = Scene(corner)
    scene.guard.seal(scene.lease)
    restore_own_table(corner)
    guard = scene.guard if has_seen_the_former_table else scene.opened()
    for lease in (HandmadeLease(5), HandmadeLease(9)):
        for use in (guard.seal, guard.close, lambda lease: guard.transaction(lease).__enter__()):
            with pytest.raises(GuardError, match=r"was restored from a backup.*--raise-to SOURCE"):
                use(lease)
    assert codes(corner) == ["restored-mark", "open-to-all"]
    guard.raise_to(HandmadeSource(9), reason="restored")
    assert codes(corner) == ["open-to-all"]
    with guard.transaction(HandmadeLease(10)) as txn:
        scene.put(txn, "a", "1")
    assert scene.value("a") == "1"


def test_a_seal_on_the_word_of_the_former_table_does_not_count_as_one_of_the_restored_table(
    corner: Corner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id is asked for again between the look at the mark and its write."""
    now_ms = boottime_ms()
    monkeypatch.setattr(table_module, "boottime_ms", lambda: now_ms)
    scene = Scene(corner)
    scene.guard.seal(scene.lease)
    restore_own_table(corner)
    check = DynamoGuardCodec._check_not_restored

    def check_and_wait(codec: DynamoGuardCodec, resources: Any) -> None:
        nonlocal now_ms
        check(codec, resources)
        now_ms += table_module.SAME_TABLE_MS

    monkeypatch.setattr(DynamoGuardCodec, "_check_not_restored", check_and_wait)
    scene.guard.seal(HandmadeLease(8))
    assert codes(corner) == ["restored-mark", "open-to-all"]
    with pytest.raises(GuardError, match="was restored from a backup"):
        scene.opened().seal(HandmadeLease(9))


# --- purges -----------------------------------------------------------------------------------------------------------
def test_as_many_marks_as_one_purge_takes_fit_into_one_transaction(corner: Corner) -> None:
    """With the floors and the audit entry."""
    store = guard_store(corner.url())
    store.install()
    connection = store.connect()
    names = tuple(f"order:{number}" for number in range(MAX_PURGED_MARKS))
    for request in (Begin(), ReadMarks(names), RaiseMarks(names, sequencer(5)), Commit()):
        connection.perform(request)
    old = connection.perform(FindOldMarks("source", 0))
    assert len(old) == MAX_PURGED_MARKS
    connection.perform(Begin())
    entry = AuditEntry("purge", "", 5, 5, "somebody", "a test")
    assert connection.perform(PurgeMarks(old, Floor("source", 5), entry)) == MAX_PURGED_MARKS
    connection.perform(Commit())
    report = connection.perform(InspectResources(None))
    assert (report.marks, report.floors) == ((), (Floor("source", 5),))
