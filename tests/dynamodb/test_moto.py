"""The negative control of the emulator: a server whose transactions are not atomic lets a stale write through.

moto's server checks a condition and writes in separate steps, and another request comes in between.
"""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

import fencelock
from fencelock_lab.servers.ministack import CREDENTIALS, REGION
from tests.support.guards import LOCK, RESOURCE, HandmadeLease

DATA = "data"
KEY = {"pk": "a"}


@pytest.fixture
def moto_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield where a server of moto's answers, in threads of this process."""
    server_module = pytest.importorskip("moto.server", reason="moto is not installed: requirements/test.txt has it")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.mark.campaign
def test_a_server_whose_transactions_are_not_atomic_accepts_a_write_after_the_next_seal(
    moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto.dynamodb.models import DynamoDBBackend

    url = f"dynamodb://{REGION}/marks?endpoint={moto_endpoint}"
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    guard.install()
    guard.protect()
    client = boto3.client("dynamodb", region_name=REGION, endpoint_url=moto_endpoint)
    client.create_table(
        TableName=DATA,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    put_item = DynamoDBBackend.put_item
    sealed: list[int] = []

    def put_late(backend: Any, table: str, *arguments: Any, **named: Any) -> Any:
        """Just before the block's item is written, and after the mark was checked, its successor seals."""
        if table == DATA and not sealed:
            sealed.append(6)
            fencelock.guard(url, resource=RESOURCE, lock=LOCK).seal(HandmadeLease(6))
        return put_item(backend, table, *arguments, **named)

    monkeypatch.setattr(DynamoDBBackend, "put_item", put_late)
    with fencelock.guard(url, resource=RESOURCE, lock=LOCK).transaction(HandmadeLease(5)) as txn:
        txn.put(DATA, KEY | {"v": "stale"})
    assert fencelock.guard(url, resource=RESOURCE, lock=LOCK).mark().token == 6
    assert client.get_item(TableName=DATA, Key={"pk": {"S": "a"}})["Item"]["v"] == {"S": "stale"}, "it was not refused"
