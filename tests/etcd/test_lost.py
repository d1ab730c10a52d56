"""A lost request or reply: when the request is repeated, its answer is what it would have been (T3, H4, H5)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from fencelock.clock import boottime_us
from fencelock.errors import OutcomeUnknownError
from fencelock.model import digest_of_claim, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.connection.client import TXN
from fencelock.stores.etcd.source.codec import _enqueue_txn
from fencelock.stores.hashed_claims import hash_claims
from fencelock_lab.proxy import Direction, Proxy
from tests.etcd.clients import Client, installed
from tests.etcd.fix_etcd import Corner
from tests.support.helpers import DEADLINE_S, wait_until

pytestmark = pytest.mark.server_wide

LONG_MS = 60_000
REQUEST_TIMEOUT_S = 5.0


class Stage:
    """A client behind a proxy, and another one that is not."""

    def __init__(self, corner: Corner, proxy: Proxy) -> None:
        self.corner = corner
        self.server = corner.cluster.servers[0]
        self.proxy = proxy
        self.other = installed(corner.url)
        self.client = Client(f"etcd://127.0.0.1:{proxy.port}/{corner.prefix}")

    def lose(
        self, direction: Direction, method: str, request: object, *, prepare: Callable[[], int] = lambda: 0
    ) -> None:
        """Send a request, and lose the request, or the reply, of one method.

        `prepare` is called at the last moment, and returns how often it has called the method itself.
        """
        caught: list[BaseException] = []
        before = self.server.calls().get(method, 0) + prepare()

        def work() -> None:
            try:
                self.client.ask(request)
            except OutcomeUnknownError as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        self.proxy.lose(direction)
        thread.start()
        if direction == "requests":
            wait_until(self.proxy.is_quiet)
        else:
            wait_until(lambda: self.server.calls().get(method, 0) > before and self.proxy.lost_bytes)
        self.proxy.cut()
        thread.join(DEADLINE_S)
        assert caught, "a request whose fate is unknown says so"

    def again(self, request: object) -> Any:
        """Repeat a request until it is answered, as flows do: the first try may meet the end of the connection."""
        while True:
            with suppress(OutcomeUnknownError):
                return self.client.ask(request)


@pytest.fixture
def stage(etcd: Corner) -> Iterator[Stage]:
    with Proxy(etcd.cluster.servers[0].port) as proxy:
        yield Stage(etcd, proxy)


def acquiring(claim: str, *, may_wait: bool = False, ttl_ms: int = LONG_MS) -> ask.Acquire:
    return ask.Acquire("lock", claim, "tester", ttl_ms, boottime_us(), may_wait)


BOTH = pytest.mark.parametrize("direction", ["requests", "replies"])


@BOTH
@pytest.mark.parametrize("may_wait", [False, True])
def test_a_lost_acquire_is_granted_once(stage: Stage, direction: Direction, may_wait: bool):
    stage.client.token("warm")
    request = acquiring(draw_claim(), may_wait=may_wait)
    stage.lose(direction, "Txn", request)
    granted = stage.again(request)
    assert isinstance(granted, ask.Granted)
    assert stage.client.ask(request).token == granted.token
    assert stage.other.ask(ask.Inspect("lock")).token == granted.token


@BOTH
def test_a_lost_lease_grant_leaves_one_lease(stage: Stage, direction: Direction):
    before = set(stage.corner.cluster.leases())
    stage.client.ask(ask.ReadSource())
    request = acquiring(draw_claim())
    stage.lose(direction, "LeaseGrant", request)
    assert isinstance(stage.again(request), ask.Granted)
    assert len(set(stage.corner.cluster.leases()) - before) == 1


@BOTH
def test_a_claim_released_in_doubt_is_never_granted(stage: Stage, direction: Direction):
    stage.client.token("warm")
    request = acquiring(draw_claim())
    stage.lose(direction, "Txn", request)
    state = stage.client.state
    hashed = hash_claims(request)
    late = _enqueue_txn(state.layout, state.entries[hashed.claim], hashed, state.record)
    stage.again(ask.Release("lock", request.claim))
    kept = stage.corner.keys()
    assert f".fencelock/source/refused/{digest_of_claim(request.claim)}" in kept
    assert isinstance(stage.client.ask(request), ask.ClaimEnded)
    # The request that is still under way arrives now.
    assert not state.client.call(TXN, late, REQUEST_TIMEOUT_S).succeeded
    assert not stage.other.ask(ask.Inspect("lock")).is_held


@BOTH
def test_a_lost_release_is_done_when_it_is_repeated(stage: Stage, direction: Direction):
    claim = draw_claim()
    stage.client.token("lock", claim)
    stage.lose(direction, "Txn", ask.Release("lock", claim))
    assert isinstance(stage.again(acquiring(claim)), ask.ClaimEnded), "a claim whose release has begun is over"
    stage.again(ask.Release("lock", claim))
    assert not stage.other.ask(ask.Inspect("lock")).is_held


def test_a_late_release_deletes_no_other_claims_entry(stage: Stage):
    """The key of a queue entry is reused: a release recognises its own entry by its value."""
    first, second = draw_claim(), draw_claim()
    stage.client.token("lock", first)
    late = stage.client.state.delete_entry(stage.client.state.entries[digest_of_claim(first)])
    key = stage.client.state.entries[digest_of_claim(first)].key
    stage.client.release("lock", first)
    stage.client.token("lock", second)
    assert stage.client.state.entries[digest_of_claim(second)].key == key
    assert not stage.client.state.client.call(TXN, late, REQUEST_TIMEOUT_S).succeeded
    assert stage.other.ask(ask.Inspect("lock")).is_held


@BOTH
def test_a_lost_poll_is_answered_again(stage: Stage, direction: Direction):
    holder, waiter = draw_claim(), draw_claim()
    stage.other.token("lock", holder)
    assert isinstance(stage.client.ask(acquiring(waiter, may_wait=True)), ask.Queued)
    stage.other.release("lock", holder)
    stage.lose(direction, "Txn", ask.Poll("lock", waiter))
    granted = stage.again(ask.Poll("lock", waiter))
    assert isinstance(granted, ask.Granted)
    assert stage.client.ask(ask.Poll("lock", waiter)).token == granted.token


@BOTH
def test_a_lost_beat_loses_no_lease(stage: Stage, direction: Direction):
    claim = draw_claim()
    stage.client.token("lock", claim)
    stage.lose(direction, "LeaseKeepAlive", ask.Renew((("lock", claim),)))
    renewed = stage.again(ask.Renew((("lock", claim),)))
    assert set(renewed.remaining_ms) == {claim}


@BOTH
def test_a_lost_break_breaks_once(stage: Stage, direction: Direction):
    holder, later = draw_claim(), draw_claim()
    stage.other.token("lock", holder)
    request = ask.Break("lock", draw_claim(), "an operator", "a test")
    stage.client.ask(ask.ReadSource())
    stage.lose(direction, "Txn", request)
    broken = stage.again(request)
    assert broken.holder == "tester"
    assert stage.other.token("lock", later) > broken.token
    assert stage.client.ask(request) == broken
    assert stage.other.ask(ask.Inspect("lock")).is_held


def test_a_process_that_dies_with_its_requests_lost_leaves_nothing_for_longer_than_its_ttl(stage: Stage):
    """CURATOR-604: the queue entry was created, and its reply never arrived."""

    def begin_session() -> int:
        """Begin the session, which ends soon, and in which the entry is to be created."""
        stage.client.token("warm", ttl_ms=1000)
        return 1

    stage.client.one_token()
    stage.lose("replies", "Txn", acquiring(draw_claim(), ttl_ms=1000), prepare=begin_session)
    wait_until(lambda: isinstance(stage.other.acquire("lock", ttl_ms=1000), ask.Granted))
