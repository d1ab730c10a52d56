"""The rules H1 and H4 on an SQL server whose clock is set back and forward."""

from contextlib import ExitStack

import pytest

import fencelock
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from tests.sql.clients import SqlClient
from tests.sql.clock import ClockedServer
from tests.sql.dialect import install
from tests.sql.interleaving import LateRequest
from tests.sql.marks import one_version
from tests.support.helpers import wait_until
from tests.support.sources import LONG_MS

pytestmark = one_version
HOUR_S = 3600
SHORT_MS = 100


@pytest.fixture
def url(clocked: ClockedServer) -> str:
    """Return the address of a source on a server whose clock jumps."""
    return install(clocked.database.url())


jumps = pytest.mark.parametrize("hours", [1, -1], ids=["forward", "back"])


@jumps
def test_h1_a_jump_of_the_clock_keeps_no_lock_longer_than_its_ttl(clocked: ClockedServer, url: str, hours: int) -> None:
    """With a holder that died, and a queue of dead waiters, whose ttls are not waited for one after the other."""
    client = SqlClient(url)
    tokens = [client.token("lock", "holder", ttl_ms=2000), client.token("free", "holder", ttl_ms=SHORT_MS)]
    for number in range(20):
        client.acquire("lock", f"dead{number}", ttl_ms=2000, may_wait=True)
    clocked.jump(hours * HOUR_S)
    info = client.ask(ask.Inspect("lock"))
    assert info.remaining <= 2.0
    with fencelock.connect(url) as source:
        for name in ("free", "lock"):
            # Each of the dead counted for itself would be forty seconds.
            with source.lock(name, ttl=60.0, timeout=30.0) as lease:
                tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


@jumps
def test_h4_holds_over_jumps_of_the_clock(clocked: ClockedServer, url: str, hours: int) -> None:
    """There and back again, with a purge, and with others who know the one time or the other."""
    client = SqlClient(url)
    client.one_token()
    requests = []
    for offset in (hours * HOUR_S, 0, hours * HOUR_S):
        for end in ("release", "purge", "release before it comes", "give up waiting"):
            request = LateRequest(clocked.sql, client, claim := draw_claim())
            end_claim(client, claim, end)
            requests.append(request)
            SqlClient(url).one_token()
            check_ended(requests[-1:])
        clocked.jump(offset)
        check_ended(requests)
        SqlClient(url).one_token()
        client.one_token()
        check_ended(requests)


def end_claim(client: SqlClient, claim: str, end: str) -> None:
    if end == "release before it comes":
        client.release("lock", claim)
        return
    with ExitStack() as stack:
        if end == "give up waiting":
            holder = draw_claim()
            client.token("lock", holder)
            stack.callback(client.release, "lock", holder)
        while client.acquire("lock", claim, may_wait=True) == ask.ClaimEnded():
            assert not client.has_ended("lock", claim)
        client.release("lock", claim)
        if end == "purge":
            client.ask(ask.Purge())


def check_ended(requests: list[LateRequest]) -> None:
    assert {outcome for request in requests for outcome in request.arrive("try", "wait")} == {"ended"}


def test_h4_a_waiter_that_died_before_the_clock_was_set_back_is_not_forgotten_by_a_purge(
    clocked: ClockedServer, url: str
) -> None:
    client = SqlClient(url)
    client.token("lock", "holder", ttl_ms=SHORT_MS)
    request = LateRequest(clocked.sql, client, "waiter")
    client.acquire("lock", "waiter", ttl_ms=SHORT_MS, may_wait=True)
    clocked.jump(-HOUR_S)
    looking = SqlClient(url)
    looking.acquire("lock", may_wait=False)  # From here on, the time left to all of them is their ttl at most.
    wait_until(lambda: not client.ask(ask.Inspect("lock")).is_held and not client.ask(ask.Inspect("lock")).waiters)
    assert looking.ask(ask.Purge()) == 1
    assert request.arrive("wait") == ["ended"]


def test_t4_a_lease_that_a_jump_forward_ended_is_lost_and_one_that_a_jump_back_prolonged_is_not(
    clocked: ClockedServer, url: str
) -> None:
    client = SqlClient(url)
    client.token("lock", "holder")
    clocked.jump(-HOUR_S)
    renewed = client.ask(ask.Renew((("lock", "holder"),)))
    assert renewed.remaining_ms == {"holder": LONG_MS}
    clocked.jump(0)
    assert "expired" in client.ask(ask.Renew((("lock", "holder"),))).lost["holder"]
    assert client.token() > 1
