"""Replies that are lost, and requests that come late or twice, between the guard and DynamoDB."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import OutcomeUnknownError, StaleTokenError
from fencelock.stores.dynamodb import requests
from tests.dynamodb.fix_dynamodb import DATA, Corner
from tests.dynamodb.guarded import Scene
from tests.http.http_proxy import HTTPProxy, send_again
from tests.support.guards import LOCK, RESOURCE, Blocking, HandmadeLease

TRANSACTION = b"TransactWriteItems"
ANSWERED, REFUSED = 200, 400


class Wire:
    """A guard behind a proxy, and another one that is not."""

    def __init__(self, corner: Corner, proxy: HTTPProxy, runner: asyncio.Runner | None) -> None:
        self.scene = Scene(corner)
        self.proxy = proxy
        self.lease = HandmadeLease(5)
        url = corner.url(f"http://127.0.0.1:{proxy.port}")
        guard: Any = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
        if runner is not None:
            guard = Blocking(fencelock.aio.guard(url, resource=RESOURCE, lock=LOCK), runner.run)
        self.guard = guard

    def transactions(self) -> list[bytes]:
        """Return the transactions that were sent through the proxy."""
        return [one for one in self.proxy.seen if TRANSACTION in one.split(b"\r\n\r\n")[0]]

    def add(self, amount: int) -> None:
        with self.guard.transaction(self.lease) as txn:
            txn.update(DATA, self.scene.key("n"), "ADD n :n", {":n": amount})

    def send_again(self) -> int:
        """Send the last transaction once more, as the network may, and return the status of the answer."""
        return send_again(int(self.scene.corner.endpoint.rpartition(":")[2]), self.transactions()[-1])

    def number(self) -> int:
        return int(self.scene.value("n", "n") or 0)


@pytest.fixture(params=["sync", "async"])
def wire(request: pytest.FixtureRequest, corner: Corner) -> Iterator[Wire]:
    with HTTPProxy(int(corner.endpoint.rpartition(":")[2])) as proxy:
        if request.param == "sync":
            yield Wire(corner, proxy, None)
        else:
            with asyncio.Runner() as runner:
                yield Wire(corner, proxy, runner)


def test_a_block_whose_reply_is_lost_is_written_once_and_says_so(wire: Wire) -> None:
    wire.add(1)
    fault = wire.proxy.drop_reply(2)  # Its first request reads the mark.
    wire.add(5)
    assert fault.has_happened
    sent = wire.transactions()[-2:]
    assert sent[0].partition(b"\r\n\r\n")[2] == sent[1].partition(b"\r\n\r\n")[2], "the same request, token and all"
    assert wire.number() == 6


def test_a_seal_whose_reply_is_lost_is_sealed(wire: Wire) -> None:
    wire.guard.mark()
    fault = wire.proxy.drop_reply(2)
    wire.guard.seal(wire.lease)
    assert fault.has_happened
    assert wire.scene.guard.mark().token == 5
    wire.add(5)
    assert wire.number() == 5


def test_nothing_is_sent_twice_behind_the_guards_back(wire: Wire) -> None:
    wire.add(1)
    before = len(wire.transactions())
    wire.add(1)
    assert len(wire.transactions()) == before + 1


def test_g3_a_request_that_arrives_after_the_next_seal_writes_nothing(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PATIENCE_S", 0.0)
    wire.add(1)
    wire.proxy.drop_request(2)
    with pytest.raises(OutcomeUnknownError):
        wire.add(5)
    wire.scene.opened().seal(HandmadeLease(6))
    assert wire.send_again() == REFUSED
    with pytest.raises(StaleTokenError):
        wire.add(5)
    assert wire.number() == 1


def test_a_request_that_arrives_twice_is_carried_out_once(wire: Wire) -> None:
    wire.add(1)
    assert wire.send_again() == ANSWERED
    wire.scene.opened().seal(HandmadeLease(6))
    assert wire.send_again() == ANSWERED, "DynamoDB knows the token, and answers alike"
    assert wire.number() == 1
